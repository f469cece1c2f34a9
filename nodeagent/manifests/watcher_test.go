package manifests

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"
)

// watching is a watcher of a directory of the test's own, and what it logs.
func watching(t *testing.T) (*watcher, *strings.Builder) {
	t.Helper()
	var log strings.Builder
	dir := filepath.Join(t.TempDir(), "pods")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	w := newWatcher(dir, time.Hour, slog.New(slog.NewTextHandler(&log, nil)))
	t.Cleanup(w.close)
	w.renew()
	if w.notify == nil {
		t.Fatalf("nothing is watched: %s", &log)
	}
	return w, &log
}

func touch(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestNotificationsAreCollectedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatcher("/pods", time.Hour, slog.New(slog.DiscardHandler))
		events, failures := make(chan fsnotify.Event), make(chan error)
		go w.collect(events, failures)
		defer close(events)
		defer close(failures)
		begin := time.Now()
		for _, name := range []string{"a.yaml", ".b.yaml", "b.yaml", "a.yaml", "b.yaml~", "..data"} {
			events <- fsnotify.Event{Name: "/pods/" + name, Op: fsnotify.Create}
		}
		h, more := w.wait(t.Context(), nil)
		if diff := cmp.Diff(map[string]bool{"a.yaml": true, "b.yaml": true, "..data": true}, h.names); diff != "" || !more || h.poll || h.all {
			t.Errorf("got %+v, %v\n%s", h, more, diff)
		}
		if took := time.Since(begin); took != settle {
			t.Errorf("collected for %s", took)
		}

		events <- fsnotify.Event{Name: "/pods/.c.yaml", Op: fsnotify.Write}
		poll := time.After(time.Minute)
		if h, _ := w.wait(t.Context(), poll); !h.poll || len(h.names) != 0 {
			t.Errorf("a temporary file wakes: %+v", h)
		}
	})
}

func TestLostNotifications(t *testing.T) {
	w, log := watching(t)
	notify := w.notify
	notify.Errors <- fsnotify.ErrEventOverflow
	if h, more := w.wait(t.Context(), nil); !h.all || !more || w.notify != notify {
		t.Errorf("too many notifications: %+v, %v; the watcher is kept: %v", h, more, w.notify == notify)
	}
	if log.Len() != 0 {
		t.Errorf("logged: %s", log)
	}
}

func TestBrokenWatcherIsReplaced(t *testing.T) {
	w, log := watching(t)
	w.notify.Errors <- errors.New("no more of this")
	if h, _ := w.wait(t.Context(), nil); !h.all || w.notify != nil {
		t.Errorf("got %+v; given up: %v", h, w.notify == nil)
	}
	if !strings.Contains(log.String(), "no more of this") {
		t.Errorf("logged: %s", log)
	}
	w.renew()
	touch(t, w.path, "a.yaml")
	if h, _ := w.wait(t.Context(), nil); !h.names["a.yaml"] {
		t.Errorf("the new watcher: %+v", h)
	}
}

// The same inode number may be used again, the watch is not.
func TestDirectoryThatIsMadeAgainIsWatchedAgain(t *testing.T) {
	for name, away := range map[string]func(dir string) error{
		"removed": os.Remove,
		"moved":   func(dir string) error { return os.Rename(dir, dir+".away") },
		"moved and removed": func(dir string) error {
			return errors.Join(os.Rename(dir, dir+".away"), os.Remove(dir+".away"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, log := watching(t)
			before := w.notify
			if err := away(w.path); err != nil {
				t.Fatal(err)
			}
			w.renew()
			w.renew()
			if strings.Count(log.String(), "no such file") != 1 {
				t.Errorf("not logged once: %q", log)
			}
			if err := os.Mkdir(w.path, 0o700); err != nil {
				t.Fatal(err)
			}
			for w.renew(); w.notify == nil || w.notify == before; w.renew() {
				if t.Context().Err() != nil {
					t.Fatal("never watched again")
				}
			}
			touch(t, w.path, "a.yaml")
			if h, _ := w.wait(t.Context(), nil); !h.names["a.yaml"] {
				t.Errorf("got %+v", h)
			}
		})
	}
}

func TestWatchedDirectoryStaysWatched(t *testing.T) {
	w, _ := watching(t)
	before := w.notify
	w.renew()
	if w.notify != before {
		t.Error("a watcher that works is replaced")
	}
}
