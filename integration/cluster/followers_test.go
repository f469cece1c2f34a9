package cluster

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os/exec"
	"testing"
)

// The leader of a process group sees the end of the others; one that is alone ends.
func TestKillFollowers(t *testing.T) {
	for _, test := range []struct{ script, want string }{
		{"sleep 1000 & echo runs; wait; echo after", "after\n"},
		{"echo runs; exec sleep 1000", ""},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		cmd := command(ctx, "sh", "-c", test.script)
		cmd.Cancel = func() error { return killFollowers(cmd.Process.Pid) }
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(out)
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		cancel()
		rest, err := io.ReadAll(lines)
		if err != nil || string(rest) != test.want {
			t.Errorf("%s: then %q, %v, want %q", test.script, rest, err, test.want)
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.Is(err, context.Canceled) && !errors.As(err, &exit) {
			t.Errorf("%s: ended with %v", test.script, err)
		}
	}
}
