package figures

import (
	"os"
	"testing"
)

func TestMemory(t *testing.T) {
	if mib, err := Memory(os.Getpid(), "VmRSS"); err != nil || mib <= 0 {
		t.Errorf("own memory: %v, %v", mib, err)
	}
	if _, err := Memory(os.Getpid(), "NoSuchLine"); err == nil {
		t.Error("a line that is not there was read")
	}
}
