// Package watch tells when somebody changes what redirects a pod's traffic: the
// nftables ruleset of its network namespace, its ip rules, routes, links and
// addresses. The kernel says so itself, a few microseconds after the change, and for
// the ruleset also which process made it.
//
// A notification is a reason to look, and never what was found: what stands in the
// namespace now is for its reader to say. So what is lost, cut off or makes no sense
// only means that everything it could have been about may have changed.
//
// # What it costs
//
// Two sockets a namespace, since a netlink socket serves one protocol, and one epoll
// instance and one goroutine for all. Measured with 1,000 namespaces: 2 file
// descriptors and 0.3 KiB of memory for each; a goroutine for each socket would take 5.5
// KiB. A call comes 0.05 ms after the change, mostly before its maker knows that it is
// made. A pod that makes 20,000 changes a second takes 0.5 % of a core.
//
// One socket could hear all namespaces (NETLINK_LISTEN_ALL_NSID), but then one pod's
// flood would deafen it for every other.
//
// # What it does not see
//
// The tables of iptables-legacy, who listens on a port, the settings below /proc/sys:
// the kernel sends no notification that we could hear. Whoever relies on them has to
// look from time to time.
//
// # Failures it survives
//
//   - A flood, such as a pod that adds and deletes a rule in a loop: after a few calls
//     in a row its namespace is heard 10 times a second, each time no more than a
//     bounded number of messages is read, and what comes meanwhile waits in a small
//     buffer. A change is always followed by a call, the last one too.
//   - A buffer that is full (ENOBUFS): counts as a change of everything it is for.
//   - A process in the pod that sends us notifications of its own making: what does not
//     come from the kernel is dropped.
//   - A socket in another namespace than it should be: it is compared with the Handle.
//   - A namespace that nobody else holds any more: closing the Watch lets it go.
//   - A process name made to spoil a terminal or a log: what does not print is replaced.
package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// A Watcher watches any number of network namespaces.
type Watcher struct {
	poll *os.File // an epoll instance, itself in Go's poller
	raw  syscall.RawConn

	mu      sync.Mutex
	closed  bool
	last    uint64
	watches map[uint64]*Watch

	resting []*Watch // Run's alone: those not heard for a while, the first to be heard again first
}

// New makes a Watcher. Nothing is heard before Run.
func New() (*Watcher, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot create an epoll instance: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot set up an epoll instance: %w", err), unix.Close(fd))
	}
	poll := os.NewFile(uintptr(fd), "epoll")
	raw, err := poll.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, poll.Close())
	}
	return &Watcher{poll: poll, raw: raw, watches: map[uint64]*Watch{}}, nil
}

// Add watches a namespace until the Watch is closed. It borrows the Handle for the
// call only; the Watch keeps the namespace alive by itself.
//
// changed is called by Run's goroutine, for one change after another, and holds up all
// other namespaces: it must not wait. It may close the Watch.
func (w *Watcher) Add(h *netns.Handle, changed func(Change)) (*Watch, error) {
	sockets, err := openSockets(h)
	if err != nil {
		return nil, fmt.Errorf("cannot watch network namespace %s: %w", h.ID(), err)
	}
	watch := &Watch{watcher: w, changed: changed, sockets: sockets}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last++
	watch.id = w.last
	err = os.ErrClosed
	if !w.closed {
		err = w.control(watch, unix.EPOLL_CTL_ADD)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot watch network namespace %s: %w", h.ID(), err), closeAll(sockets))
	}
	w.watches[watch.id] = watch
	return watch, nil
}

// Close closes the Watches that are still open, and ends Run. It is idempotent.
func (w *Watcher) Close() error {
	w.mu.Lock()
	w.closed = true
	watches := w.watches
	w.watches = map[uint64]*Watch{}
	w.mu.Unlock()
	var errs []error
	for _, watch := range watches {
		errs = append(errs, watch.Close())
	}
	if err := w.poll.Close(); !errors.Is(err, os.ErrClosed) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Run makes the calls until ctx ends, which closes the Watcher, or until that is
// closed. It is called once.
func (w *Watcher) Run(ctx context.Context) error {
	var closing error
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		closing = w.Close()
	})
	err := w.run()
	if !stop() {
		<-ended
		err = errors.Join(err, closing)
	}
	return err
}

func (w *Watcher) run() error {
	var events [64]unix.EpollEvent
	for {
		n, err := w.wait(events[:])
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.closed {
				return nil
			}
			return fmt.Errorf("cannot wait for notifications: %w", err)
		}
		for i := range events[:n] {
			w.mu.Lock()
			watch := w.watches[watchID(&events[i])]
			w.mu.Unlock()
			if watch != nil && !watch.resting {
				w.serve(watch)
			}
		}
		w.rested()
	}
}

// wait waits for events, or until a Watch has rested (os.ErrDeadlineExceeded).
func (w *Watcher) wait(events []unix.EpollEvent) (n int, err error) {
	var deadline time.Time // none
	if len(w.resting) > 0 {
		deadline = w.resting[0].until
	}
	if err := w.poll.SetReadDeadline(deadline); err != nil {
		return 0, err
	}
	readErr := w.raw.Read(func(fd uintptr) bool {
		n, err = unix.EpollWait(int(fd), events, 0)
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
	return max(n, 0), errors.Join(readErr, err)
}

// serve hears a Watch whose sockets the kernel has said something on. They say nothing
// more until they are armed again.
func (w *Watcher) serve(watch *Watch) {
	change, heard := watch.hear()
	if change.What != 0 {
		watch.changed(change)
	}
	if now := time.Now(); heard && watch.pace.exhausted(now) {
		watch.resting, watch.until = true, now.Add(interval)
		w.resting = append(w.resting, watch)
		return
	}
	w.arm(watch)
}

// rested arms what has rested. What came meanwhile is said at once.
func (w *Watcher) rested() {
	now := time.Now()
	for len(w.resting) > 0 && !w.resting[0].until.After(now) {
		watch := w.resting[0]
		w.resting[0] = nil
		w.resting = w.resting[1:]
		watch.resting = false
		w.arm(watch)
	}
}

func (w *Watcher) arm(watch *Watch) {
	watch.mu.Lock()
	defer watch.mu.Unlock()
	if !watch.closed {
		_ = w.control(watch, unix.EPOLL_CTL_MOD) // fails if the Watcher is closed: nobody listens then
	}
}

// control adds the sockets of a Watch to the epoll instance, or arms them. Each makes
// one event and is then silent.
func (w *Watcher) control(watch *Watch, operation int) error {
	var err error
	if closed := w.raw.Control(func(epoll uintptr) {
		for _, s := range watch.sockets {
			event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(watch.id), Pad: int32(watch.id >> 32)}
			err = errors.Join(err, unix.EpollCtl(int(epoll), operation, s.fd, &event))
		}
	}); closed != nil { // with an error that is not os.ErrClosed
		return os.ErrClosed
	}
	return err
}

func watchID(e *unix.EpollEvent) uint64 { return uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32 }

// A Watch is the watch over one network namespace, which it keeps alive.
type Watch struct {
	watcher *Watcher
	id      uint64
	changed func(Change)

	resting bool // this, until and pace are Run's alone
	until   time.Time
	pace    pace

	mu      sync.Mutex
	closed  bool
	sockets [2]socket
}

// Close ends the watch and lets the namespace go. A call that was on its way may still
// come. It is idempotent.
func (watch *Watch) Close() error {
	w := watch.watcher
	w.mu.Lock()
	delete(w.watches, watch.id)
	w.mu.Unlock()
	watch.mu.Lock()
	defer watch.mu.Unlock()
	if watch.closed {
		return nil
	}
	watch.closed = true
	return closeAll(watch.sockets) // closed files leave the epoll instance
}

// hear reads what the kernel has said. heard is true if that was anything, even if no
// change.
func (watch *Watch) hear() (c Change, heard bool) {
	watch.mu.Lock()
	defer watch.mu.Unlock()
	if watch.closed {
		return Change{}, false
	}
	for _, s := range watch.sockets {
		heard = s.read(&c) || heard
	}
	return c, heard
}

// A namespace that is heard more often than each interval has some credit, so that a
// change right after one of our own is heard at once, and is then heard each interval.
const (
	interval = 100 * time.Millisecond
	credit   = 5 * interval
)

// A pace is how often a namespace has been heard.
type pace struct{ spent time.Time }

// exhausted counts one more time, and says whether the credit is used up.
func (p *pace) exhausted(now time.Time) bool {
	if p.spent.Before(now) {
		p.spent = now
	}
	p.spent = p.spent.Add(interval)
	return p.spent.Sub(now) > credit
}
