package hostnet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 none rw\n"
	hybrid  = "31 23 0:27 / /sys/fs/cgroup/unified rw - cgroup2 none rw\n32 23 0:28 / /sys/fs/cgroup/net_cls,net_prio rw - cgroup none rw,net_cls,net_prio\n"
	inside  = "33 23 0:26 /../.. /sys/fs/cgroup rw - cgroup2 none rw\n"
)

// Where a kubelet is, going by the files of a process as nodes have them.
func TestPlaceOfKubelet(t *testing.T) {
	for name, test := range map[string]struct {
		cgroup, mounts string
		files          map[string]string // below the process's root
		want           Kubelet
		failure        string
	}{
		"cgroup v2": {
			"0::/system.slice/kubelet.service\n", unified, map[string]string{"sys/fs/cgroup/system.slice/kubelet.service/x": ""},
			Kubelet{Mode: ByCgroup, Cgroup: "/system.slice/kubelet.service", level: 2}, "",
		},
		"cgroup v1 with a unified tree beside it": {
			"5:net_cls,net_prio:/\n1:name=systemd:/system.slice/k:b.service\n0::/system.slice/k:b.service\n", hybrid,
			map[string]string{"sys/fs/cgroup/unified/system.slice/k:b.service/x": ""},
			Kubelet{Mode: ByCgroup, Cgroup: "/system.slice/k:b.service", level: 2}, "",
		},
		"cgroup v1 with a class": {
			"5:net_cls,net_prio:/kubelet\n0::/\n", hybrid, map[string]string{"sys/fs/cgroup/net_cls,net_prio/kubelet/net_cls.classid": "1048577\n"},
			Kubelet{Mode: ByClass, Cgroup: "/kubelet", class: 0x100001}, "",
		},
		"cgroup v1 without a class": {
			"5:net_cls,net_prio:/kubelet\n0::/\n", hybrid, map[string]string{"sys/fs/cgroup/net_cls,net_prio/kubelet/net_cls.classid": "0\n"},
			Kubelet{}, "the kubelet is in the root cgroup, like any process",
		},
		"cgroup v1 alone": {"4:memory:/kubelet\n", "", nil, Kubelet{}, "the kubelet is in no cgroup"},
		"the tree is not mounted as a whole": {
			"0::/kubelet.service\n", inside, nil, Kubelet{}, "the unified cgroup hierarchy is not mounted",
		},
		"the cgroup has just gone": {
			"0::/kubelet.service\n", unified, nil, Kubelet{}, "cannot look at the kubelet's cgroup /kubelet.service: no such file or directory",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			files := map[string]string{"cgroup": test.cgroup, "mountinfo": test.mounts}
			for path, content := range test.files {
				files["root/"+path] = content
			}
			for path, content := range files {
				path = filepath.Join(dir, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			open, err := os.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			p := &process{dir: open}
			defer func() { _ = p.close() }()
			var got Kubelet
			failure := ""
			if err := got.place(p); err != nil {
				failure = err.Error()
			}
			if got.Mode == ByCgroup {
				mount, _ := cgroupMount(test.mounts, "")
				var stat unix.Stat_t
				if err := unix.Stat(filepath.Join(dir, "root", mount, got.Cgroup), &stat); err != nil {
					t.Fatal(err)
				}
				test.want.id = stat.Ino
			}
			if got != test.want || failure != test.failure {
				t.Errorf("got %+v and %q, want %+v and %q", got, failure, test.want, test.failure)
			}
		})
	}
}

func TestConfigIsValidated(t *testing.T) {
	got := ""
	if _, err := New(Config{Probes: "nat", Mark: 0x1100}); err != nil {
		got = err.Error()
	}
	want := strings.Join([]string{
		"cannot exempt health probes: the host's network namespace is missing", `probes: "nat" is neither snat, hostIP nor off`,
		"the mark 0x1100 is not one bit", "invalid IP and invalid IP are not an IPv4 and an IPv6 address", "intervals of 0s and 0s: both must be more than 0",
	}, "\n")
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}
