package conformance

import (
	"bufio"
	"crypto/rand"
	"crypto/sha1" // the handshake of WebSocket wants it
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"
)

const (
	subprotocol = "pulse.worker.v1"

	opContinue = 0x0
	opText     = 0x1
	opBinary   = 0x2
	opClose    = 0x8
	opPing     = 0x9
	opPong     = 0xA
	fin        = 0x80 // of the first byte of a frame
)

// socket is the client's end of a WebSocket, written by hand so that it can also
// say what no library would, and so that a fault shared with the server's
// library would show.
type socket struct {
	conn net.Conn
	r    *bufio.Reader
	deaf bool // leaves pings unanswered

	mu sync.Mutex // serialises writes
}

// closed is the close frame that ended a connection.
type closed struct {
	code   int
	reason string
}

func (c *closed) Error() string { return fmt.Sprintf("closed with %d %s", c.code, c.reason) }

// connect opens the socket of a worker.
func connect(t *testing.T, addr string, headers ...string) *socket {
	t.Helper()
	s, res, err := upgrade(addr, append([]string{"Sec-WebSocket-Protocol: " + subprotocol}, headers...)...)
	if err != nil {
		t.Fatal(err)
	}
	if s == nil {
		t.Fatalf("the upgrade was answered with %s", res.Status)
	}
	t.Cleanup(func() { _ = s.conn.Close() })
	return s
}

// upgrade asks for a WebSocket. A refusal is a response, with its body read, and
// no socket.
func upgrade(addr string, headers ...string) (*socket, *http.Response, error) {
	conn, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return nil, nil, err
	}
	var nonce [16]byte
	_, _ = rand.Read(nonce[:]) // it never fails
	key := base64.StdEncoding.EncodeToString(nonce[:])
	lines := append([]string{
		"GET /v1/worker HTTP/1.1", "Host: " + addr, "Connection: Upgrade", "Upgrade: websocket",
		"Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: " + key,
	}, headers...)
	s := &socket{conn: conn, r: bufio.NewReader(conn)}
	res, err := s.handshake(strings.Join(lines, "\r\n")+"\r\n\r\n", key)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		return nil, res, errors.Join(err, conn.Close())
	}
	return s, res, nil
}

func (s *socket) handshake(request, key string) (*http.Response, error) {
	_ = s.conn.SetDeadline(time.Now().Add(patience))
	defer func() { _ = s.conn.SetDeadline(time.Time{}) }()
	if _, err := io.WriteString(s.conn, request); err != nil {
		return nil, err
	}
	res, err := http.ReadResponse(s.r, nil)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		res.Body = io.NopCloser(strings.NewReader(string(body)))
		return res, err
	}
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	switch {
	case res.Header.Get("Sec-WebSocket-Accept") != base64.StdEncoding.EncodeToString(sum[:]):
		return res, errors.New("the accept key is wrong")
	case res.Header.Get("Sec-WebSocket-Protocol") != subprotocol:
		return res, fmt.Errorf("the subprotocol is %q", res.Header.Get("Sec-WebSocket-Protocol"))
	case res.Header.Get("Sec-WebSocket-Extensions") != "":
		return res, fmt.Errorf("an extension nobody asked for: %s", res.Header.Get("Sec-WebSocket-Extensions"))
	}
	return res, nil
}

// wire is one frame as a client sends it.
func wire(first byte, payload []byte) []byte {
	out := append(head(first, 0x80, uint64(len(payload))), 1, 2, 3, 4)
	for i, b := range payload {
		out = append(out, b^byte(1+i%4))
	}
	return out
}

// head is the beginning of a frame: its first byte, and the length in its
// shortest form under the mask bit.
func head(first, mask byte, length uint64) []byte {
	switch {
	case length < 126:
		return []byte{first, mask | byte(length)}
	case length < 1<<16:
		return binary.BigEndian.AppendUint16([]byte{first, mask | 126}, uint16(length))
	default:
		return binary.BigEndian.AppendUint64([]byte{first, mask | 127}, length)
	}
}

// write puts bytes on the connection as they are.
func (s *socket) write(data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.conn.SetWriteDeadline(time.Now().Add(patience))
	_, err := s.conn.Write(data)
	return err
}

func (s *socket) sendText(text []byte) error { return s.write(wire(fin|opText, text)) }

// serverFrameMax is more than any frame of the server may have.
const serverFrameMax = 2 << 20

// readFrame reads one frame and holds it to what a server may send.
func (s *socket) readFrame() (first byte, payload []byte, err error) {
	var h [10]byte
	if _, err := io.ReadFull(s.r, h[:2]); err != nil {
		return 0, nil, err
	}
	first, length := h[0], uint64(h[1]&0x7f)
	switch {
	case first&0x70 != 0:
		return 0, nil, fmt.Errorf("a frame with reserved bits: %#x", first)
	case h[1]&0x80 != 0:
		return 0, nil, errors.New("a masked frame from a server")
	}
	if length >= 126 {
		more := h[2 : 2+2*(1+3*(length-126))]
		if _, err := io.ReadFull(s.r, more); err != nil {
			return 0, nil, err
		}
		shortest := uint64(126)
		if length == 126 {
			length = uint64(binary.BigEndian.Uint16(more))
		} else {
			length, shortest = binary.BigEndian.Uint64(more), 1<<16
		}
		if length < shortest {
			return 0, nil, errors.New("a length that is not in its shortest form")
		}
	}
	switch control := first&0x8 != 0; {
	case control && (length > 125 || first&fin == 0):
		return 0, nil, errors.New("a control frame that is too long or in parts")
	case length > serverFrameMax:
		return 0, nil, fmt.Errorf("a frame of %d bytes", length)
	}
	payload = make([]byte, length)
	_, err = io.ReadFull(s.r, payload)
	return first, payload, err
}

// read returns the next text message. Pings are answered on the way. A close
// frame is answered and returned as *closed.
func (s *socket) read() (text []byte, err error) {
	begun := false
	for {
		first, payload, err := s.readFrame()
		if err != nil {
			return nil, err
		}
		switch op := first & 0xf; op {
		case opPing:
			if s.deaf {
				continue
			}
			if err := s.write(wire(fin|opPong, payload)); err != nil {
				return nil, err
			}
			continue
		case opPong:
			continue
		case opClose:
			return nil, s.readClose(payload)
		case opText, opContinue:
			if begun != (op == opContinue) {
				return nil, errors.New("a message whose parts are out of order")
			}
			begun = true
			if text = append(text, payload...); first&fin == 0 {
				continue
			}
			if !utf8.Valid(text) {
				return nil, errors.New("a text message that is not UTF-8")
			}
			return text, nil
		default:
			return nil, fmt.Errorf("a frame of kind %#x", op)
		}
	}
}

func (s *socket) readClose(payload []byte) error {
	if len(payload) < 2 {
		return fmt.Errorf("a close frame without a code: %q", payload)
	}
	c := &closed{int(binary.BigEndian.Uint16(payload)), string(payload[2:])}
	if !utf8.ValidString(c.reason) {
		return errors.New("a close reason that is not UTF-8")
	}
	_ = s.write(wire(fin|opClose, payload[:2])) // the server may be gone by now
	_ = s.conn.Close()
	return c
}
