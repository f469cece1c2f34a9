package enroll

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
)

// places are a world's part of package sandbox. A namespace has the name of its
// container; it is mounted at /run/netns/NAME, and processes are in it.
type places struct {
	findable  map[string]string // containers, by UID, that a search finds where they are mounted
	processes map[int]string    // containers, by the process that is in them
	byProcess map[string]int    // processes, by UID, that a search finds
	undecided error             // why no search comes to anything
	searches  int
	born      time.Time // when what is found was made
}

func idOf(container string) netns.ID {
	h := fnv.New64a()
	_, _ = h.Write([]byte(container)) // it never fails
	var id netns.ID
	if err := id.UnmarshalText(fmt.Appendf(nil, "cookie %d", h.Sum64())); err != nil {
		panic(err) // it is the form that is documented
	}
	return id
}

// follow returns the container whose namespace a path leads to.
func (p *places) follow(path string) (container string, err error) {
	if container, mounted := strings.CutPrefix(path, "/run/netns/"); mounted {
		return container, nil
	}
	var pid int
	if _, err := fmt.Sscanf(path, "/proc/%d/ns/net", &pid); err != nil {
		return "", err
	}
	if container, ok := p.processes[pid]; ok {
		return container, nil
	}
	return "", fmt.Errorf("%s: %w: no such process", path, sandbox.ErrNotAPods)
}

func (w *world) find(path string) (sandbox.Place, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	container, err := w.follow(path)
	if err != nil {
		return sandbox.Place{}, err
	}
	return sandbox.Place{Path: path, Source: sandbox.SourceADD, ID: idOf(container)}, w.spaceOf(container).fail["find"]
}

func (w *world) gone(place sandbox.Place) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	container, err := w.follow(place.Path)
	return err != nil || idOf(container) != place.ID || w.spaceOf(container).fail["gone"] != nil
}

func (w *world) search(_ context.Context, wanted []sandbox.Wanted) (map[string]sandbox.Found, map[string]error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.searches++
	found, errs := map[string]sandbox.Found{}, map[string]error{}
	for _, pod := range wanted {
		container, mounted := w.findable[pod.UID]
		pid := w.byProcess[pod.UID]
		inside, runs := w.processes[pid]
		switch {
		case w.undecided != nil:
			errs[pod.UID] = w.undecided
		case mounted:
			found[pod.UID] = sandbox.Found{Place: sandbox.Place{
				Path: w.spaceOf(container).path, Source: sandbox.SourceCache, ID: idOf(container), Born: w.born,
			}, ContainerID: container}
		case runs:
			found[pod.UID] = sandbox.Found{Place: sandbox.Place{
				Path: fmt.Sprintf("/proc/%d/ns/net", pid), Source: fmt.Sprintf("process %d", pid), ID: idOf(inside), Process: pid, Born: w.born,
			}}
		default:
			errs[pod.UID] = sandbox.ErrNotFound
		}
	}
	return found, errs
}

var errAnother = errors.New("another one took its place")

func (w *world) open(place sandbox.Place, changed func(string)) (Kernel, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	container, err := w.follow(place.Path)
	if err == nil && idOf(container) != place.ID {
		err = errors.Join(errAnother, sandbox.ErrNotAPods)
	}
	if err != nil {
		return nil, err
	}
	s := w.spaceOf(container)
	if gate := s.gate; gate != nil {
		w.mu.Unlock()
		<-gate
		w.mu.Lock()
	}
	if err := s.fail["open"]; err != nil {
		return nil, err
	}
	s.open++
	s.changed = changed
	return s, nil
}
