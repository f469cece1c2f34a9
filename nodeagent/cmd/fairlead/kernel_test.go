package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/config"
	"github.com/fairlead-mesh/fairlead/nodeagent/enroll"
)

// It is tried until it works, and never again. What says nothing about the kernel is named,
// and holds nothing up.
func TestTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		answers := []error{errors.New("no nft_redir"), errors.New("no nft_redir"), fmt.Errorf("%w: no namespace", enroll.ErrNotTried), nil, errors.New("not to be asked")}
		trial := newTrial(func(context.Context) error {
			err := answers[0]
			answers = answers[1:]
			return err
		}, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}})))
		select {
		case <-trial.once:
			t.Error("it is said to have been tried")
		default:
		}
		done := make(chan error, 1)
		go func() { done <- trial.run(t.Context()) }()
		var got []string
		for range 3 {
			synctest.Wait()
			got = append(got, fmt.Sprintf("problem: %v; refusal: %v", trial.problem(), trial.refusal()))
			<-time.After(trialPause)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		<-time.After(2 * trialPause)
		if len(answers) != 1 {
			t.Errorf("it works, and is tried again")
		}
		<-trial.once
		got = append(got, fmt.Sprintf("problem: %v; refusal: %v", trial.problem(), trial.refusal()))
		const refused = "pods that ask for capture may not start on this node: no nft_redir; it is tried again every 30s"
		want := []string{
			"problem: " + refused + "; refusal: " + refused,
			"problem: " + refused + "; refusal: " + refused,
			"problem: pods that ask for capture may not start on this node: cannot try whether pods can be captured: no namespace; it is tried again every 30s; refusal: <nil>",
			"problem: <nil>; refusal: <nil>",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		const logged = `level=ERROR msg="pods that ask for capture may not start on this node" error="no nft_redir"
level=ERROR msg="pods that ask for capture may not start on this node" error="cannot try whether pods can be captured: no namespace"
level=INFO msg="the kernel can do what the capture of a pod needs"
`
		if diff := cmp.Diff(logged, log.String()); diff != "" {
			t.Errorf("logged (-want +got)\n%s", diff)
		}
	})
}

// On a node whose kernel lacks something the agent does its work and says that it is not
// ready, everywhere, until the kernel has it.
func TestAgentOnAKernelThatLacksSomething(t *testing.T) {
	netlab.Kernel(t)
	api := &nodeServer{node: corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}}}
	api.birth()
	server := httptest.NewServer(api)
	t.Cleanup(func() {
		server.CloseClientConnections() // watches last
		server.Close()
	})
	_, file := settings(t, "nodeName: node1", "kubeconfig: "+kubeconfig(t, server.URL), "node: {taint: remove, condition: true}")
	c, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	a, err := newAgent(c, "", false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	const lacks = "the kernel needs redirects (module nft_redir, Linux 5.2)"
	var loaded atomic.Bool
	try := a.kernel.try
	a.kernel.pause = time.Millisecond
	a.kernel.try = func(ctx context.Context) error {
		if !loaded.Load() {
			return errors.New(lacks)
		}
		return try(ctx)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- a.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if !closed(t.Context(), a.announced) || !closed(t.Context(), a.kernel.once) {
		t.Fatal("the agent did not get as far as to be there for the runtime")
	}
	for _, err := range []error{a.ready(), errors.New(strings.Join(a.node().Problems, "\n"))} {
		if err == nil || !strings.Contains(err.Error(), lacks) {
			t.Errorf("got %v, want it to name %q", err, lacks)
		}
	}
	if reason, err := a.nodeReady(); reason != "KernelUnsupported" || err == nil {
		t.Errorf("the node is %s: %v", reason, err)
	}
	api.staysUntil(t, 1)
	loaded.Store(true)
	netlab.Eventually(t, a.ready)
	api.became(t, "", "fairlead.io/Ready=True (OK)")
	if reason, err := a.nodeReady(); reason != "OK" || err != nil {
		t.Errorf("the node is %s: %v", reason, err)
	}
	if problems := a.node().Problems; len(problems) > 0 {
		t.Errorf("status names %q", problems)
	}
}
