package netns

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// The identity that kernels before 5.14 give: it needs no other namespace, so it
// is compared with what the process's own namespace file says.
func TestSocketInode(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	got, err := socketInode(fd)
	if errors.Is(err, unix.EPERM) {
		t.Logf("the kernel wants CAP_NET_ADMIN for this: %v", err)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	var own unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &own); err != nil {
		t.Fatal(err)
	}
	if want := (ID{dev: own.Dev, ino: own.Ino}); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestSocketIDOfSomethingElse(t *testing.T) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = unix.Close(pipe[0]), unix.Close(pipe[1]) }()
	if id, err := SocketID(pipe[0]); err == nil {
		t.Errorf("a pipe has namespace %s", id)
	}
}

func TestIDText(t *testing.T) {
	for want, id := range map[string]ID{
		"cookie 4097":      {cookie: 4097},
		"inode 4:40265318": {dev: 4, ino: 40265318},
	} {
		if got := id.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		var back ID
		if err := back.UnmarshalText([]byte(want)); err != nil || back != id {
			t.Errorf("%q is read as %s, %v", want, back, err)
		}
	}
	for _, text := range []string{"", "cookie", "cookie -1", "cookie 1 ", "cookie 01", "inode 1", "inode 1:x", "7"} {
		id := ID{cookie: 9}
		if err := id.UnmarshalText([]byte(text)); err == nil || id != (ID{cookie: 9}) {
			t.Errorf("%q is read as %s, %v", text, id, err)
		}
	}
}
