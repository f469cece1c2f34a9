package sandbox

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

const (
	args   = `"cniArgs":[["IgnoreUnknown","1"],["K8S_POD_NAME","web"],["K8S_POD_UID","` + uid + `"],["K8S_POD_NAMESPACE","shop"],["K8S_POD_INFRA_CONTAINER_ID","c1"]]`
	result = `"result":{"cniVersion":"1.0.0","interfaces":[{"name":"br0"},{"name":"veth1"},{"name":"eth0","sandbox":"/run/netns/old"}],"ips":[{"address":"10.0.0.5/24","interface":2},{"address":"fd00::5/64","interface":2}]}`
)

func TestParseEntry(t *testing.T) {
	ips := []netip.Addr{netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("fd00::5")}
	base := entry{uid: uid, namespace: "shop", name: "web", container: "c1", ifname: "eth0"}
	with := func(ips []netip.Addr, paths ...string) entry {
		e := base
		e.ips, e.paths = ips, paths
		return e
	}
	head := `{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkName":"n","config":"e30=",`
	for _, c := range []struct {
		name, text string
		want       entry
		err        string
	}{
		{"libcni 1.2", head + `"netns":"/run/netns/new",` + args + "," + result + "}", with(ips, "/run/netns/new"), ""},
		{"libcni before", head + args + "," + result + "}", with(ips, "/run/netns/old"), ""},
		{"two sandboxes", head + args + `,"result":{"interfaces":[{"sandbox":"/a"},{"sandbox":"/b"},{"sandbox":"/b/."}]}}`, with(nil, "/a", "/b"), ""},
		{"a result of 0.2.0", head + args + `,"result":{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.5/24"},"ip6":{"ip":"fd00::5/64"}}}`, with(ips), ""},
		{"no result", head + `"netns":"/n",` + args + "}", with(nil, "/n"), ""},
		{"no address", head + args + `,"result":{"ips":[{"address":"10.0.0.5"},{"address":"x"},{}]}}`, with(nil), ""},
		{"a mapped address", head + args + `,"result":{"ips":[{"address":"::ffff:10.0.0.5/120"}]}}`, with(ips[:1]), ""},
		{"a relative path", head + `"netns":"run/netns/new",` + args + "}", with(nil), ""},
		{"no path", head + `"netns":"vm-7",` + args + "," + result + "}", with(ips), ""},
		{"not a pod's", head + `"cniArgs":[["IgnoreUnknown","1"]],` + result + "}", entry{}, ""},
		{"no arguments", head + result + "}", entry{}, ""},
		{"another kind", `{"kind":"cniCacheV2",` + args + "}", entry{}, ""},
		{"a bare result, of libcni before 0.7", `{"cniVersion":"0.4.0","ips":[]}`, entry{}, ""},
		{"empty", "", entry{}, "unexpected end"},
		{"half written", head + args, entry{}, "unexpected end"},
		{"not an object", `[1]`, entry{}, "cannot unmarshal"},
		{"another type", head + `"netns":7}`, entry{}, "cannot unmarshal"},
		{"two UIDs", head + `"cniArgs":[["K8S_POD_UID","a"],["K8S_POD_UID","b"]]}`, entry{}, "two pods"},
		{"an argument without a value", head + `"cniArgs":[["K8S_POD_UID"]]}`, entry{}, "1 parts"},
	} {
		got, is, err := parseEntry([]byte(c.text))
		switch {
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: error %v, want %q", c.name, err, c.err)
		case c.err == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case is != (c.want.uid != ""):
			t.Errorf("%s: an entry: %v", c.name, is)
		case is:
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(entry{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("%s: %s", c.name, diff)
			}
		}
	}
}

func FuzzParseEntry(f *testing.F) {
	f.Add([]byte(`{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","netns":"/run/netns/n",` + args + "," + result + "}"))
	f.Add([]byte(`{"kind":"cniCacheV1",` + args + `,"result":{"ip4":{"ip":"10.0.0.5/24"}}}`))
	f.Add([]byte(`{"kind":"cniCacheV1","cniArgs":[null,[]],"result":null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		e, is, err := parseEntry(text)
		if is && (err != nil || e.uid == "") {
			t.Errorf("an entry of pod %q, error %v", e.uid, err)
		}
		for _, path := range e.paths {
			if !filepath.IsAbs(path) || path != filepath.Clean(path) {
				t.Errorf("path %q", path)
			}
		}
		for _, ip := range e.ips {
			if !ip.IsValid() || ip.Is4In6() {
				t.Errorf("address %s", ip)
			}
		}
	})
}

// What lies in the directory may be anything; the pod's entry is read nevertheless.
func TestReadCache(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	good := []byte(`{"kind":"cniCacheV1",` + args + "}")
	if err := errors.Join(
		os.WriteFile(file("net-c1-eth0"), good, 0o600),
		os.WriteFile(file("net-c0-eth0"), good[:20], 0o600),
		os.WriteFile(file("net-empty"), nil, 0o600),
		os.WriteFile(file("net-sparse"), nil, 0o600), os.Truncate(file("net-sparse"), 1<<40),
		os.Mkdir(file("net-directory"), 0o700),
		unix.Mkfifo(file("net-fifo"), 0o600),
		os.Symlink("/dev/zero", file("net-zero")),
		os.Symlink(file("net-c1-eth0"), file("net-link")),
		os.WriteFile(file("zzz-gone"), good, 0o600),
	); err != nil {
		t.Fatal(err)
	}
	var got []entry
	unread, err := readCache(t.Context(), dir, func(e entry) error {
		got = append(got, e)
		return os.Remove(file("zzz-gone")) // between the listing and the reading
	})
	if err != nil || len(got) != 1 || got[0].uid != uid {
		t.Errorf("%+v, %v", got, err)
	}
	var names []string
	for _, err := range unread {
		for _, name := range []string{"net-c0-eth0", "net-empty", "net-sparse"} {
			if strings.Contains(err.Error(), file(name)) {
				names = append(names, name)
			}
		}
	}
	if want := []string{"net-c0-eth0", "net-empty", "net-sparse"}; !slices.Equal(names, want) || len(unread) != 3 {
		t.Errorf("unread: %v, want %v", unread, want)
	} else if !strings.Contains(unread[2].Error(), "more than 1048576 bytes") {
		t.Error(unread[2])
	}
}

// A regular file in the listing may be a FIFO or a link by the time it is opened.
func TestReadEntryOfWhatHasChanged(t *testing.T) {
	dir := t.TempDir()
	fifo, link := filepath.Join(dir, "fifo"), filepath.Join(dir, "link")
	if err := errors.Join(unix.Mkfifo(fifo, 0o600), os.Symlink("/dev/zero", link)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{fifo: "not a regular file", link: "symbolic links", dir: "not a regular file"} {
		if _, err := readEntry(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

func TestReadCacheFailures(t *testing.T) {
	dir := t.TempDir()
	none := func(entry) error { return nil }
	if unread, err := readCache(t.Context(), filepath.Join(dir, "none"), none); err != nil || unread != nil {
		t.Errorf("no directory: %v, %v", unread, err)
	}
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path, []byte(`{"kind":"cniCacheV1",`+args+"}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if unread, err := readCache(t.Context(), path, none); err != nil || len(unread) != 1 {
		t.Errorf("not a directory: %v, %v", unread, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := readCache(ctx, dir, none); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	if _, err := readCache(t.Context(), dir, func(entry) error { return unix.EMFILE }); !errors.Is(err, unix.EMFILE) {
		t.Errorf("out of descriptors: %v", err)
	}
}

// Files that could not be opened for want of descriptors are not passed over: one of
// them may be the pod's.
func TestReadCacheOutOfDescriptors(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(`{"kind":"cniCacheV1",`+args+"}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 0
	_, after := readCache(t.Context(), dir, func(entry) error { return unix.Setrlimit(unix.RLIMIT_NOFILE, &none) })
	_, before := readCache(t.Context(), dir, func(entry) error { return nil })
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(after, unix.EMFILE) || !errors.Is(before, unix.EMFILE) {
		t.Errorf("after the first file: %v; before it: %v", after, before)
	}
}
