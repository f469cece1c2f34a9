package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
)

// A remark is what a person who looks at a pod should know.
type remark struct {
	kind   string // Normal or Warning
	reason string
	note   string
}

// A recorder makes events of remarks. What it cannot send soon it drops: events are for
// people, and nothing rests on them.
type recorder struct {
	client  *Client
	node    string
	metrics *Metrics
	logger  *slog.Logger
	all     flowcontrol.RateLimiter
	outbox  chan occurrence

	mu      sync.Mutex
	series  map[seriesKey]*series
	limits  map[string]flowcontrol.RateLimiter // by the object's UID
	failing bool                               // and that was logged
}

type seriesKey struct{ uid, reason string }

// A series is an event that occurs again and again.
type series struct {
	event string // its name; empty: there is none yet
	count int32
	last  time.Time
}

type occurrence struct {
	pod *pod
	remark
	at time.Time
}

const (
	// A node's events, and a pod's, in a row and later on.
	nodeEvents, nodeEventsPerSecond = 25, 1
	podEvents, podEventsPerSecond   = 5, 1.0 / 60
	// seriesEnd is after how long the same remark is another event.
	seriesEnd = 10 * time.Minute

	maxNote      = 1000 // the API takes 1024 bytes
	maxEventName = 200  // of the pod's name, in the event's

	controller = "fairlead.io/agent"
)

func newRecorder(client *Client, node string, metrics *Metrics, logger *slog.Logger) *recorder {
	return &recorder{
		client: client, node: node, metrics: metrics, logger: logger, outbox: make(chan occurrence, nodeEvents),
		all:    flowcontrol.NewTokenBucketRateLimiter(nodeEventsPerSecond, nodeEvents),
		series: map[seriesKey]*series{}, limits: map[string]flowcontrol.RateLimiter{},
	}
}

// record takes in that something occurred to a pod. It does not block. Of what comes too
// often only the number is kept.
func (r *recorder) record(p *pod, what remark) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(r.series, func(_ seriesKey, s *series) bool { return now.Sub(s.last) > seriesEnd })
	key := seriesKey{p.UID, what.reason}
	s := r.series[key]
	if s == nil {
		s = &series{}
		r.series[key] = s
	}
	s.count++
	s.last = now
	limit := r.limits[p.UID]
	if limit == nil {
		limit = flowcontrol.NewTokenBucketRateLimiter(podEventsPerSecond, podEvents)
		r.limits[p.UID] = limit
	}
	if !limit.TryAccept() || !r.all.TryAccept() {
		r.metrics.dropped()
		return
	}
	select {
	case r.outbox <- occurrence{p, what, now}:
	default:
		r.metrics.dropped()
	}
}

// forget lets go of what is known of pods that are gone.
func (r *recorder) forget(known func(uid string) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.limits, func(uid string, _ flowcontrol.RateLimiter) bool { return !known(uid) })
}

// run sends until ctx is done.
func (r *recorder) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-r.outbox:
			r.sent(ctx, r.send(ctx, o))
		}
	}
}

// sent logs that events cannot be sent, once until one can be; not when the agent ends.
func (r *recorder) sent(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	r.metrics.sent(err)
	if err != nil && !r.failing {
		r.logger.Warn("cannot record events; this is not logged again until it succeeds", "error", err,
			"remedy", remedy(err, "create and patch events.k8s.io/events"))
	}
	r.failing = err != nil
}

// send makes a new event, or tells how often the old one has occurred by now.
func (r *recorder) send(ctx context.Context, o occurrence) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	r.mu.Lock()
	s := r.series[seriesKey{o.pod.UID, o.reason}]
	if s == nil {
		s = &series{}
	}
	event, count := s.event, s.count
	r.mu.Unlock()
	if event != "" {
		text, err := json.Marshal(map[string]any{"series": eventsv1.EventSeries{Count: count, LastObservedTime: metav1.NewMicroTime(o.at)}})
		if err != nil {
			return err
		}
		err = r.client.events.Patch(types.StrategicMergePatchType).
			Namespace(o.pod.Namespace).Resource("events").Name(event).Body(text).Do(ctx).Error()
		if !apierrors.IsNotFound(err) { // it may have been kept for long enough
			return err
		}
	}
	e := r.event(o)
	err := r.client.events.Post().Namespace(e.Namespace).Resource("events").Body(e).Do(ctx).Error()
	if err == nil {
		r.mu.Lock()
		s.event = e.Name
		r.mu.Unlock()
	}
	return err
}

func (r *recorder) event(o occurrence) *eventsv1.Event {
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: o.pod.Namespace,
			Name:      strings.TrimRight(o.pod.Name[:min(len(o.pod.Name), maxEventName)], ".-") + "." + strconv.FormatInt(o.at.UnixNano(), 16),
		},
		EventTime: metav1.NewMicroTime(o.at), ReportingController: controller, ReportingInstance: r.node,
		Action: "Capture", Type: o.kind, Reason: o.reason, Note: o.note,
		Regarding: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: o.pod.Namespace, Name: o.pod.Name, UID: types.UID(o.pod.UID)},
	}
}

// note is a remark's text, as much of it as an event holds.
func note(format string, args ...any) string {
	text := fmt.Sprintf(format, args...)
	if len(text) > maxNote {
		text = strings.ToValidUTF8(text[:maxNote], "") + "…"
	}
	return text
}
