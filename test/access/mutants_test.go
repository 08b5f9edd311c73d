package access

import (
	"regexp"
	"testing"

	"pulse/test/mutant"
)

// TestMutants expects the other tests of this package to find every mutant.
func TestMutants(t *testing.T) {
	mutant.Test(t, "../..", regexp.MustCompile(mutant.Found+".*"), nil, "-test.run=^(TestEvery|TestWhat|TestNothing|TestWorker)")
}
