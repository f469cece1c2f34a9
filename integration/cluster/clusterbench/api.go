package clusterbench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/cluster"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// An api is a client of the API server's, as the administrator, over "kubectl proxy". It
// may ask for as much as it likes.
type api struct {
	client http.Client
	proxy  *exec.Cmd
}

const proxyPort = "8001"

func openAPI(ctx context.Context, c *cluster.Cluster) (*api, error) {
	proxy, err := c.KubectlCommand(ctx, "proxy", "--port="+proxyPort)
	if err != nil {
		return nil, err
	}
	if err := proxy.Start(); err != nil {
		return nil, err
	}
	a := &api{proxy: proxy, client: http.Client{
		Timeout:   20 * time.Second,
		Transport: &http.Transport{DialContext: c.Dial, MaxIdleConnsPerHost: 32},
	}}
	err = netlab.Await(ctx, 20*time.Second, 20*time.Millisecond, func(ctx context.Context) error { return a.get(ctx, "/version", nil) })
	if err != nil {
		a.close()
		return nil, fmt.Errorf("cannot reach the API server by kubectl proxy: %w", err)
	}
	return a, nil
}

func (a *api) close() {
	_ = a.proxy.Process.Kill() // ends with the cluster, at the latest
	_ = a.proxy.Wait()
}

// An object is what is read of one.
type object struct {
	Metadata struct {
		Name, UID   string
		Annotations map[string]string
	}
	Status struct {
		Conditions    []struct{ Type, Status string }
		ReadyReplicas int
	}
}

// ready says whether a pod is.
func (o object) ready() bool {
	for _, c := range o.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True"
		}
	}
	return false
}

func (a *api) get(ctx context.Context, path string, into any) error {
	return a.do(ctx, http.MethodGet, path, nil, into)
}

func (a *api) create(ctx context.Context, path string, what any, into any) error {
	return a.do(ctx, http.MethodPost, path, what, into)
}

var errNotFound = errors.New("not found")

func (a *api) do(ctx context.Context, method, path string, what, into any) error {
	var body []byte
	if what != nil {
		var err error
		if body, err = json.Marshal(what); err != nil {
			return err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://127.0.0.1:"+proxyPort+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := a.client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // read to its end
	answer, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return err
	case response.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%s %s: %w", method, path, errNotFound)
	case response.StatusCode >= http.StatusMultipleChoices:
		return fmt.Errorf("%s %s: %s: %s", method, path, response.Status, bytes.TrimSpace(answer))
	case into == nil:
		return nil
	}
	return json.Unmarshal(answer, into)
}

// newNamespace makes a namespace, and waits until pods can be created in it.
func (a *api) newNamespace(ctx context.Context, name string) error {
	namespace := map[string]any{"metadata": map[string]any{"name": name}}
	if err := a.create(ctx, "/api/v1/namespaces", namespace, nil); err != nil {
		return err
	}
	return netlab.Await(ctx, time.Minute, 20*time.Millisecond, func(ctx context.Context) error {
		return a.get(ctx, "/api/v1/namespaces/"+name+"/serviceaccounts/default", nil)
	})
}

// clear deletes a namespace's pods, and waits until they are gone.
func (a *api) clear(ctx context.Context, namespace string) error {
	if err := a.do(ctx, http.MethodDelete, "/api/v1/namespaces/"+namespace+"/pods", nil, nil); err != nil {
		return err
	}
	return netlab.Await(ctx, 3*time.Minute, 100*time.Millisecond, func(ctx context.Context) error { return a.empty(ctx, namespace) })
}

// empty says which pods speak against it.
func (a *api) empty(ctx context.Context, namespace string) error {
	var list struct{ Items []object }
	err := a.get(ctx, "/api/v1/namespaces/"+namespace+"/pods", &list)
	if err == nil && len(list.Items) > 0 {
		err = fmt.Errorf("%d pods of %s are still there", len(list.Items), namespace)
	}
	return err
}
