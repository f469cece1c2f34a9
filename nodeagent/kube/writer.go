package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// WriterConfig is what a Writer needs. All of it is required.
type WriterConfig struct {
	Source *Source
	// Report returns what is known of every pod of the node: package enroll's.
	Report func() []status.Pod
	Logger *slog.Logger
}

// A Writer has the API show what has become of the node's pods: the annotation that the
// control plane reads, and our condition.
type Writer struct {
	config WriterConfig
	events *recorder
	queue  workqueue.TypedDelayingInterface[string] // of the UIDs that the runtime knows

	mu      sync.Mutex
	facts   map[string]*fact // by the same
	failing map[string]failed
}

// A fact is what is known of one pod, beside its object.
type fact struct {
	pod        status.Pod
	since      time.Time // when it should have been captured and was not, without a break
	unserved   time.Time // when no proxy listened in it, without a break
	wrote      time.Time
	refused    string // the version of the object at which the API had no such pod any more
	failures   int    // of writes, in a row
	retryAt    time.Time
	told       string    // the state that people were told of last
	repaired   int       // how many repairs they know of
	repairedAt time.Time // when the first was made of which they do not
}

// failed is why a pod's write did not succeed.
type failed struct {
	pod name
	err error
}

// NewWriter validates the configuration.
func NewWriter(c WriterConfig) (*Writer, error) {
	if c.Source == nil || c.Report == nil || c.Logger == nil {
		return nil, errors.New("cannot write to the API what becomes of pods: a part of the configuration is missing")
	}
	w := &Writer{
		config: c, facts: map[string]*fact{}, failing: map[string]failed{},
		queue:  workqueue.NewTypedDelayingQueue[string](),
		events: newRecorder(c.Source.config.Client, c.Source.config.Node, c.Source.config.Metrics, c.Logger),
	}
	c.Source.noticed = func(p *pod) { w.queue.Add(p.RuntimeUID()) }
	return w, nil
}

const (
	// writers is how many pods are written at once. More would wait for the client's own
	// limit.
	writers = 4
	// firstRetry and mostRetry are the pauses after a write that failed.
	firstRetry = 500 * time.Millisecond
	mostRetry  = time.Minute
	// startDelay is how long nothing is written of what has just become of a pod that starts:
	// the answer to its ADD is on its way, and is not to be overtaken by a request.
	startDelay = 250 * time.Millisecond
	// writeTimeout bounds one request.
	writeTimeout = 10 * time.Second
	// lookInterval is how often all pods are looked at when nothing calls for it.
	lookInterval = 10 * time.Second
)

// Run writes until ctx is done. It is not to be called before the node's pods are known
// and have been looked at: what is not known yet would look like what is not captured.
func (w *Writer) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for range writers {
		running.Go(func() { w.work(ctx) })
	}
	running.Go(func() { w.events.run(ctx) })
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for ctx.Err() == nil {
		w.look()
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	w.queue.ShutDown()
	running.Wait()
	return nil
}

// look takes in all reports, and gives every pod its turn.
func (w *Writer) look() {
	known, objects := map[string]bool{}, map[string]bool{}
	for _, p := range w.config.Source.Pods() {
		objects[p.UID] = true
	}
	w.events.forget(func(uid string) bool { return objects[uid] })
	for _, p := range w.config.Report() {
		if p.UID != "" {
			known[p.UID] = true
			w.take(p)
			w.queue.Add(p.UID)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.facts, func(uid string, _ *fact) bool { return !known[uid] })
	maps.DeleteFunc(w.failing, func(uid string, _ failed) bool { return !known[uid] })
	w.count()
}

// count tells how many pods cannot be written. w.mu is held.
func (w *Writer) count() { w.config.Source.config.Metrics.outdated.Set(float64(len(w.failing))) }

// Reported takes in what has become of a pod. It does not block.
func (w *Writer) Reported(p status.Pod) {
	if w.take(p) {
		w.queue.Add(p.UID)
	}
}

// take reports whether there is anything new in it.
func (w *Writer) take(p status.Pod) (news bool) {
	p = p.Clip()
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.facts[p.UID]
	if f == nil {
		f = &fact{repaired: p.Rules.Repaired}
		w.facts[p.UID] = f
	}
	was := f.pod
	f.pod = p
	if p.Rules.Repaired > f.repaired && was.Rules.Repaired <= f.repaired {
		f.repairedAt = time.Now()
	}
	since(&f.since, astray(p))
	since(&f.unserved, astray(p) && !p.Listeners.Ready())
	return was.State != p.State || was.Reason != p.Reason || was.Message != p.Message ||
		was.Listeners != p.Listeners || was.Rules.State != p.Rules.State || was.Rules.Repaired != p.Rules.Repaired
}

// since sets when to now if what it is about begins, and to zero if it is over.
func since(when *time.Time, is bool) {
	switch {
	case !is:
		*when = time.Time{}
	case when.IsZero():
		*when = time.Now()
	}
}

func (w *Writer) work(ctx context.Context) {
	for {
		uid, shutdown := w.queue.Get()
		if shutdown {
			return
		}
		if ctx.Err() == nil {
			w.turn(ctx, uid)
		}
		w.queue.Done(uid)
	}
}

// turn has the API show of one pod what it should, if that is not what it shows.
func (w *Writer) turn(ctx context.Context, uid string) {
	w.mu.Lock()
	f := w.facts[uid]
	if f == nil {
		w.mu.Unlock()
		return
	}
	now := *f
	w.mu.Unlock()
	p := w.config.Source.pod(name{now.pod.Namespace, now.pod.Name})
	if p == nil || !p.Is(uid) {
		w.settle(uid, "", nil)
		return
	}
	said := w.tell(uid, p, now)
	want, again := desire(p, now, time.Now())
	again = sooner(again, said)
	switch {
	case want.same(p.stands):
		w.settle(uid, "", nil)
	case p.Phase == string(corev1.PodPending) && time.Since(now.pod.Since) < startDelay:
		again = sooner(again, startDelay-time.Since(now.pod.Since))
	case now.refused == p.version:
	case time.Now().Before(now.retryAt):
		again = sooner(again, time.Until(now.retryAt))
	case time.Since(now.wrote) < want.rest(p.stands):
		again = sooner(again, want.rest(p.stands)-time.Since(now.wrote))
	default:
		err := w.write(ctx, p, want)
		if ctx.Err() != nil {
			return // the agent ends; the next one sees what the API shows
		}
		w.config.Source.config.Metrics.wrote(err)
		again = sooner(again, w.settle(uid, p.version, err))
	}
	if again > 0 {
		w.queue.AddAfter(uid, again)
	}
}

// tell has people told of a pod's state, and says when to ask again.
func (w *Writer) tell(uid string, p *pod, now fact) (again time.Duration) {
	states, told, again := remarks(p, now, time.Now())
	changes, repaired, later := repairs(p, now, time.Now())
	for _, r := range append(states, changes...) {
		w.events.record(p, r)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if f := w.facts[uid]; f != nil {
		f.told, f.repaired = told, repaired
	}
	return sooner(again, later)
}

// write patches the pod's status. The UID in it keeps a pod that has the name by now from
// being touched.
func (w *Writer) write(ctx context.Context, p *pod, want report) error {
	text, err := json.Marshal(patchOf(p, want, time.Now()))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	answer := &corev1.Pod{}
	err = w.config.Source.config.Client.core.Patch(types.StrategicMergePatchType).
		Namespace(p.Namespace).Resource("pods").Name(p.Name).SubResource("status").Body(text).Do(ctx).Into(answer)
	if err == nil {
		w.config.Source.learn(answer)
	}
	return plain(err)
}

// settle takes in how the write of a version of a pod ended, or, without a version, that
// none is needed, and says when to try it again. Why it failed is logged, but not for each
// pod.
func (w *Writer) settle(uid, version string, err error) (again time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.count()
	f := w.facts[uid]
	if f == nil {
		return 0
	}
	if err == nil || over(err) {
		delete(w.failing, uid)
		f.failures, f.retryAt = 0, time.Time{}
		if err != nil {
			f.refused = version
		} else if version != "" {
			f.wrote = time.Now()
		}
		return 0
	}
	f.failures++
	again = min(firstRetry<<min(f.failures-1, 10), mostRetry)
	f.retryAt = time.Now().Add(again)
	known := false
	for _, other := range w.failing {
		known = known || class(other.err) == class(err)
	}
	w.failing[uid] = failed{name{f.pod.Namespace, f.pod.Name}, err}
	if !known {
		w.config.Logger.Warn("cannot show in the API whether pods are captured; it is tried again and again, and others with the same error are not logged",
			"pod", f.pod.Namespace+"/"+f.pod.Name, "error", err, "remedy", remedy(err, "patch pods/status"))
	}
	return again
}

// class is what errors of one cause have in common.
func class(err error) metav1.StatusReason { return apierrors.ReasonForError(err) }

// over says that there is no pod of this UID any more, or that somebody has written since
// we looked: in either case the watch will tell of it.
func over(err error) bool {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return true
	}
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}

// Problems returns what cannot be written now, a line for each cause.
func (w *Writer) Problems() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	causes := map[metav1.StatusReason][]failed{}
	for _, f := range w.failing {
		causes[class(f.err)] = append(causes[class(f.err)], f)
	}
	var lines []string
	for _, cause := range slices.Sorted(maps.Keys(causes)) {
		all := causes[cause]
		first := slices.MinFunc(all, func(a, b failed) int { return compareNames(a.pod, b.pod) })
		lines = append(lines, fmt.Sprintf("what the API shows of %d pods is not up to date (one is %s): %v; remedy: %s",
			len(all), first.pod, first.err, remedy(first.err, "patch pods/status")))
	}
	return lines
}
