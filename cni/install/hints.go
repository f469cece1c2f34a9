package install

import (
	"context"
	"log/slog"
	"time"

	"github.com/fsnotify/fsnotify"
)

// hints wakes the installer when something changes in a directory. Nothing rests on it
// but how soon that is.
type hints struct {
	logger *slog.Logger
	woken  chan struct{} // has room for one

	notify  *fsnotify.Watcher // nil: nothing is watched
	drained chan struct{}     // closed when nothing comes from notify any more
	failure string            // the last one, which was logged
}

func newHints(logger *slog.Logger) *hints {
	return &hints{logger: logger, woken: make(chan struct{}, 1)}
}

// renew watches what stands at the directories' paths now. What is watched already is
// watched on.
func (h *hints) renew(dirs []string) {
	err := h.open()
	for _, dir := range dirs {
		if err == nil {
			err = h.notify.Add(dir)
		}
	}
	if err != nil {
		h.close() // it may be of no use any more: the next time another one is made
	}
	if text := text(err); text != h.failure {
		h.failure = text
		if err != nil {
			h.logger.Warn("cannot watch the runtime's directories, looking at them from time to time", "error", err)
		}
	}
}

func (h *hints) open() error {
	if h.notify != nil {
		return nil
	}
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	h.notify, h.drained = notify, make(chan struct{})
	go func() {
		defer close(h.drained)
		h.collect(notify.Events, notify.Errors)
	}()
	return nil
}

func (h *hints) close() {
	if h.notify == nil {
		return
	}
	_ = h.notify.Close() // only watches were held
	<-h.drained
	h.notify = nil
}

// collect is never kept from receiving: fsnotify may send with its lock held, which
// all its methods take.
func (h *hints) collect(events <-chan fsnotify.Event, failures <-chan error) {
	for events != nil || failures != nil {
		select {
		case _, open := <-events:
			if !open {
				events = nil
				continue
			}
		case _, open := <-failures:
			if !open {
				failures = nil
				continue
			}
		}
		select {
		case h.woken <- struct{}{}:
		default:
		}
	}
}

// pause is how long more is waited for after the first notification: who writes a file
// is seldom done with the first write.
const pause = 20 * time.Millisecond

func (h *hints) settle(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
	select {
	case <-h.woken: // by what the next look sees
	default:
	}
}
