package cnitest

import (
	"bytes"
	"debug/elf"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

func TestNamespacesThatAreRefused(t *testing.T) {
	n := newNode(t, "1.0.0")
	agent := startAgent(t, n.socket, always(nil))
	gone := netlab.NewNS(t, "gone")
	if err := gone.Unmount(); err != nil {
		t.Fatal(err)
	}
	for path, says := range map[string]string{
		"":                  "it is empty",
		"/proc/self/ns/net": "is the host's own",
		fmt.Sprintf("/proc/%d/ns/net", os.Getpid()): "is the host's own",
		"/proc/self/ns/uts":                         "not a network namespace",
		gone.Path:                                   "it is not a namespace",
		n.netns.Path + "-missing":                   "no such file",
	} {
		n.sandbox.NetNS = path
		fails(t, n.add(t.Context()), agentapi.CodeNamespace, says, path)
	}
	if requests := agent.asked(); len(requests) > 0 {
		t.Errorf("the agent was asked %v", requests)
	}
	// However it is reached, a namespace of its own is fit for use.
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(n.netns.Path, link); err != nil {
		t.Fatal(err)
	}
	n.sandbox.NetNS = link
	if err := n.add(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestBinaryIsSmallAndStatic(t *testing.T) {
	netlab.Kernel(t)
	path := pluginPath(t)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the binary has %d bytes", info.Size())
	if info.Size() > 4_000_000 {
		t.Errorf("the binary has %d bytes, more than 4 MB", info.Size())
	}
	file, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the binary needs a dynamic loader")
		}
	}
}

// execute runs the plugin without libcni.
func execute(t *testing.T, uid uint32, stdin string, env ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), pluginPath(t))
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, strings.NewReader(stdin), &out, &errs
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // its exit code is looked at
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func TestStartedByHand(t *testing.T) {
	netlab.Kernel(t)
	stdout, stderr, code := execute(t, 0, "")
	if stdout != "" || code != 0 || !strings.Contains(stderr, "fairlead-cni v0-test") || !strings.Contains(stderr, "0.3.1, 0.4.0, 1.0.0, 1.1.0") {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	stdout, _, code = execute(t, 0, "{}", "CNI_COMMAND=FLY", "CNI_PATH=/x")
	if code != 1 || !strings.Contains(stdout, `"code": `) {
		t.Errorf("unknown command: exit code %d, stdout %q", code, stdout)
	}
}

func TestDelSucceedsWhateverItIsGiven(t *testing.T) {
	netlab.Kernel(t)
	for _, stdin := range []string{"", "{", `{"cniVersion":"9.9.9"}`, `{"name":"n","type":"fairlead-cni","agentSocket":7}`} {
		for _, env := range [][]string{
			{"CNI_COMMAND=DEL"},
			{"CNI_COMMAND=DEL", "CNI_CONTAINERID=c", "CNI_ARGS=K8S_POD_NAME=p"},
			{"CNI_COMMAND=DEL", "CNI_CONTAINERID=../x", "CNI_ARGS=K8S_POD_NAME=p;K8S_POD_NAME=q", "CNI_NETNS=x"},
		} {
			if stdout, stderr, code := execute(t, 0, stdin, env...); stdout != "" || code != 0 {
				t.Errorf("%q %q: exit code %d, stdout %q, stderr %q", stdin, env, code, stdout, stderr)
			}
		}
	}
}

// A user who is not root is stopped by the directory, and where that is open, by
// the credentials that the agent asks the kernel for.
func TestOnlyRootReachesTheAgent(t *testing.T) {
	netlab.Kernel(t)
	dir := t.TempDir()
	socket := filepath.Join(dir, "agent.sock")
	refused := make(chan error, 1)
	l, err := agentapi.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.AcceptUnix()
		if err != nil {
			return
		}
		refused <- agentapi.CheckPeer(c)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	const nobody = 65534
	del := func() string {
		t.Helper()
		_, stderr, code := execute(t, nobody, fmt.Sprintf(`{"agentSocket":%q}`, socket),
			"CNI_COMMAND=DEL", "CNI_CONTAINERID=c", "CNI_ARGS=K8S_POD_NAME=p")
		if code != 0 {
			t.Errorf("exit code %d", code)
		}
		return stderr
	}
	if stderr := del(); !strings.Contains(stderr, "permission denied") {
		t.Errorf("the directory did not stop it: %s", stderr)
	}
	for path, mode := range map[string]os.FileMode{filepath.Dir(dir): 0o755, dir: 0o755, socket: 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	stderr := del()
	if err := <-refused; err == nil || !strings.Contains(err.Error(), "of user 65534") {
		t.Errorf("the agent says %v, the plugin %s", err, stderr)
	}
	if conn, err := net.Dial("unix", socket); err != nil {
		t.Errorf("root is stopped: %v", err)
	} else if err := conn.Close(); err != nil {
		t.Error(err)
	}
}
