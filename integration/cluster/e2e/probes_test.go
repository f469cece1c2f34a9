//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-mesh/fairlead/integration/cluster"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// How the kubelet's health probes reach captured pods, in the three ways that there are,
// and what becomes of them in a mesh that refuses whoever has no identity.
func TestProbes(t *testing.T) {
	netlab.Kernel(t)
	c := startLoaded(t, 1)
	for _, step := range []struct {
		name string
		run  func(*testing.T, *cluster.Cluster)
	}{
		{"probes come from an address of their own", probesOfTheirOwn},
		{"no pod can send from that address", nobodyElses},
		{"a proxy that refuses untagged peers does not concern them", probesUnderPolicy},
		{"off: they are peers like others", probesOff},
		{"hostIP: they come from the node", probesFromTheNode},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(t, c) }) {
			t.Log(trouble(t, c))
			break // the next ones stand on it
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// The addresses that probes come from by default.
var ownAddrs = []string{"169.254.7.127", "fd16:9254:7127:1337:ffff:ffff:ffff:ffff"}

// probed are pods, by their names, with the probe that each has for all three purposes.
var probed = map[string]string{
	"http": "httpGet: {path: /healthz/PURPOSE, port: 8080}",
	"tcp":  "tcpSocket: {port: 7777}",
	"grpc": "grpc: {port: 8080, service: PURPOSE}",
	"exec": "exec: {command: [/testapp, healthy]}",
}

const probedManifest = `
apiVersion: v1
kind: Pod
metadata: {name: NAME, labels: {istio.io/dataplane-mode: ambient, test: probes}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: localhost/fairlead/testapp:1
    imagePullPolicy: Never
`

// applyProbed makes the pods anew, and waits until they are ready and captured.
func applyProbed(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	kubectl(t, c, "delete", "pods", "-l", "test=probes")
	var manifest strings.Builder
	for name, probe := range probed {
		manifest.WriteString("---" + strings.ReplaceAll(probedManifest, "NAME", name))
		for _, purpose := range []string{"startup", "liveness", "readiness"} {
			fmt.Fprintf(&manifest, "    %sProbe: {%s, periodSeconds: 1, timeoutSeconds: 5%s}\n", purpose, strings.ReplaceAll(probe, "PURPOSE", purpose),
				map[string]string{"startup": ", failureThreshold: 60"}[purpose])
		}
	}
	apply(t, c, manifest.String())
	waitFor(t, c, "condition=Ready", "pods", "-l", "test=probes")
	agree(t, c)
}

// counted is how often each kind of probe came to a pod's app, and from where. It is
// asked over loopback, which is not captured.
func counted(t *testing.T, c *cluster.Cluster, pod string) (map[string]int, error) {
	t.Helper()
	out, err := c.Kubectl(t.Context(), "exec", pod, "--", "/testapp", "get", "http://127.0.0.1:8080/probes")
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for line := range strings.Lines(out) {
		number, kind, _ := strings.Cut(strings.TrimSpace(line), " ")
		if counts[kind], err = strconv.Atoi(number); err != nil {
			return nil, err
		}
	}
	return counts, nil
}

// sources has a line for each kind of probe that came to an app of the pods.
func sources(t *testing.T, c *cluster.Cluster) (string, error) {
	t.Helper()
	var s strings.Builder
	for _, pod := range slices.Sorted(maps.Keys(probed)) {
		counts, err := counted(t, c, pod)
		if err != nil {
			return "", err
		}
		for _, kind := range slices.Sorted(maps.Keys(counts)) {
			fmt.Fprintf(&s, "%s: %s\n", pod, kind)
		}
	}
	return s.String(), nil
}

// allFrom is what sources returns if all probes came from one address.
func allFrom(addr string) string {
	return strings.ReplaceAll(`grpc: grpc liveness from ADDR
grpc: grpc readiness from ADDR
grpc: grpc startup from ADDR
http: http /healthz/liveness from ADDR
http: http /healthz/readiness from ADDR
http: http /healthz/startup from ADDR
tcp: tcp from ADDR
`, "ADDR", addr)
}

// probesGoOn waits until more probes have come to the apps.
func probesGoOn(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	const more = 5
	first := map[string]map[string]int{}
	for pod := range probed {
		counts, err := counted(t, c, pod)
		if err != nil {
			t.Fatal(err)
		}
		first[pod] = counts
	}
	eventually(t, "apps without new probes", "", func() (string, error) {
		var s strings.Builder
		for _, pod := range slices.Sorted(maps.Keys(probed)) {
			counts, err := counted(t, c, pod)
			if err != nil {
				return "", err
			}
			for _, kind := range slices.Sorted(maps.Keys(counts)) {
				if !strings.Contains(kind, "startup") && counts[kind] < first[pod][kind]+more {
					fmt.Fprintf(&s, "%s: %s\n", pod, kind)
				}
			}
		}
		return s.String(), nil
	})
}

// A tally is what proxies have done with what came in.
type tally struct{ relayed, refused int }

func inbound(t *testing.T, c *cluster.Cluster) tally {
	t.Helper()
	pods, err := list[apiPod](t, c, "pods", "-n", system)
	if err != nil {
		t.Fatal(err)
	}
	var all tally
	for _, proxies := range podsOf(pods, "nodeproxy") {
		for _, proxy := range proxies {
			var state struct {
				Relayed  struct{ Inbound int }
				Untagged int
			}
			dump, err := get(t, c, "http://"+net.JoinHostPort(proxy.Status.PodIPs[0].IP, "15021")+"/config_dump")
			if err == nil {
				err = json.Unmarshal([]byte(dump), &state)
			}
			if err != nil {
				t.Fatal(err)
			}
			all.relayed += state.Relayed.Inbound
			all.refused += state.Untagged
		}
	}
	return all
}

// wantPassing fails unless probes of all kinds pass, all come from one address, and the
// proxies see nothing of them.
func wantPassing(t *testing.T, c *cluster.Cluster, addr string) {
	t.Helper()
	before := inbound(t, c)
	probesGoOn(t, c)
	if after := inbound(t, c); after != before {
		t.Errorf("while probes came the proxy's counters went from %+v to %+v", before, after)
	}
	got, err := sources(t, c)
	if diff := cmp.Diff(allFrom(addr), got); diff != "" || err != nil {
		t.Errorf("probes (-want +got), %v:\n%s", err, diff)
	}
	wantReady(t, c, "exec True 0\ngrpc True 0\nhttp True 0\ntcp True 0\n")
}

// wantReady waits until so is the pods' readiness, with how often they were restarted.
func wantReady(t *testing.T, c *cluster.Cluster, want string) {
	t.Helper()
	eventually(t, "the pods are ready, and restarted", want, func() (string, error) {
		return c.Kubectl(t.Context(), "get", "pods", "-l", "test=probes", "--sort-by=.metadata.name", "-o", `jsonpath={range .items[*]}`+
			`{.metadata.name} {.status.conditions[?(@.type=="Ready")].status} {.status.containerStatuses[0].restartCount}{"\n"}{end}`)
	})
}

// wantPassingOverIPv6 has the kubelet probe one of the pods by its IPv6 address, which it
// does if another pod's probe names that. addr is where it is to come from.
func wantPassingOverIPv6(t *testing.T, c *cluster.Cluster, addr string) {
	t.Helper()
	addrs := podIPs(t, c, "http")
	if len(addrs) < 2 {
		t.Log("there is no IPv6 here")
		return
	}
	before := inbound(t, c)
	apply(t, c, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: asks-http}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: localhost/fairlead/testapp:1
    imagePullPolicy: Never
    readinessProbe: {httpGet: {host: "%s", path: /healthz/by-name, port: 8080}, periodSeconds: 1, timeoutSeconds: 5}
`, addrs[1]))
	waitReady(t, c, "asks-http")
	kubectl(t, c, "delete", "pod", "asks-http")
	if after := inbound(t, c); after != before {
		t.Errorf("while a probe came over IPv6 the proxy's counters went from %+v to %+v", before, after)
	}
	counts, err := counted(t, c, "http")
	if want := "http /healthz/by-name from " + addr; counts[want] == 0 {
		t.Errorf("probes are %v, %v, want one %s", counts, err, want)
	}
}

func probesOfTheirOwn(t *testing.T, c *cluster.Cluster) {
	install(t, c)
	applyProbed(t, c)
	wantPassing(t, c, ownAddrs[0])
	wantPassingOverIPv6(t, c, ownAddrs[1])
}

// nobodyElses has a captured pod, and one that is not, send to a captured one from the
// probes' addresses, for which the rights suffice that containers have by default.
func nobodyElses(t *testing.T, c *cluster.Cluster) {
	for name, mode := range map[string]string{"spoofer": "ambient", "stranger": "none"} {
		kubectl(t, c, "run", name, "--image=localhost/fairlead/testapp:1", "--image-pull-policy=Never",
			"--labels=istio.io/dataplane-mode="+mode, `--overrides={"spec": {"terminationGracePeriodSeconds": 1}}`)
		waitReady(t, c, name)
		agree(t, c)
		spoof(t, c, name)
	}
}

// spoof has a pod send from the probes' addresses.
func spoof(t *testing.T, c *cluster.Cluster, pod string) {
	t.Helper()
	from, to := podIPs(t, c, pod), podIPs(t, c, "http")
	spoofer, victim := podNetns(t, c.Nodes[0], from[0]), podNetns(t, c.Nodes[0], to[0])
	for i, own := range from {
		target := netip.AddrPortFrom(to[i], 7000).String()
		sink, err := victim.ListenPacket(target)
		if err != nil {
			t.Fatal(err)
		}
		defer sink.Close()
		if err := sink.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		for _, source := range []string{ownAddrs[i], own.String()} {
			conn, err := spoofer.Dial(t.Context(), "udp", target, netlab.From(net.JoinHostPort(source, "0")))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprint(conn, source)
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
		}
		text := make([]byte, 100)
		n, _, err := sink.ReadFrom(text)
		if got := string(text[:n]); got != own.String() {
			t.Errorf("the first to be heard is %q, %v, want what comes from %s", got, err, own)
		}
	}
	kubectl(t, c, "delete", "pod", pod)
}

func probesUnderPolicy(t *testing.T, c *cluster.Cluster) {
	release(t, c, "upgrade", "nodeproxy", "refuseUntagged=true")
	applyProbed(t, c)
	wantPassing(t, c, ownAddrs[0])
	wantPassingOverIPv6(t, c, ownAddrs[1])
	before := inbound(t, c)
	for _, addr := range podIPs(t, c, "http") {
		if _, err := get(t, c, "http://"+netip.AddrPortFrom(addr, 8080).String()); err == nil {
			t.Errorf("the policy lets an untagged peer in, at %s", addr)
		}
	}
	want := tally{before.relayed, before.refused + len(podIPs(t, c, "http"))}
	if after := inbound(t, c); after != want {
		t.Errorf("the proxy's counters are %+v, want %+v", after, want)
	}
}

// probesOff has the policy decide on probes. Of TCP probes some pass: the kubelet is
// content with a connection, which the proxy accepts before it knows the peer.
func probesOff(t *testing.T, c *cluster.Cluster) {
	kubectl(t, c, "delete", "events", "--all")
	before := inbound(t, c)
	release(t, c, "upgrade", "fairlead", "config.probes=off")
	agree(t, c)
	eventually(t, "what events say of probes", `grpc: Liveness probe failed
grpc: Readiness probe failed
grpc: Startup probe failed
http: Liveness probe failed
http: Readiness probe failed
http: Startup probe failed
`, func() (string, error) {
		out, err := c.Kubectl(t.Context(), "get", "events", "--field-selector=reason=Unhealthy,involvedObject.name!=tcp", "-o",
			`jsonpath={range .items[*]}{.involvedObject.name}: {.message}{"\n"}{end}`)
		said := map[string]bool{}
		for line := range strings.Lines(strings.ReplaceAll(out, "(combined from similar events): ", "")) {
			fields := strings.SplitN(line, ":", 3)
			said[strings.Join(fields[:min(2, len(fields))], ":")+"\n"] = true
		}
		return strings.Join(slices.Sorted(maps.Keys(said)), ""), err
	})
	ready := kubectl(t, c, "get", "pods", "exec", "grpc", "http", "-o",
		`jsonpath={range .items[*]}{.metadata.name} {.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}`)
	if want := "exec True\ngrpc False\nhttp False\n"; ready != want {
		t.Errorf("ready are\n%swant\n%s", ready, want)
	}
	after := inbound(t, c)
	if after.relayed != before.relayed || after.refused == before.refused {
		t.Errorf("the proxy's counters went from %+v to %+v: it is to refuse and not to relay", before, after)
	}
}

func probesFromTheNode(t *testing.T, c *cluster.Cluster) {
	values := []string{"config.probes=hostIP"}
	var addrs []string
	for i, pods := range c.Nodes[0].Pods { // the kubelet has the address of the pods' gateway
		addrs = append(addrs, pods.Addr().Next().String())
		values = append(values, fmt.Sprintf("config.probeAddresses.%s=%s", []string{"ipv4", "ipv6"}[i], addrs[i]))
	}
	release(t, c, "upgrade", "fairlead", values...)
	applyProbed(t, c)
	wantPassing(t, c, addrs[0])
	if len(addrs) > 1 {
		wantPassingOverIPv6(t, c, addrs[1])
	}
}
