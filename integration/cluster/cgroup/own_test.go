package cgroup

import (
	"fmt"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, test := range []struct{ name, memberships, mounts, want string }{
		{
			name: "version 1 beside version 2",
			memberships: `9:name=systemd:/
4:memory:/a/b
2:cpu,cpuacct:/
1:hugetlb:/
0::/
`,
			mounts: `32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:7 - cgroup none rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup none rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup none rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 none rw
`,
			want: `/sys/fs/cgroup/systemd "none,name=systemd" /
/sys/fs/cgroup/memory "memory" /a/b
/sys/fs/cgroup/cpu,cpuacct "cpu,cpuacct" /
/sys/fs/cgroup/unified "" /
`,
		}, {
			name:        "version 2",
			memberships: "0::/user.slice/session-1.scope\n",
			mounts:      "30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 none rw,nsdelegate\n",
			want:        "/sys/fs/cgroup \"\" /user.slice/session-1.scope\n",
		}, {
			name:        "a part of the hierarchy, in a container",
			memberships: "4:memory:/docker/c1/x\n",
			mounts: `33 31 0:32 /docker/c /mnt rw - cgroup none rw,memory
35 31 0:32 /docker/c1 /sys/fs/cgroup/memory rw - cgroup none rw,memory
`,
			want: "/sys/fs/cgroup/memory \"memory\" /x\n",
		},
	} {
		g, err := parse(test.memberships, test.mounts)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		var got strings.Builder
		for _, b := range g {
			fmt.Fprintf(&got, "%s %q %s\n", b.Mount, b.Options, b.Path)
		}
		if got.String() != test.want {
			t.Errorf("%s: got\n%swant\n%s", test.name, &got, test.want)
		}
	}
}

func TestParseFails(t *testing.T) {
	for memberships, want := range map[string]string{
		"nonsense\n": `cannot read the line "nonsense\n"`,
		"0::/\n":     "no control groups are mounted; remedy: ",
	} {
		if _, err := parse(memberships, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", memberships, err, want)
		}
	}
}
