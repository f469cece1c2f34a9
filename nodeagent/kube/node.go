package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// NodeWriterConfig is what a NodeWriter needs.
type NodeWriterConfig struct {
	Source *Source
	// Ready says why the agent is not ready for pods, and a reason of one word, or nil.
	Ready func() (reason string, err error)
	// Taint has the startup taint removed when the agent is ready. PutBack has it put there
	// first; Guard, whenever the agent has not been ready for a while.
	Taint, PutBack, Guard bool
	// Condition has the node's condition written.
	Condition bool
	Logger    *slog.Logger
}

// A NodeWriter has the API show of the agent's own node whether pods can start there: by
// the startup taint, which keeps the scheduler away, and by our condition.
type NodeWriter struct {
	config NodeWriterConfig

	working  sync.Mutex // held while the node is looked at or written
	want     nodeState
	since    time.Time // when the agent ceased to be ready, as far as it is known
	wrote    time.Time // when want changed last
	guard    bool      // the taint is put there if the agent is not ready for a while
	settled  bool      // the API showed what is wanted
	looked   time.Time
	retryAt  time.Time
	failures int // in a row
	uid      types.UID
	tainted  bool

	mu      sync.Mutex
	problem error
}

const (
	// readyInterval is how often the agent is asked whether it is ready, nodeInterval how
	// often the node is looked at when nothing calls for it: somebody may have put the taint
	// there, or the node may have been deleted and made again.
	readyInterval = time.Second
	nodeInterval  = 30 * time.Second
	// mostTries bounds how often the node is read and written for one change. Others write it,
	// too.
	mostTries = 10
)

// NewNodeWriter validates the configuration.
func NewNodeWriter(c NodeWriterConfig) (*NodeWriter, error) {
	if c.Source == nil || c.Ready == nil || c.Logger == nil {
		return nil, errors.New("cannot write to the API how the node is: a part of the configuration is missing")
	}
	w := &NodeWriter{config: c, since: time.Now(), guard: c.Guard && !c.PutBack}
	if c.PutBack {
		w.want.taint = taintThere
	}
	return w, nil
}

// Run writes until ctx is done, and leaves the node as it is then: the next agent on it
// may be ready already.
func (w *NodeWriter) Run(ctx context.Context) error {
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	for ctx.Err() == nil {
		w.step(ctx)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	return nil
}

// step writes what is to be written now.
func (w *NodeWriter) step(ctx context.Context) {
	w.working.Lock()
	defer w.working.Unlock()
	now := time.Now()
	if w.judge(now) {
		w.settled = false
	}
	if now.Before(w.retryAt) || w.settled && now.Sub(w.looked) < nodeInterval {
		return
	}
	err := w.write(ctx, w.settled)
	if ctx.Err() == nil {
		w.note(now, err)
	}
}

// judge finds out what the node is to show, and reports whether that is new.
func (w *NodeWriter) judge(now time.Time) (news bool) {
	if w.want.leaving {
		return false
	}
	want := w.want
	reason, err := w.config.Ready()
	switch {
	case err == nil:
		w.since, w.guard = time.Time{}, w.config.Guard
		want.taint, want.condition = taintGone, nodeCondition{Status: corev1.ConditionTrue, Reason: reason}
	case w.since.IsZero():
		w.since = now
	}
	if err != nil && want.taint == taintGone {
		want.taint = taintAsIs
	}
	if err != nil && now.Sub(w.since) >= grace {
		// The API has no other text, and would never show what was written.
		want.condition = nodeCondition{Status: corev1.ConditionFalse, Reason: reason, Message: strings.ToValidUTF8(err.Error(), "\uFFFD")}
		if w.guard {
			want.taint, w.guard = taintThere, false
		}
	}
	if want.condition.Status == w.want.condition.Status && now.Sub(w.wrote) < newReason {
		want.condition = w.want.condition // what it says may change all the time
	}
	if !w.config.Taint {
		want.taint = taintAsIs
	}
	news = want.condition != w.want.condition ||
		want.taint != w.want.taint && (want.taint == taintThere || want.taint == taintGone && w.tainted)
	if w.want = want; news {
		w.wrote = now
	}
	return news
}

// write reads the node, and writes what is not as it should be, until nothing is. Where
// all was well, any server's cache will do to see whether it still is. A taint that is
// refused does not keep the condition from being written.
func (w *NodeWriter) write(ctx context.Context, cached bool) error {
	var refused error
	for range mostTries {
		n, err := w.get(ctx, cached)
		if err != nil {
			return both(refused, err)
		}
		w.looked = time.Now()
		if !cached {
			w.recognise(n)
		}
		sub, body := w.want.patch(n, w.config.Taint && refused == nil, w.config.Condition, time.Now())
		switch {
		case cached && (body != nil || n.UID != w.uid || tainted(n) != w.tainted):
			cached = false
			continue
		case body == nil:
			return refused
		}
		switch err := w.patch(ctx, sub, body); {
		case err == nil || over(err):
		case sub == "":
			refused = err
		default:
			return both(refused, err)
		}
	}
	return both(refused, fmt.Errorf("it changes all the time: %d tries were in vain", mostTries))
}

// both joins errors in one line.
func both(a, b error) error {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	return fmt.Errorf("%w; %w", a, b)
}

// recognise takes in which node it is, and what has been reached. A taint that has been
// there is not put back a second time: who has taken it away by hand may have meant it.
func (w *NodeWriter) recognise(n *corev1.Node) {
	another := w.uid != "" && w.uid != n.UID
	w.uid, w.tainted = n.UID, tainted(n)
	if another && w.want.taint == taintAsIs && (w.config.PutBack || w.config.Guard) {
		w.want.taint = taintThere
	}
	if w.tainted && w.want.taint == taintThere {
		w.want.taint = taintAsIs
	}
}

func (w *NodeWriter) get(ctx context.Context, cached bool) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	options, n := metav1.GetOptions{}, &corev1.Node{}
	if cached {
		options.ResourceVersion = "0"
	}
	client := w.config.Source.config.Client
	err := client.core.Get().Resource("nodes").Name(w.config.Source.config.Node).VersionedParams(&options, client.parameters).Do(ctx).Into(n)
	if err != nil {
		return nil, nodeError{"get nodes", plain(err)}
	}
	return n, nil
}

func (w *NodeWriter) patch(ctx context.Context, sub string, body *nodePatch) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	request, resource := w.config.Source.config.Client.core.Patch(types.StrategicMergePatchType).Resource("nodes").Name(w.config.Source.config.Node), "nodes"
	if sub != "" {
		request, resource = request.SubResource(sub), "nodes/"+sub
	}
	err = plain(request.Body(text).Do(ctx).Error())
	w.config.Source.config.Metrics.wroteNode(resource, err)
	if err != nil {
		return nodeError{"patch " + resource, err}
	}
	if sub == "" {
		w.config.Logger.Info("the node's startup taint was changed", "node", w.config.Source.config.Node, "taints", body.Spec.words())
	}
	return nil
}

// note takes in how a write ended. Why it failed is logged once for each cause.
func (w *NodeWriter) note(now time.Time, err error) {
	if w.settled = err == nil; w.settled {
		w.failures, w.retryAt = 0, time.Time{}
	} else {
		w.retryAt = now.Add(min(firstRetry<<min(w.failures, 10), nodeInterval))
		w.failures++
	}
	w.config.Source.config.Metrics.nodeOutdated(err != nil)
	w.mu.Lock()
	before := w.problem
	w.problem = err
	w.mu.Unlock()
	if err != nil && (before == nil || class(before) != class(err)) {
		w.config.Logger.Warn("cannot show in the API whether the node is ready for pods; it is tried again and again",
			"node", w.config.Source.config.Node, "error", err, "remedy", nodeRemedy(err))
	}
}

// Leave takes the taint and the condition away, for good: no agent is meant to run here any
// more.
func (w *NodeWriter) Leave(ctx context.Context) error {
	w.working.Lock()
	defer w.working.Unlock()
	w.want, w.settled = nodeState{leaving: true, taint: taintGone}, false
	err := w.write(ctx, false)
	w.note(time.Now(), err)
	return err
}

// Problems returns why the API does not show of the node what it should, if it does not.
func (w *NodeWriter) Problems() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.problem == nil {
		return nil
	}
	return []string{fmt.Sprintf("what the API shows of the node %s is not up to date: %v; remedy: %s", w.config.Source.config.Node, w.problem, nodeRemedy(w.problem))}
}

// A nodeError is why the API would not do something.
type nodeError struct {
	verbs string
	err   error
}

func (e nodeError) Error() string { return "cannot " + e.verbs + ": " + e.err.Error() }
func (e nodeError) Unwrap() error { return e.err }

func nodeRemedy(err error) string {
	var failed nodeError
	switch {
	case apierrors.IsNotFound(err):
		return "see that nodeName (NODE_NAME) is the node's name, and that its kubelet has registered it"
	case errors.As(err, &failed):
		return remedy(err, failed.verbs)
	}
	return "look who writes the node so often"
}
