package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
)

// runtimeSocket is where a node's runtime serves the kubelet.
const runtimeSocket = "/run/containerd/containerd.sock"

// NetworkReady asks the node's runtime for its status, as the kubelet does, and tells
// whether pods could get a network. It has no other deadline than ctx.
func (n *Node) NetworkReady(ctx context.Context) (bool, error) {
	pid, err := n.init.Pid(ctx)
	if err != nil {
		return false, err
	}
	socket := "/proc/" + strconv.Itoa(pid) + "/root" + runtimeSocket
	transport := &http.Transport{
		Protocols: new(http.Protocols),
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	status, err := call(ctx, &http.Client{Transport: transport}, "/runtime.v1.RuntimeService/Status")
	if err != nil {
		return false, fmt.Errorf("the runtime of %s does not tell its status: %w", n.Name, err)
	}
	return networkReady(status)
}

// call makes a call of gRPC with an empty message, and returns what is answered. That is
// HTTP, with a head of five bytes before a message, and the outcome at the end.
func call(ctx context.Context, client *http.Client, method string) ([]byte, error) {
	const head = 5
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://runtime"+method, bytes.NewReader(make([]byte, head)))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("TE", "trailers")
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }() // read to its end
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if code := response.Trailer.Get("Grpc-Status") + response.Header.Get("Grpc-Status"); code != "0" || len(body) < head {
		return nil, fmt.Errorf("%s, status %q: %s", response.Status, code, response.Trailer.Get("Grpc-Message")+response.Header.Get("Grpc-Message"))
	}
	return body[head:], nil
}

// networkReady reads the one condition of a StatusResponse: its name is field 1, and field
// 2, which is not there if it is false, says whether it is so.
func networkReady(status []byte) (bool, error) {
	_, value, found := bytes.Cut(status, []byte("\x0a\x0cNetworkReady"))
	if !found {
		return false, errors.New("it does not say whether the network is ready")
	}
	return bytes.HasPrefix(value, []byte{2 << 3, 1}), nil
}
