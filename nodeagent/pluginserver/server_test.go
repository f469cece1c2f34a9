package pluginserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/nodeagent/enroll"
	"github.com/fairlead-mesh/fairlead/nodeagent/pluginserver"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pods is a reconciler that says what the test wants.
type pods struct {
	mu      sync.Mutex
	asked   []string
	answers map[string]error // by verb
	wait    bool             // ADD waits for the end of its context, or for release
	release chan struct{}
	began   chan struct{} // an ADD has come
	ended   chan error    // how the waiting ADD's context ended
	report  []status.Pod
}

func (p *pods) ask(verb string, a agentapi.Attachment) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, verb+" "+a.ContainerID)
	return p.answers[verb]
}

// heard is what has been asked for so far.
func (p *pods) heard() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

func (p *pods) Add(ctx context.Context, a agentapi.Attachment) error {
	err := p.ask("add", a)
	p.began <- struct{}{}
	if p.wait {
		select {
		case <-ctx.Done():
		case <-p.release:
		}
		p.ended <- context.Cause(ctx)
	}
	return err
}

func (p *pods) Del(_ context.Context, a agentapi.Attachment) error   { return p.ask("del", a) }
func (p *pods) Check(_ context.Context, a agentapi.Attachment) error { return p.ask("check", a) }
func (p *pods) GC(_ context.Context, valid []string) error {
	return p.ask("gc", agentapi.Attachment{ContainerID: strings.Join(valid, ",")})
}
func (p *pods) Drain(_ context.Context, on bool) error {
	return p.ask(fmt.Sprintf("drain %t", on), agentapi.Attachment{})
}
func (p *pods) Uninstall(_ context.Context, done func(status.Step) error) error {
	return errors.Join(done(status.Step{What: "the list", Outcome: status.Removed}), p.ask("uninstall", agentapi.Attachment{}))
}
func (p *pods) Report() []status.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.report
}

// serve runs a server and returns a client of it, and what ends it.
func serve(t *testing.T, p *pods, change ...func(*pluginserver.Config)) (agentapi.Client, func()) {
	t.Helper()
	client, start, stop := stalled(t, p, change...)
	start()
	return client, stop
}

// stalled returns a client of a server that listens, and serves once it is started.
func stalled(t *testing.T, p *pods, change ...func(*pluginserver.Config)) (client agentapi.Client, start, stop func()) {
	t.Helper()
	if p.answers == nil {
		p.answers = map[string]error{}
	}
	p.began, p.ended, p.release = make(chan struct{}, 100), make(chan error, 1), make(chan struct{})
	c := pluginserver.Config{
		Pods: p, Node: func() status.Node { return status.Node{Version: "v1", Synced: true} },
		Leaver: p, RequestTimeout: 10 * time.Second, MaxClients: 8, Logger: slog.New(slog.DiscardHandler),
	}
	for _, f := range change {
		f(&c)
	}
	s, err := pluginserver.New(c)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := agentapi.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(stop)
	return agentapi.Client{Socket: socket}, func() { go func() { done <- s.Run(ctx, l) }() }, stop
}

func attachment() *agentapi.Attachment {
	return &agentapi.Attachment{Namespace: "shop", Name: "web", UID: "u1", ContainerID: "c1", Netns: "/run/netns/c1", Interface: "eth0"}
}

func TestVerbs(t *testing.T) {
	p := &pods{}
	client, _ := serve(t, p)
	for _, request := range []agentapi.Request{{Add: attachment()}, {Check: attachment()}, {Del: attachment()}} {
		answer, err := client.Call(t.Context(), request)
		if err != nil || answer.Error != nil {
			t.Errorf("%+v: %v, %v", request, answer.Error, err)
		}
	}
	if want := []string{"add c1", "check c1", "del c1"}; !slices.Equal(p.asked, want) {
		t.Errorf("asked %q, want %q", p.asked, want)
	}
}

// listedCodes are the codes of the reasons as status/REASONS.md has them.
func listedCodes(t *testing.T) map[status.Reason]uint {
	t.Helper()
	text, err := os.ReadFile("../status/REASONS.md")
	if err != nil {
		t.Fatal(err)
	}
	codes := map[status.Reason]uint{}
	for _, row := range regexp.MustCompile(`(?m)^\| (\d+) \| (.*) \|$`).FindAllStringSubmatch(string(text), -1) {
		code, err := strconv.ParseUint(row[1], 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(row[2], -1) {
			codes[status.Reason(word[1])] = uint(code)
		}
	}
	return codes
}

func TestReasonsBecomeCodes(t *testing.T) {
	want := listedCodes(t)
	if len(want) < 15 {
		t.Errorf("REASONS.md lists %d codes of reasons", len(want))
	}
	want["NobodyThoughtOfIt"] = agentapi.CodeInternal
	for reason, code := range want {
		t.Run(string(reason), func(t *testing.T) {
			p := &pods{answers: map[string]error{"add": fmt.Errorf("wrapped: %w", &enroll.Failure{Reason: reason, Message: "bind: address in use"})}}
			client, _ := serve(t, p)
			answer, err := client.Call(t.Context(), agentapi.Request{Add: attachment()})
			if err != nil {
				t.Fatal(err)
			}
			e := answer.Error
			if e == nil || e.Code != code || e.Message != "bind: address in use" {
				t.Fatalf("got %+v, want code %d", e, code)
			}
			if !strings.HasPrefix(e.Details, string(reason)) || !strings.HasSuffix(e.Details, reason.Remedy()) {
				t.Errorf("details %q do not give reason and remedy", e.Details)
			}
		})
	}
}

// An agent that is stopping says nothing: the plugin asks the next one.
func TestNoAnswerWhileStopping(t *testing.T) {
	client, _ := serve(t, &pods{answers: map[string]error{"add": errors.New("the agent is stopping")}})
	if _, err := client.Call(t.Context(), agentapi.Request{Add: attachment()}); !errors.Is(err, agentapi.ErrBroken) {
		t.Errorf("got %v, want a broken connection", err)
	}
}

func TestThePluginGoesAway(t *testing.T) {
	p := &pods{wait: true}
	client, stop := serve(t, p)
	ctx, cancel := context.WithCancel(t.Context())
	called := make(chan error)
	go func() {
		_, err := client.Call(ctx, agentapi.Request{Add: attachment()})
		called <- err
	}()
	<-p.began
	cancel()
	if err := <-called; err == nil {
		t.Error("a cancelled call succeeded")
	}
	if err := <-p.ended; !errors.Is(err, agentapi.ErrPeerGone) {
		t.Errorf("the ADD ended with %v", err)
	}
	stop()
	if want := []string{"add c1", "del c1"}; !slices.Equal(p.heard(), want) {
		t.Errorf("asked %q, want %q: nobody has heard of the success", p.heard(), want)
	}
}

func TestTheAgentEnds(t *testing.T) {
	p := &pods{wait: true, answers: map[string]error{"add": errors.New("the agent is stopping")}}
	client, stop := serve(t, p)
	called := make(chan error)
	go func() {
		_, err := client.Call(t.Context(), agentapi.Request{Add: attachment()})
		called <- err
	}()
	<-p.began
	stop()
	if err := <-called; !errors.Is(err, agentapi.ErrBroken) {
		t.Errorf("got %v", err)
	}
	if err := <-p.ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the ADD ended with %v", err)
	}
}

func TestStatus(t *testing.T) {
	p := &pods{report: []status.Pod{{Name: "a"}, {Name: "b"}}}
	client, _ := serve(t, p)
	var lines []string
	err := client.Stream(t.Context(), agentapi.Request{Status: &agentapi.StatusRequest{}}, func(line json.RawMessage) error {
		lines = append(lines, string(line))
		return nil
	})
	if err != nil || len(lines) != 3 {
		t.Fatalf("%d lines, %v", len(lines), err)
	}
	for i, want := range []string{`"version":"v1"`, `"name":"a"`, `"name":"b"`} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("line %d is %s, want it to hold %s", i, lines[i], want)
		}
	}
}

// Whatever is in a pod or in the head of the report, the others are shown.
func TestStatusOfAnySize(t *testing.T) {
	lines := slices.Repeat([]string{strings.Repeat("\x01", 5000)}, 600)
	var acks []status.Ack
	for range 100 {
		acks = append(acks, status.Ack{State: "acked", Text: strings.Repeat("\x01", 1000)})
	}
	p := &pods{report: []status.Pod{
		{Name: "a"},
		{Name: "b", State: status.Blocked, Reason: status.ProxyRefused, Message: strings.Repeat("x", agentapi.MaxMessage), Proxies: acks},
		{Name: "c", Intent: status.Intent{Warnings: slices.Repeat([]string{"w"}, 20000)}},
	}}
	client, _ := serve(t, p, func(c *pluginserver.Config) {
		c.Node = func() status.Node { return status.Node{Version: "v1", Problems: lines} }
	})
	var items []json.RawMessage
	err := client.Stream(t.Context(), agentapi.Request{Status: &agentapi.StatusRequest{}}, func(line json.RawMessage) error {
		items = append(items, slices.Clone(line))
		return nil
	})
	if err != nil || len(items) != 4 {
		t.Fatalf("%d lines, %v", len(items), err)
	}
	var node status.Node
	if err := json.Unmarshal(items[0], &node); err != nil || node.Version != "v1" || len(node.Problems) == 0 ||
		!strings.Contains(node.Problems[len(node.Problems)-1], "shortened") {
		t.Errorf("the head is %.300s, %v", items[0], err)
	}
	var got [3]status.Pod
	for i := range got {
		if err := json.Unmarshal(items[1+i], &got[i]); err != nil || got[i].Name != p.report[i].Name {
			t.Fatalf("pod %d is %.300s, %v", i, items[1+i], err)
		}
	}
	if b := got[1]; b.State != status.Blocked || b.Reason != status.ProxyRefused || len(b.Intent.Warnings) != 1 || !strings.Contains(b.Intent.Warnings[0], "shortened") {
		t.Errorf("what does not fit is sent as %+v", b)
	}
	if w := got[2].Intent.Warnings; len(w) != 21 || w[20] != "… 19980 more" {
		t.Errorf("%d warnings", len(w))
	}
}

func dial(t *testing.T, client agentapi.Client) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", client.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // some tests have closed it
	return conn
}

// send writes raw bytes and returns all that comes back.
func send(t *testing.T, client agentapi.Client, text string) string {
	t.Helper()
	conn := dial(t, client)
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		t.Logf("reading the answer: %v", err) // the server may cut us off
	}
	return string(answer)
}

func TestNonsense(t *testing.T) {
	p := &pods{}
	client, _ := serve(t, p)
	for text, want := range map[string]string{
		"hello\n":                                  "cannot decode",
		`{"version":2,"add":{}}` + "\n":            "version",
		`{"version":1}` + "\n":                     "invalid request",
		`{"version":1,"status":{},"x":1}` + "\n":   `unknown field \"x\"`,
		strings.Repeat("x", agentapi.MaxMessage+1): "longer than",
	} {
		if got := send(t, client, text); !strings.Contains(got, want) || !strings.Contains(got, `"code":6`) {
			t.Errorf("%.40q is answered with %q, want code 6 and %q", text, got, want)
		}
	}
	if len(p.asked) != 0 {
		t.Errorf("nonsense got through: %q", p.asked)
	}
}

func TestSilentClientsAreCutOff(t *testing.T) {
	for name, said := range map[string]string{"nothing": "", "a part": `{"version"`} {
		t.Run(name, func(t *testing.T) {
			client, _ := serve(t, &pods{}, func(c *pluginserver.Config) { c.RequestTimeout = time.Hour })
			silent := dial(t, client)
			if _, err := io.WriteString(silent, said); err != nil {
				t.Fatal(err)
			}
			if n, err := silent.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
				t.Errorf("the silent client was not cut off: %d, %v", n, err)
			}
		})
	}
}

func TestSilentClientsHoldNobodyUp(t *testing.T) {
	client, _ := serve(t, &pods{}, func(c *pluginserver.Config) { c.MaxClients = 2 })
	var silent []net.Conn
	for range 200 {
		silent = append(silent, dial(t, client))
	}
	if answer, err := client.Call(t.Context(), agentapi.Request{Add: attachment()}); err != nil || answer.Error != nil {
		t.Errorf("behind silent clients: %v, %v", answer.Error, err)
	}
	for i, c := range silent {
		if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("silent client %d was not cut off: %d, %v", i, n, err)
		}
	}
}

func TestNewRefusesWhatIsMissing(t *testing.T) {
	if _, err := pluginserver.New(pluginserver.Config{}); err == nil {
		t.Error("an empty configuration is accepted")
	}
}
