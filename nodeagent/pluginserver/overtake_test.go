package pluginserver_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/nodeagent/pluginserver"
)

func oneAtATime(c *pluginserver.Config) { c.MaxClients = 1 }

// ask writes a request and does not wait for its answer.
func ask(t *testing.T, conn net.Conn, r agentapi.Request) {
	t.Helper()
	r.Version = agentapi.Version
	line, err := json.Marshal(r)
	if err == nil {
		_, err = conn.Write(append(line, '\n'))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// answerOn reads what the server says, up to its end.
func answerOn(t *testing.T, conn net.Conn) string {
	t.Helper()
	answer, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(answer)
}

func container(id string) *agentapi.Attachment {
	a := attachment()
	a.ContainerID = id
	return a
}

// An agent that was stopped finds the ADDs of plugins that were killed meanwhile,
// and their DELs, whose plugins are gone too.
func TestDeadPluginsAfterAStall(t *testing.T) {
	p := &pods{}
	client, start, _ := stalled(t, p, oneAtATime)
	var want []string
	for _, verb := range []string{"add", "del"} {
		for i := range 60 {
			id := fmt.Sprintf("c%d", i)
			request := agentapi.Request{Add: container(id)}
			if verb == "del" {
				request = agentapi.Request{Del: container(id)}
				want = append(want, "del "+id)
			}
			conn := dial(t, client)
			ask(t, conn, request)
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	last := dial(t, client)
	ask(t, last, agentapi.Request{Check: container("c0")})
	start()
	if got := answerOn(t, last); strings.Contains(got, "error") {
		t.Error(got)
	}
	if want = append(want, "check c0"); !slices.Equal(p.heard(), want) {
		t.Errorf("asked %q, want %q", p.heard(), want)
	}
}

// The DEL of a sandbox is served before its ADD, whose plugin is orphaned and alive.
func TestDelBeforeItsAdd(t *testing.T) {
	p := &pods{}
	client, _ := serve(t, p)
	orphan := dial(t, client)
	for _, id := range []string{"c1", "other"} {
		if answer, err := client.Call(t.Context(), agentapi.Request{Del: container(id)}); err != nil || answer.Error != nil {
			t.Fatal(answer.Error, err)
		}
	}
	ask(t, orphan, agentapi.Request{Add: container("c1")})
	if got := answerOn(t, orphan); !strings.Contains(got, `"code":11,"message":"the runtime has deleted this sandbox already"`) {
		t.Errorf("answered %s", got)
	}
	// One that comes after the DEL is meant.
	if answer, err := client.Call(t.Context(), agentapi.Request{Add: container("c1")}); err != nil || answer.Error != nil {
		t.Error(answer.Error, err)
	}
	if want := []string{"del c1", "del other", "add c1"}; !slices.Equal(p.heard(), want) {
		t.Errorf("asked %q, want %q", p.heard(), want)
	}
}

// The DEL passes its ADD on the way to the reconciler, which finds nothing to delete
// and then carries the ADD out.
func TestDelPassesItsAdd(t *testing.T) {
	p := &pods{wait: true}
	client, stop := serve(t, p)
	conn := dial(t, client)
	ask(t, conn, agentapi.Request{Add: container("c1")})
	<-p.began
	if answer, err := client.Call(t.Context(), agentapi.Request{Del: container("c1")}); err != nil || answer.Error != nil {
		t.Fatal(answer.Error, err)
	}
	close(p.release)
	if got := answerOn(t, conn); !strings.Contains(got, `"code":11`) {
		t.Errorf("answered %s", got)
	}
	stop()
	if want := []string{"add c1", "del c1", "del c1"}; !slices.Equal(p.heard(), want) {
		t.Errorf("asked %q, want %q", p.heard(), want)
	}
}

// An ADD that nobody waits for any more does not undo what the next one relies on.
func TestANewerAddIsNotUndone(t *testing.T) {
	p := &pods{wait: true}
	client, stop := serve(t, p)
	dead, alive := dial(t, client), dial(t, client)
	ask(t, dead, agentapi.Request{Add: container("c1")})
	<-p.began
	ask(t, alive, agentapi.Request{Add: container("c1")})
	<-p.began
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-p.ended; !errors.Is(err, agentapi.ErrPeerGone) {
		t.Errorf("the dead plugin's ADD ended with %v", err)
	}
	close(p.release)
	if got := answerOn(t, alive); strings.Contains(got, "error") {
		t.Errorf("answered %s", got)
	}
	stop()
	if want := []string{"add c1", "add c1"}; !slices.Equal(p.heard(), want) {
		t.Errorf("asked %q, want %q", p.heard(), want)
	}
}
