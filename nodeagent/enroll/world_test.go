package enroll

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/config"
	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/proxylink"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// A world is a Reconciler among fakes that behave: namespaces that hold rules, a
// proxy that answers. All that is done to them stands in log, in order.
type world struct {
	t    *testing.T
	r    *Reconciler
	ctx  context.Context // the agent's
	stop func()          // the agent ends

	logged netlab.Log // the agent's own log

	mu               sync.Mutex
	log              []string
	steps, killAfter int
	dead             bool

	places

	exempt   map[string]string // the addresses by UID
	noProbes error             // why no probes can be exempted

	installed time.Time
	reported  func(status.Pod) // nil: nobody is told

	existing intent.Existing

	advertised bool // what the API shows of each pod

	unsynced bool
	unread   status.Reason         // what keeps the source from knowing
	hidden   bool                  // the source does not know the namespaces of its pods
	full     error                 // why no record can be written
	objects  map[string]intent.Pod // by namespace/name
	records  map[string]Record     // by UID
	saves    int                   // of records
	spaces   map[string]*space     // by path
	answer   proxylink.State       // what the proxy says of what is announced now
	text     string
	held     map[string]proxylink.State // what the proxy says of each workload
}

// inWorld runs story with a running Reconciler and a clock of its own.
func inWorld(t *testing.T, story func(*world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			t: t, answer: proxylink.Acked,
			exempt: map[string]string{}, objects: map[string]intent.Pod{}, records: map[string]Record{}, spaces: map[string]*space{}, held: map[string]proxylink.State{},
		}
		w.start()
		story(w)
		w.stop()
		w.mu.Lock()
		defer w.mu.Unlock()
		for path, s := range w.spaces {
			if s.open != 0 {
				t.Errorf("namespace %s is still held %d times", path, s.open)
			}
		}
	})
}

// start runs an agent.
func (w *world) start() {
	c := config.Default()
	c.ExistingConnections = w.existing
	policy, err := c.Policy()
	if err != nil {
		w.t.Fatal(err)
	}
	w.r, err = New(Config{
		Policy: policy,
		Source: w, Unread: w.cannotRead, Proxies: w, Probes: probes{w}, Records: w, Find: w.find, Gone: w.gone, Open: w.open, Search: w.search,
		Installed: func() time.Time { return w.installed }, Reported: w.reported, Advertised: w.advertises,
		PodWait: 5 * time.Second, ProxyWait: 5 * time.Second, AckWait: 5 * time.Second,
		ReleaseGrace: 5 * time.Second, DrainTimeout: 30 * time.Second, SweepInterval: 10 * time.Second,
		Workers: 2, Metrics: NewMetrics(prometheus.NewRegistry()), Logger: slog.New(slog.NewTextHandler(&w.logged, nil)),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	w.ctx = ctx
	done := make(chan error)
	go func() { done <- w.r.Run(ctx) }()
	synctest.Wait()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
}

// restart ends the agent, which has no time to do anything, and runs the next one.
// The proxy's connection is gone with the old agent; what the new one's snapshot
// does not name it stops.
func (w *world) restart() {
	w.stop()
	w.mu.Lock()
	before := w.held
	w.held, w.dead, w.steps, w.killAfter = map[string]proxylink.State{}, false, 0, 0
	w.log = nil
	w.mu.Unlock()
	w.start()
	<-w.r.Adopted()
	w.mu.Lock()
	defer w.mu.Unlock()
	for uid := range before {
		if _, named := w.held[uid]; !named {
			w.note("the snapshot stops %s", uid)
		}
	}
}

// errDead is what an agent gets that has been killed: nothing of what it still does
// has an effect.
var errDead = errors.New("killed")

// step counts what changes the world, and kills the agent after killAfter of them.
// w.mu is held.
func (w *world) step() error {
	w.steps++
	if w.killAfter > 0 && w.steps > w.killAfter {
		w.dead = true
	}
	if w.dead {
		return errDead
	}
	return nil
}

// object puts a pod of namespace shop into the source, or changes it.
func (w *world) object(name string, labelled bool, change ...func(*intent.Pod)) {
	p := intent.Pod{Namespace: "shop", Name: name, ServiceAccount: "sa", Labels: map[string]string{}}
	if labelled {
		p.Labels[intent.LabelMode] = intent.ModeAmbient
	}
	for _, c := range change {
		c(&p)
	}
	w.mu.Lock()
	w.objects["shop/"+name] = p
	w.mu.Unlock()
	w.r.Wake("")
	synctest.Wait()
}

func (w *world) forget(name string) {
	w.mu.Lock()
	delete(w.objects, "shop/"+name)
	w.mu.Unlock()
	w.r.Wake("")
	synctest.Wait()
}

// sandboxOf is the attachment of a pod's sandbox; its UID is "uid-NAME".
func sandboxOf(name, container string) agentapi.Attachment {
	return agentapi.Attachment{
		Namespace: "shop", Name: name, UID: "uid-" + name, ContainerID: container,
		Netns: "/run/netns/" + container, Interface: "eth0",
	}
}

func (w *world) add(name, container string) error {
	return w.r.Add(w.t.Context(), sandboxOf(name, container))
}

// addLater begins an ADD and returns where its answer will be.
func (w *world) addLater(ctx context.Context, name, container string) <-chan error {
	answer := make(chan error, 1)
	go func() { answer <- w.r.Add(ctx, sandboxOf(name, container)) }()
	synctest.Wait()
	return answer
}

func (w *world) del(name, container string) {
	w.t.Helper()
	if err := w.r.Del(w.t.Context(), sandboxOf(name, container)); err != nil {
		w.t.Errorf("DEL: %v", err)
	}
	synctest.Wait()
}

// pass lets time go by.
func (w *world) pass(d time.Duration) {
	<-time.After(d) // the bubble's clock
	synctest.Wait()
}

// proxySays changes what the proxy answers, for what is announced already too.
func (w *world) proxySays(s proxylink.State, text string) {
	w.mu.Lock()
	w.answer, w.text = s, text
	for uid := range w.held {
		w.held[uid] = s
	}
	w.mu.Unlock()
	w.r.Wake("")
	synctest.Wait()
}

// done returns what was done since it was last asked.
func (w *world) done() string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	text := strings.Join(w.log, "\n")
	w.log = nil
	return text
}

func (w *world) wantDone(want ...string) {
	w.t.Helper()
	if got := w.done(); got != strings.Join(want, "\n") {
		w.t.Errorf("was done:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}
}

// state is the whole world as text.
func (w *world) state() string {
	synctest.Wait()
	var lines []string
	for _, p := range w.r.Report() {
		lines = append(lines, fmt.Sprintf("%s %s %s", p.Name, p.State, p.Reason))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, path := range slices.Sorted(maps.Keys(w.spaces)) {
		if s := w.spaces[path]; s.rules != "" {
			lines = append(lines, fmt.Sprintf("%s has %s", path, s.rules))
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(w.held)) {
		lines = append(lines, fmt.Sprintf("proxy has %s %s", uid, w.held[uid]))
	}
	return strings.Join(lines, "\n")
}

func (w *world) wantState(want ...string) {
	w.t.Helper()
	if got := w.state(); got != strings.Join(want, "\n") {
		w.t.Errorf("state:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}
}

func wantFailure(t *testing.T, err error, reason status.Reason, says string) {
	t.Helper()
	var f *Failure
	if !errors.As(err, &f) || f.Reason != reason || !strings.Contains(f.Message, says) {
		t.Errorf("got %v, want %s that says %q", err, reason, says)
	}
}

func (w *world) note(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

// The world as Records, which survive the agent.

func (w *world) Load() ([]Record, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Values(w.records)), nil
}

func (w *world) Save(r Record) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := cmp.Or(w.full, w.step()); err != nil {
		return err
	}
	w.saves++
	w.records[r.Attachment.UID] = r
	return nil
}

func (w *world) Has(uid string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.records[uid]
	return ok
}

func (w *world) Delete(uid string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.step(); err != nil {
		return err
	}
	delete(w.records, uid)
	return nil
}

// The world as Proxies: one proxy that answers at once, or not at all.

func (w *world) Announce(l proxylink.Workload) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.step() != nil {
		return
	}
	w.note("announce %s as %s/%s of %s", l.UID, l.Namespace, l.Name, l.ServiceAccount)
	w.held[l.UID] = w.answer
}

func (w *world) Keep(uid string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.held[uid]; !ok {
		w.note("keep %s", uid)
		w.held[uid] = proxylink.Kept
	}
}

func (w *world) Withdraw(uid string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.held[uid]; ok && w.step() == nil {
		w.note("withdraw %s", uid)
		delete(w.held, uid)
	}
}

func (w *world) Verdict(uid string) proxylink.Verdict {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, ok := w.held[uid]
	if !ok {
		return proxylink.Verdict{State: proxylink.Gone}
	}
	v := proxylink.Verdict{State: s, Proxy: "pid 7", Text: w.text}
	if s != proxylink.NoProxy {
		v.Acks = []proxylink.Ack{{Session: 1, PID: 7, State: s, Text: w.text}}
	}
	return v
}
