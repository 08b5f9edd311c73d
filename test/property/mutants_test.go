package property

import (
	"fmt"
	"regexp"
	"testing"

	"pulse/test/mutant"
)

const (
	entriesEnv = "PULSE_PROPERTY_ENTRIES"
	// mutantEntries is within how many random entries a mutant has to be found.
	mutantEntries = 60_000
)

// TestMutants expects the other tests of this package to find every mutant.
func TestMutants(t *testing.T) {
	mutant.Test(t, "../..", regexp.MustCompile(mutant.Found+".*"),
		[]string{"PULSE_PROPERTY_SECONDS=60", fmt.Sprintf("%s=%d", entriesEnv, mutantEntries)},
		"-test.run=^(TestBounds|TestBoundsOfTheFeed|TestTheFeedGetsItsTurn|TestMachine|TestHistories)$")
}
