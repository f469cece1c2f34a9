//go:build e2e

package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-mesh/fairlead/integration/cluster"
	"github.com/fairlead-mesh/fairlead/integration/image"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

const serverManifest = `
apiVersion: v1
kind: Pod
metadata: {name: server, labels: {app: server}}
spec:
  nodeName: n1
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: localhost/fairlead/testapp:1
    imagePullPolicy: Never
    livenessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
    readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: server}
spec: {selector: {app: server}, ports: [{port: 80, targetPort: 8080}]}
`

const clientManifest = `
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  nodeName: n2
  terminationGracePeriodSeconds: 1
  initContainers:
  - {name: first, image: "localhost/fairlead/testapp:1", imagePullPolicy: Never, args: [get, "http://SERVER:8080/from-init"]}
  containers:
  - {name: app, image: "localhost/fairlead/testapp:1", imagePullPolicy: Never}
`

const daemonManifest = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      hostNetwork: true
      hostPID: true
      terminationGracePeriodSeconds: 1
      tolerations: [{operator: Exists}]
      containers:
      - name: app
        image: localhost/fairlead/testapp:1
        imagePullPolicy: Never
        securityContext: {privileged: true}
        volumeMounts:
        - {name: netns, mountPath: /var/run/netns, mountPropagation: HostToContainer}
        - {name: cni, mountPath: /etc/cni/net.d}
      volumes:
      - {name: netns, hostPath: {path: /var/run/netns}}
      - {name: cni, hostPath: {path: /etc/cni/net.d}}
`

// One cluster, used as a person would, from the start to the end.
func TestSmoke(t *testing.T) {
	netlab.Kernel(t)
	before := machineBefore(t)
	c := start(t, 2)
	for _, step := range []struct {
		name string
		run  func(*testing.T, *cluster.Cluster)
	}{
		{"nodes are ready", nodesAreReady},
		{"pods start and get addresses", podsStart},
		{"a DaemonSet runs on each node", daemonSetRuns},
		{"pods on two nodes talk", podsTalk},
		{"an image is loaded", imageIsLoaded},
		{"a service that ends is started again", kubeletComesBack},
		{"a reboot brings the pods back", rebootBringsPodsBack},
		{"requests to the API server are written down", requestsAreWrittenDown},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(t, c) }) {
			status, err := c.Status(t.Context())
			t.Logf("%s\n%v", strings.Join(status, "\n"), err)
			break // the next ones stand on it
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	unchanged(t, before)
	if _, err := os.Stat(dir(t)); !os.IsNotExist(err) {
		t.Errorf("the directory after the cluster: %v, want it gone", err)
	}
}

func nodesAreReady(t *testing.T, c *cluster.Cluster) {
	out := kubectl(t, c, "get", "nodes", "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.conditions[?(@.type=="Ready")].status} {.status.nodeInfo.kubeletVersion} {.status.nodeInfo.containerRuntimeVersion}{"\n"}{end}`)
	if want := "n1 True v1.37.2 containerd://2.4.2\nn2 True v1.37.2 containerd://2.4.2\n"; out != want {
		t.Errorf("nodes are\n%swant\n%s", out, want)
	}
}

// podIPs are a pod's addresses, the IPv4 one first.
func podIPs(t *testing.T, c *cluster.Cluster, pod string) []netip.Addr {
	t.Helper()
	var addrs []netip.Addr
	for text := range strings.FieldsSeq(kubectl(t, c, "get", "pod", pod, "-o", "jsonpath={.status.podIPs[*].ip}")) {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			t.Fatal(err)
		}
		addrs = append(addrs, addr)
	}
	if len(addrs) != len(c.Nodes[0].Addrs) {
		t.Fatalf("%s has the addresses %v, want %d", pod, addrs, len(c.Nodes[0].Addrs))
	}
	return addrs
}

func waitReady(t *testing.T, c *cluster.Cluster, pods ...string) {
	t.Helper()
	for _, pod := range pods {
		eventually(t, pod+" is ready", "True", func() (string, error) {
			return c.Kubectl(t.Context(), "get", "pod", pod, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		})
	}
}

func podsStart(t *testing.T, c *cluster.Cluster) {
	apply(t, c, serverManifest)
	waitReady(t, c, "server")
	apply(t, c, strings.ReplaceAll(clientManifest, "SERVER", podIPs(t, c, "server")[0].String()))
	waitReady(t, c, "client")
	for i, pod := range []string{"server", "client"} {
		for j, addr := range podIPs(t, c, pod) {
			if !c.Nodes[i].Pods[j].Contains(addr) {
				t.Errorf("%s has %s, want one of %s", pod, addr, c.Nodes[i].Pods[j])
			}
		}
	}
}

func daemonSetRuns(t *testing.T, c *cluster.Cluster) {
	apply(t, c, daemonManifest)
	eventually(t, "the DaemonSet's pods", "n1 Running 172.30.0.11\nn2 Running 172.30.0.12\n", func() (string, error) {
		return c.Kubectl(t.Context(), "get", "pods", "-l", "app=agent", "--sort-by=.spec.nodeName",
			"-o", `jsonpath={range .items[*]}{.spec.nodeName} {.status.phase} {.status.podIP}{"\n"}{end}`)
	})
}

// podsTalk has the init container's request seen, and makes others: from pod to pod,
// from outside of the nodes, and through the Service, for which a node stands in.
func podsTalk(t *testing.T, c *cluster.Cluster) {
	server, client := podIPs(t, c, "server"), podIPs(t, c, "client")
	want := fmt.Sprintf("%s /from-init\n", client[0])
	for i, addr := range server {
		web := "http://" + netip.AddrPortFrom(addr, 8080).String()
		if out := kubectl(t, c, "exec", "client", "--", "/testapp", "ask", netip.AddrPortFrom(addr, 7777).String(), "hello"); out != "hello\n" {
			t.Errorf("the echo is %q", out)
		}
		kubectl(t, c, "exec", "client", "--", "/testapp", "get", web+"/from-client")
		kubectl(t, c, "exec", "server", "--", "/testapp", "get", web+"/from-server")
		if _, err := get(t, c, web+"/from-outside"); err != nil {
			t.Error(err)
		}
		outside := []string{"172.30.0.1", "fd00:172:30::1"}[i]
		want += fmt.Sprintf("%s /from-client\n%s /from-server\n%s /from-outside\n", client[i], server[i], outside)
	}
	service := kubectl(t, c, "get", "service", "server", "-o", "jsonpath={.spec.clusterIP}")
	if _, err := get(t, c, "http://"+service+"/from-service"); err != nil {
		t.Error(err)
	}
	want += "10.244.1.1 /from-service\n"
	clients, err := get(t, c, "http://"+server[0].String()+":8080/clients")
	if err != nil {
		t.Fatal(err)
	}
	var seen strings.Builder
	for line := range strings.Lines(clients) {
		addr, path, _ := strings.Cut(line, " ")
		fmt.Fprintf(&seen, "%s %s", netip.MustParseAddrPort(addr).Addr(), path)
	}
	if diff := cmp.Diff(want, seen.String()); diff != "" {
		t.Errorf("the server saw (-want +got):\n%s", diff)
	}
}

func imageIsLoaded(t *testing.T, c *cluster.Cluster) {
	err := c.LoadImage(t.Context(), image.Image{
		Name:       "localhost/e2e/asks:1",
		Entrypoint: []string{"/usr/bin/asks", "ask", netip.AddrPortFrom(podIPs(t, c, "server")[0], 7777).String()},
		Files:      map[string]image.File{"/usr/bin/asks": {Source: filepath.Join(dir(t), "bin/testapp"), Mode: 0o755}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range c.Nodes {
		pod := "asks-" + n.Name
		kubectl(t, c, "run", pod, "--image=localhost/e2e/asks:1", "--image-pull-policy=Never", "--restart=Never",
			`--overrides={"spec": {"nodeName": "`+n.Name+`"}}`, "--", "from "+n.Name)
		eventually(t, "what the pod with the image printed", "from "+n.Name+"\n", func() (string, error) {
			return c.Kubectl(t.Context(), "logs", pod)
		})
	}
}

func kubeletComesBack(t *testing.T, c *cluster.Cluster) {
	find := func() (string, error) { return c.Nodes[1].Run(t.Context(), "pgrep", "-x", "kubelet") }
	before, err := find()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Nodes[1].Run(t.Context(), "kill", "-9", strings.TrimSpace(before)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the kubelet that was killed", "another one", func() (string, error) {
		now, err := find()
		if now != before {
			now = "another one"
		}
		return now, err
	})
}

func rebootBringsPodsBack(t *testing.T, c *cluster.Cluster) {
	n2 := c.Nodes[1]
	pods := func(fields string) string {
		return kubectl(t, c, "get", "pods", "client", "-o", "jsonpath="+fields)
	}
	uid := pods("{.metadata.uid}")
	bootID := func() string {
		out, err := n2.Run(t.Context(), "cat", "/proc/sys/kernel/random/boot_id")
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	boot := bootID()
	for _, file := range []string{"/run/marker", "/etc/marker", "/opt/marker", "/var/marker"} {
		if _, err := n2.Run(t.Context(), "touch", file); err != nil {
			t.Fatal(err)
		}
	}
	if err := n2.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	if bootID() == boot {
		t.Error("the node has the same boot ID as before")
	}
	out, err := n2.Run(t.Context(), "sh", "-c", "ls -d /run/marker /etc/marker /opt/marker /var/marker 2>/dev/null; true")
	if want := "/etc/marker\n/opt/marker\n/var/marker\n"; err != nil || out != want {
		t.Errorf("of the files from before the reboot are left\n%swant\n%s(%v)", out, want, err)
	}
	eventually(t, "the pod after the reboot", uid+" restarts=1 ready=true", func() (string, error) {
		return pods("{.metadata.uid} restarts={.status.containerStatuses[0].restartCount} ready={.status.containerStatuses[0].ready}"), nil
	})
	server := podIPs(t, c, "server")[0]
	if out := kubectl(t, c, "exec", "client", "--", "/testapp", "ask", server.String()+":7777", "again"); out != "again\n" {
		t.Errorf("the echo after the reboot is %q", out)
	}
}

func requestsAreWrittenDown(t *testing.T, c *cluster.Cluster) {
	count := func() int {
		return strings.Count(read(t, c.AuditLog()), `"requestURI":"/api/v1/namespaces/default/pods/audited"`)
	}
	if n := count(); n != 0 {
		t.Fatalf("%d requests before the first one", n)
	}
	for range 3 {
		if _, err := c.Kubectl(t.Context(), "get", "--raw", "/api/v1/namespaces/default/pods/audited"); err == nil {
			t.Fatal("there is such a pod")
		}
	}
	if n := count(); n != 3 {
		t.Errorf("%d requests were written down, want 3", n)
	}
}
