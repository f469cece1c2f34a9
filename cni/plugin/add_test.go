package plugin

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
)

func TestAddTellsTheAgent(t *testing.T) {
	w := newWorld(t, "ADD")
	w.succeeds(prevResult)
	want := []agentapi.Request{{Version: 1, Add: &agentapi.Attachment{
		Namespace: "shop", Name: "web-0", UID: "6b1d-7", ContainerID: "c0ffee",
		Netns: "/run/netns/cni-1", Interface: "eth0",
		IPs: []netip.Addr{netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("fd00::3")},
	}}}
	if diff := cmp.Diff(want, w.agent.requests, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAddPassesTheAgentsErrorOn(t *testing.T) {
	w := newWorld(t, "ADD")
	w.agent.answer = always(&agentapi.Error{Code: agentapi.CodeProxyRefused, Message: "the proxy refused it", Details: "bind: address in use; remove hostPort"}, nil)
	got := w.fails(agentapi.CodeProxyRefused)
	want := types.Error{Code: 102, Msg: "pod shop/web-0: the proxy refused it", Details: "bind: address in use; remove hostPort"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	w.asked(1)
	if n := strings.Count(w.logged(), "\n"); n != 1 {
		t.Errorf("the error is logged in %d lines", n)
	}
}

func TestAddRefusesBeforeAsking(t *testing.T) {
	tests := map[string]struct {
		change func(*world)
		code   uint
		says   string
	}{
		"misspelt field": {func(w *world) { w.input(w.conf(`"prevResult":{}`, `"allowWithoutAgents":[]`)) },
			types.ErrInvalidNetworkConfig, `unknown field ["allowWithoutAgents"]`},
		"no prevResult":   {func(w *world) { w.input(w.conf()) }, types.ErrInvalidNetworkConfig, "after the plugin that makes the interface"},
		"null prevResult": {func(w *world) { w.input(w.conf(`"prevResult":null`)) }, types.ErrInvalidNetworkConfig, "there is no prevResult"},
		"prevResult of no kind": {func(w *world) { w.input(w.conf(`"prevResult":7`)) },
			types.ErrInvalidNetworkConfig, "cannot read prevResult"},
		"prevResult of a version unheard of": {func(w *world) { w.input(w.conf(`"prevResult":{"cniVersion":"9.0.0"}`)) },
			types.ErrInvalidNetworkConfig, `unsupported CNI result version "9.0.0"`},
		"prevResult with a bad address": {func(w *world) { w.input(w.conf(`"prevResult":{"ips":[{"address":"10.0.0.1"}]}`)) },
			types.ErrInvalidNetworkConfig, "cannot read prevResult"},
		"pod without a name":      {func(w *world) { w.env("CNI_ARGS", "K8S_POD_NAMESPACE=shop") }, types.ErrInvalidEnvironmentVariables, "no K8S_POD_NAME"},
		"pod without a namespace": {func(w *world) { w.env("CNI_ARGS", "K8S_POD_NAME=web-0") }, types.ErrInvalidEnvironmentVariables, "no K8S_POD_NAMESPACE"},
		"pod without a UID":       {func(w *world) { w.env("CNI_ARGS", "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0") }, types.ErrInvalidEnvironmentVariables, "containerd passes it since 1.5.3"},
		"UID that is a path":      {func(w *world) { w.env("CNI_ARGS", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;K8S_POD_UID=../x") }, types.ErrInvalidEnvironmentVariables, `uid "../x"`},
		"version unheard of":      {func(w *world) { w.input(w.confVersion("0.2.0")) }, types.ErrIncompatibleCNIVersion, "incompatible CNI versions"},
		"configuration cut off":   {func(w *world) { w.input(`{"name":`) }, types.ErrDecodingFailure, "unexpected end of JSON"},
		"no container id":         {func(w *world) { w.env("CNI_CONTAINERID", "") }, types.ErrInvalidEnvironmentVariables, "CNI_CONTAINERID"},
		"bad namespace, everything": {func(w *world) {
			w.checkNetns = func(string) error { return errors.New("/x is the host's own") }
			w.input("{")
		}, agentapi.CodeNamespace, "/x is the host's own"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "ADD")
			tt.change(w)
			w.fails(tt.code, tt.says)
			w.asked(0)
		})
	}
}

func TestWhatIsNoPodIsPassedOn(t *testing.T) {
	for _, args := range []string{"", "IgnoreUnknown=1", "FOO=BAR;K8S_POD_UID=x;;"} {
		for command, out := range map[string]string{"ADD": prevResult, "CHECK": ""} {
			w := newWorld(t, command)
			w.env("CNI_ARGS", args)
			w.succeeds(out)
			w.asked(0)
		}
	}
}

func TestAddFindsAnAgentThatComesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "ADD")
		begin := time.Now()
		w.agent.answer = func(context.Context, int) (*agentapi.Error, error) {
			if time.Since(begin) < 4900*time.Millisecond {
				return nil, errAbsent
			}
			return nil, nil
		}
		w.succeeds(prevResult)
		if took := time.Since(begin); took > 4900*time.Millisecond+maxPause {
			t.Errorf("found after %v", took)
		}
	})
}

func TestAddGivesUpOnAnAbsentAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "ADD")
		w.agent.answer = always(nil, errAbsent)
		begin := time.Now()
		w.fails(agentapi.CodeNoAgent, "pod shop/web-0 cannot start", "is not running", "; waited 5s; ", "if none is meant to run here any more, run fairlead uninstall, ", "agent.sock", "connection refused",
			"; waited 5s; ", "cni.log", "only pods of kube-system, fairlead-system start without it")
		if took := time.Since(begin); took > 5*time.Second || took < 5*time.Second-maxPause {
			t.Errorf("gave up after %v, want 5 s", took)
		}
	})
}

func TestAddSaysWhenTheAgentWasLastSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "ADD")
		if err := os.WriteFile(agentapi.LockFile(w.socket), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		seen := time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC)
		if err := os.Chtimes(agentapi.LockFile(w.socket), seen, seen); err != nil {
			t.Fatal(err)
		}
		w.agent.answer = always(nil, errAbsent)
		w.fails(agentapi.CodeNoAgent, "is not running (last seen 2031-05-06T07:08:09Z)")
	})
}

func TestAddRepeatsWhatBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "ADD")
		begin := time.Now()
		w.agent.answer = func(_ context.Context, n int) (*agentapi.Error, error) {
			switch since := time.Since(begin); {
			case n == 0:
				<-time.After(3 * time.Second) // killed while it works
				return nil, errBroken
			case since < 7900*time.Millisecond: // replaced, more than 5 s after ADD began
				return nil, errAbsent
			}
			return nil, nil
		}
		w.succeeds(prevResult)
		first := w.agent.requests[0]
		for _, req := range w.agent.requests[1:] {
			if diff := cmp.Diff(first, req, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Fatalf("repeated with a difference:\n%s", diff)
			}
		}
	})
}

func TestAddEndsAfterTenSeconds(t *testing.T) {
	tests := map[string]func(context.Context, int) (*agentapi.Error, error){
		"hanging":       hang,
		"always broken": always(nil, errBroken),
		"late, and hangs": func(ctx context.Context, n int) (*agentapi.Error, error) {
			if n < 10 {
				return nil, errAbsent
			}
			return hang(ctx, n)
		},
	}
	for name, answer := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, "ADD")
				w.agent.answer = answer
				begin := time.Now()
				w.fails(agentapi.CodeNoAgent, "does not answer", "waited 10s")
				if took := time.Since(begin); took != 10*time.Second {
					t.Errorf("gave up after %v, want 10 s", took)
				}
			})
		})
	}
}

func TestAnAnswerThatIsNoneIsNotAskedForAgain(t *testing.T) {
	w := newWorld(t, "ADD")
	w.agent.answer = always(nil, errors.New("cannot decode the agent's answer: invalid character"))
	w.fails(agentapi.CodeNoAgent, "does not answer", "cannot decode")
	w.asked(1)
}

func TestAllowWithoutAgent(t *testing.T) {
	tests := map[string]struct {
		field, namespace string
		passes           bool
	}{
		"default, kube-system":     {"", "kube-system", true},
		"default, the agent's own": {"", "fairlead-system", true},
		"default, another":         {"", "shop", false},
		"named":                    {`"allowWithoutAgent":["infra"]`, "infra", true},
		"named, not the default":   {`"allowWithoutAgent":["infra"]`, "kube-system", false},
		"none":                     {`"allowWithoutAgent":[]`, "kube-system", false},
	}
	for name, tt := range tests {
		for failure, answer := range map[string]func(context.Context, int) (*agentapi.Error, error){
			"absent": always(nil, errAbsent), "hanging": hang,
		} {
			t.Run(name+", "+failure, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, "ADD")
					w.env("CNI_ARGS", "K8S_POD_NAMESPACE="+tt.namespace+";K8S_POD_NAME=p;K8S_POD_UID=u")
					fields := []string{`"prevResult":` + prevResult}
					if tt.field != "" {
						fields = append(fields, tt.field)
					}
					w.input(w.conf(fields...))
					w.agent.answer = answer
					if !tt.passes {
						w.fails(agentapi.CodeNoAgent)
						return
					}
					w.succeeds(prevResult)
					if log := w.logged(); !strings.Contains(log, "passed on without the agent") {
						t.Errorf("not logged:\n%s", log)
					}
				})
			})
		}
	}
}

func TestTheAgentsWordCountsForAllowedNamespacesToo(t *testing.T) {
	w := newWorld(t, "ADD")
	w.env("CNI_ARGS", "K8S_POD_NAMESPACE=kube-system;K8S_POD_NAME=p;K8S_POD_UID=u")
	w.agent.answer = always(&agentapi.Error{Code: agentapi.CodeNoProxy, Message: "no proxy"}, nil)
	w.fails(agentapi.CodeNoProxy, "no proxy")
}

func TestCheck(t *testing.T) {
	w := newWorld(t, "CHECK")
	w.succeeds("")
	if len(w.agent.requests) != 1 || w.agent.requests[0].Check == nil {
		t.Errorf("asked %+v", w.agent.requests)
	}

	w = newWorld(t, "CHECK")
	w.agent.answer = always(&agentapi.Error{Code: agentapi.CodeKernel, Message: "a rule is missing"}, nil)
	w.fails(agentapi.CodeKernel, "a rule is missing")

	w = newWorld(t, "CHECK")
	w.input(w.conf())
	w.fails(types.ErrInvalidNetworkConfig, "there is no prevResult")

	w = newWorld(t, "CHECK")
	w.checkNetns = func(string) error { return errors.New("it is gone") }
	w.fails(agentapi.CodeNamespace, "it is gone")
}
