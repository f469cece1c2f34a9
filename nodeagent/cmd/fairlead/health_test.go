package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/config"
	"github.com/fairlead-mesh/fairlead/nodeagent/enroll"
	"github.com/fairlead-mesh/fairlead/nodeagent/metrics"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// An agent that does not know the node's pods yet is alive, and not ready.
func TestHealthIsServed(t *testing.T) {
	api, _, file := inCluster(t)
	api.late = make(chan struct{})
	c, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	c.HTTPAddress = config.Default().HTTPAddress
	runConfigured(t, c)
	answers := func(path, want string) {
		t.Helper()
		netlab.Eventually(t, func() error {
			got, err := get(t.Context(), "http://127.0.0.1:15014"+path)
			if err == nil && got != want {
				err = fmt.Errorf("%s: %q, want %q", path, got, want)
			}
			return err
		})
	}
	answers("/readyz", "503 the node's pods are not known yet")
	answers("/livez", "200 ok")
	close(api.late)
	answers("/readyz", "200 ok")
	answers("/livez", "200 ok")
}

func get(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer closeQuietly(answer.Body)
	body, err := io.ReadAll(answer.Body)
	return fmt.Sprintf("%d %s", answer.StatusCode, strings.TrimSpace(string(body))), err
}

// Whether the agent is alive is the reconciler's word, here that of one whose source does not
// answer about a pod.
func TestLivezIsTheReconcilersWord(t *testing.T) {
	netlab.Kernel(t)
	c, _ := settings(t)
	a, err := newAgent(c, t.TempDir(), false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		told := make(chan struct{})
		a.reconciler, err = enroll.New(enroll.Config{
			Source: a.pods, Proxies: a.proxies, Probes: a.probes, Records: enroll.RecordDir(t.TempDir()),
			Unread: func(string, string) (status.Reason, string) { <-told; return "", "" },
			Find:   a.opener.Finder.Told, Gone: sandbox.Place.Gone, Open: a.opener.Open, Search: a.opener.Finder.Search,
			Workers: 1, SweepInterval: time.Minute, Metrics: enroll.NewMetrics(prometheus.NewRegistry()), Logger: a.logger,
		})
		if err != nil {
			t.Fatal(err)
		}
		answers := func(healthy bool) {
			t.Helper()
			want, why := "200 ok", a.reconciler.Healthy()
			if why != nil {
				want = "503 " + why.Error()
			}
			if healthy != (why == nil) {
				t.Errorf("the reconciler's word is %v", why)
			}
			w := httptest.NewRecorder()
			metrics.Handler(a.served()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/livez", nil))
			if got := fmt.Sprintf("%d %s", w.Code, w.Body); got != want+"\n" {
				t.Errorf("%q, want %q", got, want)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		go func() { ended <- a.reconciler.Run(ctx) }()
		synctest.Wait()
		answers(true)
		go func() {
			if err := a.reconciler.Add(ctx, web); err == nil {
				ended <- errors.New("the pod has been added")
			} else {
				ended <- nil
			}
		}()
		<-time.After(time.Minute + time.Second) // the bubble's clock
		answers(false)
		close(told)
		synctest.Wait()
		answers(true)
		cancel()
		if err := errors.Join(<-ended, <-ended); err != nil {
			t.Error(err)
		}
	})
}
