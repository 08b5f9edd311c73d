package sim

import (
	"fmt"
	"regexp"
	"testing"

	"pulse/test/mutant"
)

// mutantSeeds is within how many seeds a mutant has to be found.
const mutantSeeds = 5 * ciSeeds

// TestMutants expects the seeds to show every mutant. Two of them change the
// simulation's own models of code that it cannot run: those try the checks.
func TestMutants(t *testing.T) {
	mutant.Test(t, "../..", regexp.MustCompile(`seed \d+, step \d+, `+mutant.Found+".*"),
		[]string{fmt.Sprintf("%s=%d", seedsEnv, mutantSeeds), seedEnv + "="}, "-test.run=^TestSeeds$")
}
