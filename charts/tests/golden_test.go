package charts

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write what is compared in testdata anew")

// golden compares text with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: if this is meant, run go test -update (-want +got):\n%s", path, diff)
	}
}

func TestDefault(t *testing.T) {
	manifests, notes := installation{}.rendered(t)
	golden(t, "default.yaml", manifests)
	golden(t, "notes.txt", notes)
	manifests, notes = installation{chart: "nodeproxy"}.rendered(t)
	golden(t, "nodeproxy.yaml", manifests)
	golden(t, "nodeproxy-notes.txt", notes)
}

// What the proxy is told only where it differs from its own default.
func TestProxyFlags(t *testing.T) {
	usual, _ := installation{chart: "nodeproxy"}.rendered(t)
	manifests, _ := installation{chart: "nodeproxy", values: "{refuseUntagged: true, verbose: true}"}.rendered(t)
	golden(t, "nodeproxy-flags.diff", changes(usual, manifests))
}

// What a platform changes, and nothing else.
func TestPlatforms(t *testing.T) {
	usual, _ := installation{}.rendered(t)
	for _, platform := range []string{"gke", "eks", "aks", "k3s", "k3d", "microk8s", "minikube", "openshift", "talos"} {
		manifests, _ := installation{values: "{global: {platform: " + platform + "}}"}.rendered(t)
		golden(t, platform+".diff", changes(usual, manifests))
	}
}

// A value of its own goes before the platform's.
func TestValueBeforePlatform(t *testing.T) {
	manifests, _ := installation{values: `
global: {platform: openshift}
cniBinDir: /opt/other/bin
cniConfDir: /etc/other/net.d
cniNetnsDir: /run/other
seLinuxOptions: {type: other_t}
`}.rendered(t)
	for _, line := range strings.Split(manifests, "\n") {
		for _, platforms := range []string{"/var/lib/cni/bin", "multus", "/var/run/netns", "spc_t"} {
			if strings.Contains(line, platforms) {
				t.Errorf("the platform's %s stands in: %s", platforms, line)
			}
		}
	}
	for _, own := range []string{"/opt/other/bin", "/etc/other/net.d", "/run/other", "other_t"} {
		if !strings.Contains(manifests, own) {
			t.Errorf("%s is nowhere", own)
		}
	}
}

// changes returns the lines that are only in one of two texts. A checksum follows from
// other lines.
func changes(before, after string) string {
	left, right := strings.SplitAfter(before, "\n"), strings.SplitAfter(after, "\n")
	length := make([][]int, len(left)+1) // of the longest common subsequence of what follows
	for i := range length {
		length[i] = make([]int, len(right)+1)
	}
	for i, l := range slices.Backward(left) {
		for j, r := range slices.Backward(right) {
			length[i][j] = max(length[i+1][j], length[i][j+1])
			if l == r {
				length[i][j] = length[i+1][j+1] + 1
			}
		}
	}
	var out strings.Builder
	say := func(sign, line string) {
		if !strings.Contains(line, "config-checksum") {
			out.WriteString(sign + line)
		}
	}
	i, j := 0, 0
	for i < len(left) || j < len(right) {
		switch {
		case i < len(left) && j < len(right) && left[i] == right[j]:
			i, j = i+1, j+1
		case j == len(right) || i < len(left) && length[i+1][j] >= length[i][j+1]:
			say("-", left[i])
			i++
		default:
			say("+", right[j])
			j++
		}
	}
	return out.String()
}
