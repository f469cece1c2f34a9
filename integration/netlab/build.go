package netlab

import (
	"fmt"
	"os"
	"os/exec"
)

// Build builds a module's programs into a directory, static as a release's are. They
// say that they are v0-test.
func Build(module, dir string, packages ...string) error {
	args := []string{"build", "-buildvcs=false", "-trimpath", "-ldflags=-s -w -X main.version=v0-test", "-o", dir + "/"}
	cmd := exec.Command("go", append(args, packages...)...)
	cmd.Dir, cmd.Env = module, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build %s: %w\n%s", packages, err, out)
	}
	return nil
}
