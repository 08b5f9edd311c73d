package pki

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// ledgerFile has a line for every certificate that was ever signed. Without it
// only the newest of a node could be withdrawn, while those that it had before
// are good until they end.
const ledgerFile = "issued.jsonl"

// entry is a line of the ledger.
type entry struct {
	Kind      kind      `json:"kind"`
	ID        string    `json:"id"`
	Authority int       `json:"authority"` // its number in the lineage
	Serial    string    `json:"serial"`    // hex
	NotAfter  time.Time `json:"not_after"`
}

// ledgerBytesMax is room for some 400,000 certificates.
const ledgerBytesMax = 64 << 20

// record writes down what is about to be handed out.
func (v *vault) record(e entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("pki: write %s: %w", ledgerFile, err)
	}
	path := v.path(caDir, ledgerFile)
	data, err := readFileUpTo(path, ledgerBytesMax)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return replaceFile(path, append(append(data, line...), '\n'), secretMode)
}

// recorded lists what was signed for a node or client.
func (v *vault) recorded(k kind, id string) ([]entry, error) {
	path := v.path(caDir, ledgerFile)
	data, err := readFileUpTo(path, ledgerBytesMax)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []entry
	number := 0
	for line := range bytes.Lines(data) {
		number++
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("pki: line %d of %s is damaged: put back the copy you keep: %w", number, path, err)
		}
		if e.Kind == k && e.ID == id {
			out = append(out, e)
		}
	}
	return out, nil
}
