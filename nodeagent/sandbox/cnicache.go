package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// An entry is what libcni has written down of one interface of one sandbox.
type entry struct {
	uid, namespace, name string // the pod's
	container, ifname    string
	paths                []string // of its network namespace; several if the result names several
	ips                  []netip.Addr
}

// readCache calls each with the entries in libcni's cache, until it fails. unread says
// what could not be made sense of: libcni may just be writing a file.
func readCache(ctx context.Context, dir string, each func(entry) error) (unread []error, err error) {
	files, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		err = fmt.Errorf("cannot read libcni's cache: %w", err)
		if exhausted(err) {
			return nil, err
		}
		return []error{err}, nil
	}
	for _, file := range files {
		if err := ctx.Err(); err != nil {
			return unread, err
		}
		if !file.Type().IsRegular() {
			continue
		}
		path := filepath.Join(dir, file.Name())
		text, err := readEntry(path)
		if errors.Is(err, os.ErrNotExist) {
			continue // its sandbox is over
		}
		if exhausted(err) {
			return unread, err
		}
		var e entry
		var is bool
		if err == nil {
			e, is, err = parseEntry(text)
		}
		if err != nil {
			unread = append(unread, fmt.Errorf("cannot read %s: %w", path, err))
		} else if is {
			if err := each(e); err != nil {
				return unread, err
			}
		}
	}
	return unread, nil
}

// maxEntry is far above what libcni writes: the results of real plugins have some
// kilobytes.
const maxEntry = 1 << 20

func readEntry(path string) ([]byte, error) {
	// Not a link, and without waiting: a FIFO may have come to its place.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	var text []byte
	if err == nil {
		text, err = io.ReadAll(io.LimitReader(file, maxEntry+1))
	}
	if err == nil && len(text) > maxEntry {
		err = fmt.Errorf("it has more than %d bytes", maxEntry)
	}
	return text, errors.Join(err, file.Close())
}

// cached is the form of libcni's files; result is of any version of the
// specification from 0.1.0 on.
type cached struct {
	Kind        string     `json:"kind"`
	ContainerID string     `json:"containerId"`
	IfName      string     `json:"ifName"`
	Netns       string     `json:"netns"` // since libcni 1.2
	Args        [][]string `json:"cniArgs"`
	Result      struct {
		Interfaces []struct {
			Sandbox string `json:"sandbox"`
		} `json:"interfaces"`
		IPs []struct {
			Address string `json:"address"`
		} `json:"ips"`
		IP4, IP6 struct { // before 0.3.0
			IP string `json:"ip"`
		}
	} `json:"result"`
}

// parseEntry reads a file of the cache. One that is not about a Kubernetes pod is no
// entry, and no error.
func parseEntry(text []byte) (e entry, is bool, err error) {
	var c cached
	if err := json.Unmarshal(text, &c); err != nil {
		return entry{}, false, err
	}
	if c.Kind != "cniCacheV1" {
		return entry{}, false, nil
	}
	e = entry{container: c.ContainerID, ifname: c.IfName}
	for _, arg := range c.Args {
		if len(arg) != 2 {
			return entry{}, false, fmt.Errorf("an argument has %d parts, not a name and a value", len(arg))
		}
		switch value := arg[1]; arg[0] {
		case "K8S_POD_UID":
			if e.uid != "" && e.uid != value {
				return entry{}, false, fmt.Errorf("it is about two pods, %.64q and %.64q", e.uid, value)
			}
			e.uid = value
		case "K8S_POD_NAMESPACE":
			e.namespace = value
		case "K8S_POD_NAME":
			e.name = value
		}
	}
	e.paths, e.ips = c.paths(), c.ips()
	return e, e.uid != "", nil
}

func (c *cached) paths() []string {
	named := []string{c.Netns}
	if c.Netns == "" {
		for _, i := range c.Result.Interfaces {
			named = append(named, i.Sandbox) // none for the node's end of a veth
		}
	}
	var all []string
	for _, path := range named {
		if path = filepath.Clean(path); filepath.IsAbs(path) && !slices.Contains(all, path) {
			all = append(all, path)
		}
	}
	return all
}

func (c *cached) ips() []netip.Addr {
	texts := []string{c.Result.IP4.IP, c.Result.IP6.IP}
	for _, ip := range c.Result.IPs {
		texts = append(texts, ip.Address)
	}
	var all []netip.Addr
	for _, text := range texts {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			all = append(all, prefix.Addr().Unmap())
		}
	}
	return all
}

// mounted reports whether a namespace of some kind is mounted at path itself. A link,
// as /proc/PID/ns/net is one, names whatever the process of that number is in.
func mounted(path string) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	var fs unix.Statfs_t
	err = errors.Join(unix.Fstatfs(fd, &fs), unix.Close(fd))
	if err == nil && fs.Type != unix.NSFS_MAGIC {
		err = errors.New("nothing is mounted there")
	}
	return err
}
