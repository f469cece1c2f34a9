package plugin

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
)

func TestDelTellsTheAgentOnce(t *testing.T) {
	w := newWorld(t, "DEL")
	w.succeeds("")
	want := []agentapi.Request{{Version: 1, Del: &agentapi.Attachment{
		Namespace: "shop", Name: "web-0", UID: "6b1d-7", ContainerID: "c0ffee",
		Netns: "/run/netns/cni-1", Interface: "eth0",
	}}}
	if diff := cmp.Diff(want, w.agent.requests); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDelSucceeds(t *testing.T) {
	const whole, containerAlone, nothing = "whole", "container alone", "nothing"
	tests := map[string]struct {
		change func(*world)
		asks   string
	}{
		"agent absent":          {func(w *world) { w.agent.answer = always(nil, errAbsent) }, whole},
		"agent broken":          {func(w *world) { w.agent.answer = always(nil, errBroken) }, whole},
		"agent hanging":         {func(w *world) { w.agent.answer = hang }, whole},
		"agent fails":           {func(w *world) { w.agent.answer = always(&agentapi.Error{Code: 103, Message: "kernel"}, nil) }, whole},
		"agent talks nonsense":  {func(w *world) { w.agent.answer = always(nil, errors.New("nonsense")) }, whole},
		"no netns":              {func(w *world) { w.env("CNI_NETNS", "") }, whole},
		"netns gone":            {func(w *world) { w.checkNetns = func(string) error { return errors.New("gone") } }, whole},
		"no prevResult":         {func(w *world) { w.input(w.conf()) }, whole},
		"misspelt field":        {func(w *world) { w.input(w.conf(`"agentSock":"x"`)) }, whole},
		"no JSON":               {func(w *world) { w.input("{") }, whole},
		"empty":                 {func(w *world) { w.input("") }, whole},
		"old version":           {func(w *world) { w.input(w.confVersion("0.1.0")) }, whole},
		"no UID":                {func(w *world) { w.env("CNI_ARGS", "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0") }, whole},
		"contradicting args":    {func(w *world) { w.env("CNI_ARGS", "K8S_POD_NAME=a;K8S_POD_NAME=b") }, whole},
		"no interface":          {func(w *world) { w.env("CNI_IFNAME", "") }, whole},
		"netns is relative":     {func(w *world) { w.env("CNI_NETNS", "x") }, containerAlone},
		"pod has a strange UID": {func(w *world) { w.env("CNI_ARGS", "K8S_POD_NAME=a;K8S_POD_UID=/") }, containerAlone},
		"not a pod":             {func(w *world) { w.env("CNI_ARGS", "") }, nothing},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, "DEL")
				tt.change(w)
				begin := time.Now()
				w.succeeds("")
				if took := time.Since(begin); took > 2*time.Second {
					t.Errorf("took %v", took)
				}
				if tt.asks == nothing {
					w.asked(0)
					return
				}
				w.asked(1)
				del := w.agent.requests[0].Del
				if del.ContainerID != "c0ffee" {
					t.Errorf("asked %+v", del)
				}
				if alone := del.Interface+del.Netns+del.Name == ""; alone != (tt.asks == containerAlone) {
					t.Errorf("asked %+v, want %s", del, tt.asks)
				}
			})
		})
	}
}

func TestDelWithoutAContainerAsksNothingOfUse(t *testing.T) {
	w := newWorld(t, "DEL")
	w.env("CNI_CONTAINERID", "")
	w.succeeds("")
}

func TestDelSaysThatTheAgentDidNotHear(t *testing.T) {
	w := newWorld(t, "DEL")
	w.agent.answer = always(nil, errAbsent)
	w.succeeds("")
	if !strings.Contains(w.stderr.String(), "deleted without the agent") || !strings.Contains(w.logged(), "deleted without the agent") {
		t.Errorf("stderr: %s", &w.stderr)
	}
}
