package sim

import (
	"fmt"
	"os"
	"testing"
)

// TestMain plays the simulation only when asked to (make sim): it still finds
// things whose cause, in the machine or in the simulation, is being looked for,
// and it is not within its time yet.
func TestMain(m *testing.M) {
	if os.Getenv("PULSE_SIM") == "" && os.Getenv(seedEnv) == "" {
		fmt.Println("the simulation is played by 'make sim'")
		os.Exit(0)
	}
	os.Exit(m.Run())
}
