package figures

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Memory is a line of a process's status, such as VmRSS, in MiB.
func Memory(pid int, key string) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("the status of process %d has no %s", pid, key)
}
