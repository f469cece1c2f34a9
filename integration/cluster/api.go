package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// writeKubeconfig writes a kubeconfig that holds all it needs.
func writeKubeconfig(a *authority, user, file string) error {
	var data [3]string
	for i, name := range []string{"ca.crt", user + ".crt", user + ".key"} {
		content, err := os.ReadFile(a.path(name))
		if err != nil {
			return err
		}
		data[i] = base64.StdEncoding.EncodeToString(content)
	}
	return os.WriteFile(file, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: fairlead
  cluster: {server: "%s", certificate-authority-data: %s}
users:
- name: %s
  user: {client-certificate-data: %s, client-key-data: %s}
contexts:
- name: fairlead
  context: {cluster: fairlead, user: %[3]s}
current-context: fairlead
`, apiServerURL, data[0], user, data[1], data[2]), 0o600)
}

// connectAPI makes the client with which the cluster looks whether it is ready.
func (c *Cluster) connectAPI() error {
	ca, err := os.ReadFile(c.path(pkiDir, "ca.crt"))
	if err != nil {
		return err
	}
	admin, err := tls.LoadX509KeyPair(c.path(pkiDir, "admin.crt"), c.path(pkiDir, "admin.key"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return errors.New("ca.crt holds no certificate")
	}
	c.api = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext:     c.Dial,
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{admin}},
	}}
	return nil
}

// get asks the API server for an object; an answer other than OK is an error.
func (c *Cluster) get(ctx context.Context, path string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, apiServerURL+path, http.NoBody)
	if err != nil {
		return err
	}
	response, err := c.api.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // read to its end
	body, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return err
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %s: %s", path, response.Status, bytes.TrimSpace(body))
	case into == nil:
		return nil
	}
	return json.Unmarshal(body, into)
}

// A nodeObject is what counts of a Node in the API.
type nodeObject struct {
	Status struct {
		NodeInfo   struct{ BootID string }
		Conditions []struct{ Type, Status, Message string }
	}
}

// objection says why a node is not ready in the boot of that ID, or nil.
func (n *nodeObject) objection(bootID string) error {
	if n.Status.NodeInfo.BootID != bootID {
		return errors.New("its kubelet has not told yet that it was booted")
	}
	for _, condition := range n.Status.Conditions {
		switch {
		case condition.Type != "Ready":
		case condition.Status == "True":
			return nil
		default:
			return fmt.Errorf("it is not ready: %s", condition.Message)
		}
	}
	return errors.New("its kubelet has not told yet whether it is ready")
}

// command returns a command that is killed with all its children when the context
// ends. A child in another PID namespace would not end with its parent.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	return cmd
}

// output runs a command and returns what it printed; an error shows that, too.
func output(cmd *exec.Cmd, name string, args []string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w: %s%s", name, strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}
