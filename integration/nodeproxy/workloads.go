package nodeproxy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// linkState is how far the proxy is with the agent.
type linkState string

const (
	linkDown   linkState = "not connected to the agent"
	linkUp     linkState = "the agent has not sent its snapshot yet"
	linkSynced linkState = ""
	linkEnding linkState = "ending"
)

// workloads are the pods of the node that the agent has named.
type workloads struct {
	env environment

	mu    sync.Mutex
	link  linkState
	byUID map[string]*workload
}

// A workload is one pod. It owns its network namespace and all that is open in it.
type workload struct {
	uid     string
	info    Info
	netns   *netns.Handle // nil if there is none, see failure
	server  *server       // nil while the workload is pending
	failure error         // why it is pending
}

func newWorkloads(env environment) *workloads {
	return &workloads{env: env, link: linkDown, byUID: map[string]*workload{}}
}

// add starts a workload, which stays, and is tried again, if that fails. What runs
// already, in that namespace, is left as it is, whatever info says. It owns file.
func (ws *workloads) add(uid string, info Info, file *os.File) error {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	handle, err := netns.FromFile(file)
	old := ws.byUID[uid]
	if err == nil && old != nil && old.server != nil && old.netns.ID() == handle.ID() {
		_ = handle.Close() // fails only if it is closed already
		return nil
	}
	if old != nil {
		old.close()
	}
	w := &workload{uid: uid, info: info, netns: handle, failure: err}
	ws.byUID[uid] = w
	return w.start(ws.env)
}

// start starts a workload unless it runs. The error is also kept.
func (w *workload) start(env environment) error {
	if w.server != nil || w.netns == nil {
		return w.failure
	}
	if w.failure = env.refuse(w.uid); w.failure != nil {
		return w.failure
	}
	env.log = env.log.With("uid", w.uid, "pod", w.info.Namespace+"/"+w.info.Name)
	w.server, w.failure = startServer(w.netns, env)
	if w.failure == nil {
		env.log.Info("workload is up", "netns", w.netns.ID())
	}
	return w.failure
}

// close ends a workload at once: when it returns nothing of it is left.
func (w *workload) close() {
	if w.server != nil {
		w.server.close()
	}
	if w.netns != nil {
		_ = w.netns.Close() // fails only if it is closed already
	}
}

// del ends a workload, if there is one of that uid.
func (ws *workloads) del(uid string) {
	ws.endIf(func(w *workload) bool { return w.uid == uid })
}

// keepOnly ends the workloads that are not named.
func (ws *workloads) keepOnly(named map[string]bool) {
	ws.endIf(func(w *workload) bool { return !named[w.uid] })
}

// forgetPending gives up what could not be started: the agent names it again.
func (ws *workloads) forgetPending() {
	ws.endIf(func(w *workload) bool { return w.server == nil })
}

// close ends all workloads.
func (ws *workloads) close() {
	ws.endIf(func(*workload) bool { return true })
}

func (ws *workloads) endIf(doomed func(*workload) bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for uid, w := range ws.byUID {
		if !doomed(w) {
			continue
		}
		w.close()
		delete(ws.byUID, uid)
		log := ws.env.log.With("uid", uid, "pod", w.info.Namespace+"/"+w.info.Name)
		if w.server == nil {
			log.Info("workload will not be tried again")
		} else {
			log.Info("workload has ended")
		}
	}
}

// retry tries to start the pending workloads.
func (ws *workloads) retry() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for uid, w := range ws.byUID {
		if w.server == nil {
			if err := w.start(ws.env); err != nil {
				ws.env.log.Warn("cannot start workload, trying again", "uid", uid, "error", err)
			}
		}
	}
}

// drain leaves what comes next to another proxy, and waits until the connections
// there are have ended, for d at most.
func (ws *workloads) drain(d time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	ws.mu.Lock()
	var drained sync.WaitGroup
	for _, w := range ws.byUID {
		if s := w.server; s != nil {
			drained.Go(func() { s.drain(ctx) })
		}
	}
	ws.mu.Unlock()
	idle := make(chan struct{})
	go func() {
		drained.Wait()
		close(idle)
	}()
	select {
	case <-idle:
	case <-ctx.Done():
		ws.close()
		<-idle
	}
}

func (ws *workloads) setLink(state linkState) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.link = state
}

// ready says what is missing until traffic can be sent here, or nil.
func (ws *workloads) ready() error {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.link != linkSynced {
		return errors.New(string(ws.link))
	}
	var pending []string
	for uid, w := range ws.byUID {
		if w.server == nil {
			pending = append(pending, fmt.Sprintf("workload %s is pending: %v", uid, w.failure))
		}
	}
	if len(pending) > 0 {
		slices.Sort(pending)
		return errors.New(strings.Join(pending, "; "))
	}
	return nil
}
