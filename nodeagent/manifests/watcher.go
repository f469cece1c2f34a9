package manifests

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

// settle is how long notifications are collected after the first.
const settle = 20 * time.Millisecond

// A watcher wakes the reader. Nothing rests on it but how soon that is.
type watcher struct {
	path   string
	every  time.Duration // the poll that goes on without it
	logger *slog.Logger

	notify  *fsnotify.Watcher // nil: nothing is watched
	watched os.FileInfo       // the directory that is
	drained chan struct{}     // closed when nothing comes from notify any more
	failure string            // the last one that was logged

	woken chan struct{} // has room for one
	mu    sync.Mutex
	noted hint  // since the last wait
	fault error // why notify is of no use any more
}

func newWatcher(path string, every time.Duration, logger *slog.Logger) *watcher {
	return &watcher{path: path, every: every, logger: logger, woken: make(chan struct{}, 1), noted: newHint()}
}

// renew watches the directory that is at the path now, if that is not what is
// watched already. It looks before it watches: a directory that is exchanged in
// between is then found to be another at the next call.
func (w *watcher) renew() {
	info, err := os.Stat(w.path)
	if err == nil && w.notify != nil && os.SameFile(info, w.watched) && len(w.notify.WatchList()) == 1 {
		return
	}
	w.close()
	if err == nil {
		err = w.open()
	}
	if err == nil {
		w.watched, w.failure = info, ""
		return
	}
	w.report(err)
}

// report logs why nothing is watched, once.
func (w *watcher) report(err error) {
	if w.failure == err.Error() {
		return
	}
	w.failure = err.Error()
	w.logger.Warn("cannot watch the directory of manifests, polling it until it can be", "path", w.path, "every", w.every, "error", err)
}

func (w *watcher) open() error {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	w.notify, w.drained = notify, make(chan struct{})
	go func() {
		defer close(w.drained)
		w.collect(notify.Events, notify.Errors)
	}()
	if err := notify.Add(w.path); err != nil {
		w.close()
		return err
	}
	return nil
}

func (w *watcher) close() {
	if w.notify == nil {
		return
	}
	_ = w.notify.Close() // only watches were held
	<-w.drained
	w.notify = nil
}

// collect notes what comes until both channels are closed. It is never kept from
// receiving: fsnotify may send with its lock held, which all its methods take.
func (w *watcher) collect(events <-chan fsnotify.Event, failures <-chan error) {
	for events != nil || failures != nil {
		select {
		case event, open := <-events:
			if !open {
				events = nil
			} else if name := filepath.Base(event.Name); matters(name) {
				w.note(func() { w.noted.names[name] = true })
			}
		case err, open := <-failures:
			if !open {
				failures = nil
				continue
			}
			w.note(func() {
				w.noted.all = true
				if !errors.Is(err, fsnotify.ErrEventOverflow) {
					w.fault = err
				}
			})
		}
	}
}

func (w *watcher) note(set func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	set()
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

// wait returns at the next poll, or when notifications have settled, with what
// they said; false when ctx is done.
func (w *watcher) wait(ctx context.Context, poll <-chan time.Time) (hint, bool) {
	select {
	case <-ctx.Done():
		return hint{}, false
	case <-poll:
		return w.take(true), true
	case <-w.woken:
	}
	select {
	case <-ctx.Done():
		return hint{}, false
	case <-time.After(settle):
		return w.take(false), true
	}
}

// take returns what was noted. A watcher that has failed is given up then; the next
// poll makes another.
func (w *watcher) take(poll bool) hint {
	w.mu.Lock()
	h, fault := w.noted, w.fault
	w.noted, w.fault = newHint(), nil
	select {
	case <-w.woken: // by what is in h
	default:
	}
	w.mu.Unlock()
	if fault != nil {
		w.close()
		w.report(fault)
	}
	h.poll = poll
	return h
}

// matters reports whether a change of the entry can change what the directory
// says: temporary files are many. A volume of Kubernetes is changed through its
// entry ..data, to which all others link.
func matters(name string) bool { return isManifest(name) || strings.HasPrefix(name, "..") }
