package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"time"
)

// calm waits until the machine has little else to do, or patience ends: the kernel goes
// on taking namespaces apart for a while after the row before.
func calm(ctx context.Context, patience time.Duration) error {
	const window, little = 200 * time.Millisecond, 0.1
	for began := time.Now(); time.Since(began) < patience; {
		busy, all := processors()
		if err := rest(ctx, window); err != nil {
			return err
		}
		busyAfter, allAfter := processors()
		if busyAfter-busy < little*(allAfter-all) {
			break
		}
	}
	return ctx.Err()
}

// processors is how long all processors have been busy, and how long they have been
// there, in the unit of proc_stat(5).
func processors() (busy, all float64) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0
	}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	var user, nice, system, idle, iowait, irq, softirq, steal float64
	if _, err := fmt.Sscanf(string(line), "cpu %f %f %f %f %f %f %f %f", &user, &nice, &system, &idle, &iowait, &irq, &softirq, &steal); err != nil {
		return 0, 0
	}
	busy = user + nice + system + irq + softirq + steal
	return busy, busy + idle + iowait
}
