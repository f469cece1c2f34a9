package clusterbench

import (
	"context"
	"fmt"
	"strings"
)

// system is the namespace that Fairlead is installed in, and account its agents' name to
// the API server.
const (
	system  = "fairlead-system"
	account = "system:serviceaccount:" + system + ":fairlead"
)

// install installs the agent and the reference proxy with their charts, on one of the
// nodes, and waits until both are ready.
func (b *bencher) install(ctx context.Context) error {
	b.say("installing on %s", b.ours().Name)
	if _, err := b.cluster.Kubectl(ctx, "create", "namespace", system); err != nil {
		return err
	}
	for _, chart := range []string{"fairlead", "nodeproxy"} {
		image, err := b.cluster.LoadArchive(ctx, b.bin(chart+".tar"))
		if err != nil {
			return fmt.Errorf("%w; remedy: make image", err)
		}
		colon := strings.LastIndex(image, ":")
		cmd, err := b.cluster.Command(ctx, b.bin("tools/helm"), "install", chart, b.Root+"/charts/"+chart, "--namespace", system, "--wait", "--timeout=2m",
			"--set=image.repository="+image[:colon], "--set-string=image.tag="+image[colon+1:], `--set=nodeSelector.kubernetes\.io/hostname=`+b.ours().Name)
		if err != nil {
			return err
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("cannot install the chart %s: %w: %s", chart, err, out)
		}
	}
	return nil
}
