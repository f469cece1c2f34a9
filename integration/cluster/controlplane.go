package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/cluster/supervisor"
)

// The Services that have fixed addresses.
var (
	apiService = ipv4.service(1)
	dnsService = ipv4.service(10)
)

var apiServerURL = "https://" + netip.AddrPortFrom(ipv4.control(), 6443).String()

// etcd listens inside the cluster's network namespace only.
const etcdURL = "http://127.0.0.1:2379"

// adminConfig is the name of the kubeconfig that is allowed everything.
const adminConfig = "kubeconfig"

// makeIdentities makes the certificates and kubeconfigs of everybody.
func (c *Cluster) makeIdentities() error {
	ca, err := newAuthority(c.path(pkiDir))
	if err != nil {
		return err
	}
	const domain = "kubernetes.default.svc.cluster.local"
	server := identity{file: "apiserver", name: "kube-apiserver", hosts: []string{"kubernetes", "kubernetes.default",
		"kubernetes.default.svc", domain, apiService.String(), ipv4.control().String()}}
	clients := []identity{
		{file: "admin", name: "admin", groups: []string{"system:masters"}},
		{file: "apiserver-kubelet", name: "kube-apiserver-kubelet", groups: []string{"system:masters"}},
		{file: "controller-manager", name: "system:kube-controller-manager"},
		{file: "scheduler", name: "system:kube-scheduler"},
		{file: "proxy", name: "system:kube-proxy"},
	}
	for i := range c.state.Nodes {
		n := c.node(i + 1)
		clients = append(clients, identity{file: n.Name, name: "system:node:" + n.Name,
			groups: []string{"system:nodes"}, hosts: []string{n.Name, n.Addrs[0].String()}})
	}
	if err := ca.sign(server); err != nil {
		return err
	}
	for _, client := range clients {
		if err := ca.sign(client); err != nil {
			return err
		}
		if err := writeKubeconfig(ca, client.file, c.path(pkiDir, client.file+".conf")); err != nil {
			return err
		}
	}
	return writeKubeconfig(ca, "admin", c.path(adminConfig))
}

const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`

// Not every write has to be on the disk at once: the cluster does not survive the
// machine.
func (c *Cluster) etcd() []string {
	return []string{"etcd", "--name=etcd", "--data-dir=" + c.path("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls=" + etcdURL, "--advertise-client-urls=" + etcdURL,
		"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=etcd=http://127.0.0.1:2380"}
}

func (c *Cluster) apiServer() []string {
	pki := func(file string) string { return c.path(pkiDir, file) }
	return []string{"kube-apiserver", "--etcd-servers=" + etcdURL,
		"--bind-address=" + ipv4.control().String(), "--advertise-address=" + ipv4.control().String(), "--secure-port=6443",
		"--service-cluster-ip-range=" + list(c.families(), func(f family) netip.Prefix { return f.services }), "--allow-privileged=true", "--profiling=false",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--client-ca-file=" + pki("ca.crt"), "--cert-dir=" + pki("made"),
		"--tls-cert-file=" + pki("apiserver.crt"), "--tls-private-key-file=" + pki("apiserver.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + pki("sa.pub"), "--service-account-signing-key-file=" + pki("sa.key"),
		"--kubelet-client-certificate=" + pki("apiserver-kubelet.crt"), "--kubelet-client-key=" + pki("apiserver-kubelet.key"),
		"--kubelet-certificate-authority=" + pki("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
		"--audit-policy-file=" + c.path("audit.yaml"), "--audit-log-path=" + c.AuditLog()}
}

// The default rate of 20 requests a second would cost some seconds at the start.
var freely = []string{"--leader-elect=false", "--bind-address=127.0.0.1", "--profiling=false",
	"--kube-api-qps=1000", "--kube-api-burst=2000"}

func (c *Cluster) controllerManager() []string {
	return append([]string{"kube-controller-manager", "--kubeconfig=" + c.path(pkiDir, "controller-manager.conf"),
		"--service-account-private-key-file=" + c.path(pkiDir, "sa.key"), "--root-ca-file=" + c.path(pkiDir, "ca.crt"),
		"--cluster-signing-cert-file=" + c.path(pkiDir, "ca.crt"), "--cluster-signing-key-file=" + c.path(pkiDir, "ca.key"),
		"--use-service-account-credentials=true", "--allocate-node-cidrs=false", "--cert-dir=" + c.path(pkiDir, "made")}, freely...)
}

func (c *Cluster) scheduler() []string {
	return append([]string{"kube-scheduler", "--kubeconfig=" + c.path(pkiDir, "scheduler.conf"),
		"--cert-dir=" + c.path(pkiDir, "made")}, freely...)
}

// AuditLog returns the file that has a line for each request to the API server.
func (c *Cluster) AuditLog() string { return c.path(logDir, "audit.log") }

// Kubeconfig returns the file that lets a client in the cluster's network namespace do
// everything. Clients elsewhere have to use Dial as well.
func (c *Cluster) Kubeconfig() string { return c.path(adminConfig) }

func (c *Cluster) startControlPlane(ctx context.Context) error {
	if err := os.WriteFile(c.path("audit.yaml"), []byte(auditPolicy), 0o600); err != nil {
		return err
	}
	if err := c.connectAPI(); err != nil {
		return err
	}
	if err := c.root.Start(ctx, c.service(c.etcd())); err != nil {
		return err
	}
	if err := c.StartAPI(ctx); err != nil {
		return err
	}
	c.say("the API server answers")
	// Not earlier: they would only find nobody there, and wait.
	for _, args := range [][]string{c.controllerManager(), c.scheduler()} {
		if err := c.root.Start(ctx, c.service(args)); err != nil {
			return err
		}
	}
	// No pod can be created before.
	return c.await(ctx, c.root, "", "the default service account is there", func(ctx context.Context) error {
		return c.get(ctx, "/api/v1/namespaces/default/serviceaccounts/default", nil)
	})
}

// StartAPI starts the API server, and returns when it answers.
func (c *Cluster) StartAPI(ctx context.Context) error {
	if err := c.root.Start(ctx, c.service(c.apiServer())); err != nil {
		return err
	}
	return c.await(ctx, c.root, "", "the API server answers", func(ctx context.Context) error {
		return c.get(ctx, "/readyz", nil)
	})
}

// StopAPI kills the API server, until StartAPI. All else goes on.
func (c *Cluster) StopAPI(ctx context.Context) error {
	return c.root.Stop(ctx, c.apiServer()[0], unix.SIGKILL)
}

func (c *Cluster) service(args []string) supervisor.Service {
	return supervisor.Service{
		Name:   args[0],
		Args:   append([]string{c.state.Programs + "/" + args[0]}, args[1:]...),
		Log:    c.path(logDir, args[0]+".log"),
		Cgroup: c.state.Cgroup.Child("control-plane"),
	}
}

// How long anything may take to come up, and to answer: the machine may be busy.
const (
	awaitTime  = 3 * time.Minute
	answerTime = 10 * time.Second
)

// await waits until nothing speaks against what is expected, as long as no service of
// a supervisor ends. Their logs' names begin with prefix.
func (c *Cluster) await(ctx context.Context, s supervisor.Client, prefix, what string, objection func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, awaitTime)
	defer cancel()
	before := map[string]int{}
	services, err := s.List(ctx)
	if err != nil {
		return err
	}
	for _, svc := range services {
		before[svc.Name] = svc.Ended
	}
	var last error
	err = until(ctx, 50*time.Millisecond, func() (bool, error) {
		try, cancel := context.WithTimeout(ctx, answerTime)
		defer cancel()
		if last = objection(try); last == nil {
			return true, nil
		}
		services, err = s.List(ctx)
		for _, svc := range services {
			if svc.Ended > before[svc.Name] {
				return false, fmt.Errorf("%s ended: %s\n%s", svc.Name, svc.Last, c.logEnd(prefix+svc.Name+".log"))
			}
		}
		return false, err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("the time is up: %w", last)
	}
	if err != nil {
		return fmt.Errorf("cannot see that %s: %w", what, err)
	}
	return nil
}

// Kubectl runs kubectl as the administrator, and returns its output.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	cmd, err := c.KubectlCommand(ctx, args...)
	if err != nil {
		return "", err
	}
	return output(cmd, "kubectl", args)
}

// KubectlCommand returns a command that runs kubectl as the administrator.
func (c *Cluster) KubectlCommand(ctx context.Context, args ...string) (*exec.Cmd, error) {
	return c.Command(ctx, append([]string{c.state.Programs + "/kubectl", "--kubeconfig=" + c.Kubeconfig()}, args...)...)
}

// Command returns a command of the machine's that runs in the cluster's network
// namespace, for one that talks to the API server: KUBECONFIG makes it the administrator.
func (c *Cluster) Command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	pid, err := c.root.Pid(ctx)
	if err != nil {
		return nil, err
	}
	cmd := command(ctx, "nsenter", append([]string{"-t", strconv.Itoa(pid), "-n", "--"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig())
	return cmd, nil
}
