package sdk

import (
	"io"
	"net"
	"testing"
	"time"
)

// socket counts the writes that reach it.
type socket struct{ got []string }

func (s *socket) Read([]byte) (int, error) { return 0, io.EOF }
func (s *socket) Close() error             { return nil }
func (s *socket) Write(p []byte) (int, error) {
	s.got = append(s.got, string(p))
	return len(p), nil
}

func TestAnOutboxWritesWhatItHeldInOnePiece(t *testing.T) {
	t.Parallel()
	under := &socket{}
	o := newOutbox(under)
	say := func(text string) {
		t.Helper()
		if n, err := io.WriteString(o, text); n != len(text) || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
	}
	say("hello ")
	o.hold()
	for _, text := range []string{"one ", "two ", "three "} {
		say(text)
	}
	if o.size() != len("one two three ") || len(under.got) != 1 {
		t.Errorf("%d bytes are held and %q was written", o.size(), under.got)
	}
	if err := o.flush(time.Minute); err != nil {
		t.Fatal(err)
	}
	say("pong ")
	if err := o.flush(time.Minute); err != nil { // with nothing to write
		t.Fatal(err)
	}
	if len(under.got) != 3 || under.got[1] != "one two three " || under.got[2] != "pong " {
		t.Errorf("written: %q", under.got)
	}
}

func TestAnOutboxClosesASocketThatTakesNothing(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe() // nobody reads
	defer func() { _ = far.Close() }()
	o := newOutbox(near)
	o.hold()
	_, _ = io.WriteString(o, "anybody there?")
	if err := o.flush(time.Millisecond); err == nil {
		t.Error("it was taken")
	}
	if _, err := far.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the socket is still open: %v", err)
	}
}
