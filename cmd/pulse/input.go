package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulse/schema"
)

// textOrFile is an argument that may be @FILE or - for standard input.
func textOrFile(cmd *cobra.Command, given string) ([]byte, error) {
	name, isFile := strings.CutPrefix(given, "@")
	switch {
	case given == "-":
		return readSome(cmd.InOrStdin(), "standard input")
	case isFile:
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return readSome(f, name)
	}
	return []byte(given), nil
}

// readSome reads no more than business JSON may have.
func readSome(r io.Reader, name string) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, schema.BusinessBytesMax+1))
	if err != nil {
		return nil, err
	}
	if len(text) > schema.BusinessBytesMax {
		return nil, fmt.Errorf("%s has more than %d bytes", name, schema.BusinessBytesMax)
	}
	return []byte(strings.TrimRight(string(text), "\r\n")), nil
}

// checkBusinessJSON names what is wrong here, before anybody is asked.
func checkBusinessJSON(text []byte) error {
	err := schema.CheckJSON(text, schema.Limits{Bytes: schema.BusinessBytesMax})
	if refusal, ok := errors.AsType[*schema.Error](err); ok {
		return errors.New(refusal.Message)
	}
	return err
}

func timeout(a *app) time.Duration { return cmp.Or(time.Duration(a.conn.timeout), callTimeout) }
