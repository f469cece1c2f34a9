package sandbox

import (
	"fmt"
	"strings"
	"testing"
)

const (
	uid    = "2c48913c-b29f-11e7-9350-020968147796"
	uid_   = "2c48913c_b29f_11e7_9350_020968147796"
	other  = "a2830d0d-b0f0-4ff0-81b5-0ee4e299cf80"
	other_ = "a2830d0d_b0f0_4ff0_81b5_0ee4e299cf80"
	hash   = "5f3b0a8a7c9e4d2b8a6f1e0d3c2b1a09" // a static pod's
	cid    = "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961"
)

func TestPodInPath(t *testing.T) {
	for _, c := range []struct {
		name, path string
		want       membership // zero: nobody's
	}{
		{"cgroupfs, guaranteed", "/kubepods/pod" + uid + "/" + cid, membership{uid, cid, 0}},
		{"cgroupfs, burstable", "/kubepods/burstable/pod" + uid + "/" + cid, membership{uid, cid, 0}},
		{"cgroupfs, best effort", "/kubepods/besteffort/pod" + uid + "/" + cid, membership{uid, cid, 0}},
		{"cgroupfs, underscores", "/kubepods/pod" + uid_ + "/" + cid, membership{uid, cid, 0}},
		{"cgroupfs, CRI-O", "/kubepods/burstable/pod" + uid + "/crio-" + cid, membership{uid, "crio-" + cid, 0}},
		{"cgroupfs, static pod", "/kubepods/burstable/pod" + hash + "/" + cid, membership{hash, cid, 0}},
		{"cgroupfs, --cgroup-root", "/custom/root/kubepods/burstable/pod" + uid + "/" + cid, membership{uid, cid, 0}},
		{"systemd, guaranteed", "/kubepods.slice/kubepods-pod" + uid_ + ".slice/cri-containerd-" + cid + ".scope", membership{uid, "cri-containerd-" + cid, 0}},
		{"systemd, burstable", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uid_ + ".slice/cri-containerd-" + cid + ".scope", membership{uid, "cri-containerd-" + cid, 0}},
		{"systemd, best effort", "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + uid_ + ".slice/docker-" + cid + ".scope", membership{uid, "docker-" + cid, 0}},
		{"systemd, static pod", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + hash + ".slice/crio-" + cid + ".scope", membership{hash, "crio-" + cid, 0}},
		{"CRI-O with crun", "/kubepods.slice/kubepods-pod" + uid_ + ".slice/crio-" + cid + ".scope/container", membership{uid, "crio-" + cid, 1}},
		{"systemd's names on cgroupfs", "/system.slice/containerd.service/kubepods-burstable-pod" + uid_ + ".slice:cri-containerd:" + cid, membership{uid, cid, 0}},
		{"the same, deeper", "/system.slice/containerd.service/kubepods-pod" + uid_ + ".slice:cri-containerd:" + cid + "/init", membership{uid, cid, 1}},
		{"kind, v1", "/docker/" + cid + "/kubepods/besteffort/pod" + uid + "/" + cid, membership{uid, cid, 0}},
		{"kind, kubelet slice", "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod" + uid_ + ".slice/cri-containerd-" + cid + ".scope", membership{uid, "cri-containerd-" + cid, 0}},
		{"kind in docker with systemd", "/system.slice/docker-" + cid + ".scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + uid_ + ".slice/cri-containerd-" + cid + ".scope", membership{uid, "cri-containerd-" + cid, 0}},
		{"k3d", "/docker/" + cid + "/kubepods/pod" + uid + "/" + cid, membership{uid, cid, 0}},
		{"k3s as a service", "/system.slice/k3s.service/kubepods/burstable/pod" + uid + "/" + cid, membership{uid, cid, 0}},
		{"docker in the pod", "/kubepods/burstable/pod" + uid + "/" + cid + "/docker/" + cid, membership{uid, cid, 2}},
		{"systemd in the pod", "/kubepods.slice/kubepods-pod" + uid_ + ".slice/crio-" + cid + ".scope/system.slice/nginx.service", membership{uid, "crio-" + cid, 2}},
		{"a kubelet in the pod", "/kubepods/burstable/pod" + uid + "/" + cid + "/kubepods/besteffort/pod" + other + "/" + cid, membership{uid, cid, 4}},
		{"from a container, cgroupfs, same class", "/../../pod" + uid + "/" + cid, membership{uid, cid, 0}},
		{"from a container, cgroupfs, guaranteed", "/../../../pod" + uid + "/" + cid, membership{uid, cid, 0}},
		{"from a container, cgroupfs, other class", "/../../../besteffort/pod" + uid + "/" + cid, membership{uid, cid, 0}},
		{"from a container, systemd, same class", "/../../kubepods-burstable-pod" + uid_ + ".slice/cri-containerd-" + cid + ".scope", membership{uid, "cri-containerd-" + cid, 0}},
		{"from a container, systemd, guaranteed", "/../../../kubepods-pod" + uid_ + ".slice/cri-containerd-" + cid + ".scope", membership{uid, "cri-containerd-" + cid, 0}},
		{"from a container, systemd, other class", "/../../../kubepods-besteffort.slice/kubepods-besteffort-pod" + uid_ + ".slice/cri-containerd-" + cid + ".scope", membership{uid, "cri-containerd-" + cid, 0}},
		{"from elsewhere", "/../../kubepods/burstable/pod" + uid + "/" + cid, membership{uid, cid, 0}},
		{"from elsewhere, systemd", "/../../kubepods.slice/kubepods-pod" + uid_ + ".slice/crio-" + cid + ".scope", membership{uid, "crio-" + cid, 0}},

		{"the root", "/", membership{}},
		{"init", "/init.scope", membership{}},
		{"init from a container", "/../../../../init.scope", membership{}},
		{"conmon", "/kubepods.slice/kubepods-pod" + uid_ + ".slice/crio-conmon-" + cid + ".scope", membership{}},
		{"conmon, cgroupfs", "/kubepods/pod" + uid + "/crio-conmon-" + cid, membership{}},
		{"the pod's cgroup itself", "/kubepods/burstable/pod" + uid, membership{}},
		{"the pod's slice itself", "/kubepods.slice/kubepods-pod" + uid_ + ".slice", membership{}},
		{"in the agent's own pod", "/../pod" + uid + "/" + cid, membership{}},
		{"not below the kubelet's", "/system.slice/pod" + uid + "/" + cid, membership{}},
		{"one level too deep", "/kubepods/burstable/x/pod" + uid + "/" + cid, membership{}},
		{"no such class", "/kubepods/guaranteed/pod" + uid + "/" + cid, membership{}},
		{"a class without kubepods", "/burstable/pod" + uid + "/" + cid, membership{}},
		{"two classes", "/kubepods/besteffort/burstable/pod" + uid + "/" + cid, membership{}},
		{"at the root", "/pod" + uid + "/" + cid, membership{}},
		{"a slice at the root", "/kubepods-pod" + uid_ + ".slice/" + cid, membership{}},
		{"a slice in another's", "/kubepods.slice/kubepods-besteffort.slice/kubepods-burstable-pod" + uid_ + ".slice/" + cid, membership{}},
		{"a class's slice without its class", "/kubepods.slice/kubepods-burstable-pod" + uid_ + ".slice/" + cid, membership{}},
		{"a guaranteed slice in a class", "/kubepods.slice/kubepods-burstable.slice/kubepods-pod" + uid_ + ".slice/" + cid, membership{}},
		{"a class's slice without kubepods", "/kubepods-burstable.slice/kubepods-burstable-pod" + uid_ + ".slice/" + cid, membership{}},
		{"a user's slice", "/user.slice/user-kube-pod" + uid_ + ".slice/" + cid, membership{}},
		{"podman's pod", "/machine.slice/machine-libpod_pod_" + uid_ + ".slice/libpod-" + cid + ".scope", membership{}},
		{"nearly kubepods", "/mykubepods/pod" + uid + "/" + cid, membership{}},
		{"nearly kubepods, systemd", "/mykubepods.slice/mykubepods-pod" + uid_ + ".slice/" + cid, membership{}},
		{"a runtime's cgroup for the pod", "/system.slice/containerd.service/pod" + uid + "/" + cid, membership{}},
		{"a mount for the pod", "/system.slice/run-kubepods-pod" + uid + "-volumes.mount", membership{}},
		{"containerd's own", "/../../../../system.slice/containerd.service", membership{}},
		{"joined without a container", "/system.slice/kubepods-pod" + uid_ + ".slice:cri-containerd:", membership{}},
		{"joined without a runtime", "/system.slice/kubepods-pod" + uid_ + ".slice:" + cid, membership{}},
		{"no UID", "/kubepods/pod/" + cid, membership{}},
		{"no UID, systemd", "/kubepods.slice/kubepods-pod.slice/" + cid, membership{}},
		{"no UID at all", "/kubepods/podx.y/" + cid, membership{}},
		{"an empty container", "/kubepods/pod" + uid + "/", membership{}},
	} {
		got, ok := podInPath(c.path)
		if ok != (c.want.uid != "") || (ok && got != c.want) {
			t.Errorf("%s: %s\n is %+v, %v; want %+v", c.name, c.path, got, ok, c.want)
		}
	}
}

func TestPodOf(t *testing.T) {
	pod := "/kubepods/burstable/pod" + uid + "/" + cid
	another := "/kubepods/burstable/pod" + other + "/" + cid
	inner := "/kubepods/burstable/pod" + other + "/c1" + pod
	for _, c := range []struct {
		name, self string
		file       []string
		want       membership
	}{
		{"v2", "0::/", []string{"0::" + pod}, membership{uid, cid, 0}},
		{"v1", "3:cpu:/\n0::/", []string{"12:rdma:/", "3:cpu,cpuacct:" + pod, "1:name=systemd:" + pod, "0::/system.slice/crio.service"}, membership{uid, cid, 0}},
		{"v1, at different depths", "", []string{"3:cpu:" + pod, "1:name=systemd:" + pod + "/init.scope"}, membership{uid, cid, 0}},
		{"a dying cgroup", "", []string{"0::" + pod + " (deleted)"}, membership{uid, cid, 0}},
		{"two pods", "", []string{"3:cpu:" + pod, "2:memory:" + another}, membership{}},
		{"two containers", "", []string{"3:cpu:" + pod, "2:memory:/kubepods/pod" + uid + "/c2"}, membership{}},
		{"none", "", []string{"0::/system.slice/sshd.service"}, membership{}},
		{"no lines of this kind", "", []string{"", "x", "0:" + pod, "a:b:" + pod[1:], "::"}, membership{}},
		{"the agent is in a pod of the same node", "0::/kubepods/podagent/c0", []string{"0::" + pod}, membership{uid, cid, 0}},
		{"a node in a pod, seen by its own agent", "0::/kubepods/burstable/pod" + other + "/c1/kubepods/podagent/c2", []string{"0::" + inner}, membership{uid, cid, 0}},
		{"the same, a process of the outer node", "0::/kubepods/burstable/pod" + other + "/c1/kubepods/podagent/c2", []string{"0::" + another}, membership{}},
		{"a node in a pod, seen by the outer agent", "0::/kubepods/podagent/c2", []string{"0::" + inner}, membership{other, "c1", 4}},
		{"a node in a container", "3:cpu:/docker/n1/kubepods/podagent/c2", []string{"3:cpu:/docker/n1" + pod}, membership{uid, cid, 0}},
		{"another node in a container", "3:cpu:/docker/n1/kubepods/podagent/c2", []string{"3:cpu:/docker/n2" + pod}, membership{}},
		{"hierarchies of different depths", "3:cpu:/x/kubepods/podagent/c2\n0::/kubepods/podagent/c2", []string{"3:cpu:/x" + pod, "0::" + pod}, membership{uid, cid, 0}},
		{"a reader outside of its cgroup namespace", "0::/../../podagent/c2", []string{"0::/../../pod" + uid + "/" + cid}, membership{uid, cid, 0}},
		{"a reader in a cgroup namespace", "0::/", []string{"0::/../../pod" + uid + "/" + cid}, membership{uid, cid, 0}},
	} {
		got, ok := podOf(strings.Join(c.file, "\n")+"\n", levels(c.self))
		if ok != (c.want.uid != "") || (ok && got != c.want) {
			t.Errorf("%s: %+v, %v; want %+v", c.name, got, ok, c.want)
		}
	}
}

func FuzzPodOf(f *testing.F) {
	f.Add("0::/kubepods/podagent/c1\n", "0::/kubepods/burstable/pod"+uid+"/"+cid+"\n")
	f.Add("0::/\n", "0::/../../kubepods-burstable-pod"+uid_+".slice/cri-containerd-"+cid+".scope\n")
	f.Add("", "1:name=systemd:/system.slice/containerd.service/kubepods-pod"+uid_+".slice:cri-containerd:"+cid+" (deleted)\n")
	f.Add("3:cpu:/docker/n1/kubepods/podagent/c2", "3:cpu:/docker/n1/kubepods.slice/kubepods-pod"+other_+".slice/x")
	f.Fuzz(func(t *testing.T, self, file string) {
		m, ok := podOf(file, levels(self))
		if !ok {
			return
		}
		if !isUID(m.uid) || strings.Contains(m.uid, "_") || m.container == "" || strings.Contains(m.container, "/") || m.depth < 0 {
			t.Errorf("%q is %+v", file, m)
		}
		if !strings.Contains(dashes(file), "pod"+m.uid) {
			t.Errorf("%q does not name pod %s", file, m.uid)
		}
	})
}

func TestParseMount(t *testing.T) {
	for line, want := range map[string]struct {
		inode uint64
		path  string
	}{
		"63 43 0:4 net:[4026532250] /run/netns/cni-1 rw - nsfs none rw":        {4026532250, "/run/netns/cni-1"},
		`63 43 0:4 net:[7] /run/a\040b\134c rw shared:3 - nsfs none rw`:        {7, `/run/a b\c`},
		"64 43 0:4 mnt:[4026532251] /run/snapd/ns/lxd.mnt rw - nsfs none rw":   {},
		"22 28 0:20 / /sys rw,nosuid shared:7 - sysfs none rw":                 {},
		"63 43 0:4 net:[x] /run/netns/cni-1 rw - nsfs none rw":                 {},
		"63 43 0:4 net:[1 /run/netns/cni-1 rw - nsfs none rw":                  {},
		"63 43 0:4 net:[99999999999999999999] /run/netns/cni-1 - nsfs none rw": {},
		"63 43": {},
		"":      {},
	} {
		inode, path, ok := parseMount(line)
		if ok != (want.path != "") || (ok && (inode != want.inode || path != want.path)) {
			t.Errorf("%s: %d %q %v; want %+v", line, inode, path, ok, want)
		}
	}
}

// A process may call itself whatever it likes.
func TestParseStart(t *testing.T) {
	rest := " S 1 1 1 0 -1 4194560 103 0 0 0 0 0 0 0 20 0 1 0 %d 3170304 288 18446744073709551615\n"
	for stat, want := range map[string]string{
		"20 (cat)" + fmt.Sprintf(rest, 123456):                 "20m34.56s true",
		"20 (a) R 2 (b) c)" + fmt.Sprintf(rest, 7):             "70ms true",
		"20 ()" + fmt.Sprintf(rest, 0):                         "0s true",
		"20 (cat)" + fmt.Sprintf(rest, -1):                     "0s false",
		"20 (cat)" + fmt.Sprintf(rest, 1<<40):                  "0s false",
		"20 (cat) S 1 1 1 0 -1 4194560 103 0 0 0 0 0 0 0 20 0": "0s false",
		"20 (cat": "0s false",
		"":        "0s false",
	} {
		since, ok := parseStart(stat)
		if got := fmt.Sprintf("%v %v", since, ok); got != want {
			t.Errorf("%q: got %s, want %s", stat, got, want)
		}
	}
}
