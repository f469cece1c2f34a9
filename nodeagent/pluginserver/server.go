// Package pluginserver answers what the CNI plugin and the agent's own commands
// ask over the agent's socket. It turns requests into the reconciler's verbs, and
// the reconciler's reasons into CNI error codes; it decides nothing.
//
// # Failures it survives
//
//   - A client that sends nothing, sends slowly, too much, or nonsense: it is cut off
//     after [Config.RequestTimeout], or told what is wrong; nobody waits for it.
//   - A client that does not read its answer: it is cut off.
//   - A plugin that dies, or that the runtime kills, while its ADD waits: the ADD
//     is cancelled, and what was begun is undone.
//   - A client that is not root: refused.
//   - More clients than [Config.MaxClients]: those wait to be accepted, and the
//     plugins' own deadlines end that.
package pluginserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/nodeagent/enroll"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// Pods carries out what the runtime asks for: package enroll's Reconciler.
type Pods interface {
	Add(context.Context, agentapi.Attachment) error
	Del(context.Context, agentapi.Attachment) error
	Check(context.Context, agentapi.Attachment) error
	Report() []status.Pod
}

// Config is what a Server needs. All of it is required.
type Config struct {
	Pods Pods
	// Node is the head of a status report.
	Node func() status.Node
	// RequestTimeout bounds how long a client may take to send its request, and to
	// take each part of its answer.
	RequestTimeout time.Duration
	// MaxClients bounds how many are served at once.
	MaxClients int
	Logger     *slog.Logger
}

// A Server answers clients.
type Server struct {
	config Config
}

// New validates the configuration.
func New(c Config) (*Server, error) {
	if c.Pods == nil || c.Node == nil || c.Logger == nil || c.RequestTimeout <= 0 || c.MaxClients < 1 {
		return nil, errors.New("cannot answer the plugin: a part of the configuration is missing")
	}
	return &Server{config: c}, nil
}

// Run answers the clients of l until ctx is done, and closes l.
func (s *Server) Run(ctx context.Context, l *net.UnixListener) error {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	var clients errgroup.Group
	clients.SetLimit(s.config.MaxClients)
	for {
		conn, err := l.AcceptUnix()
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return clients.Wait()
		}
		if err != nil {
			s.config.Logger.Warn("cannot accept a client", "error", err)
			if !sleep(ctx, acceptPause) {
				return clients.Wait()
			}
			continue
		}
		clients.Go(func() error {
			s.serve(ctx, conn)
			return nil
		})
	}
}

// acceptPause keeps a lack of file descriptors from becoming a busy loop.
const acceptPause = 100 * time.Millisecond

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// serve answers one client's one request.
func (s *Server) serve(ctx context.Context, conn *net.UnixConn) {
	defer func() { _ = conn.Close() }()
	if err := agentapi.CheckPeer(conn); err != nil {
		s.config.Logger.Warn("a client is refused", "error", err)
		return
	}
	s.extend(conn)
	request, err := agentapi.ReadRequest(conn)
	var bad *agentapi.Error
	switch {
	case errors.As(err, &bad):
		s.say(conn, bad)
		return
	case err != nil:
		s.config.Logger.Debug("a client sent no request", "error", err)
		return
	}
	if request.Status != nil {
		if err := s.report(conn); err != nil {
			s.config.Logger.Debug("a client did not take the report", "error", err)
		}
		return
	}
	work, stop := agentapi.WithPeer(ctx, conn)
	err = s.carryOut(work, request)
	stop()
	if answer, ok := asAnswer(err); ok {
		s.say(conn, answer)
	}
}

// carryOut hands a request to the reconciler.
func (s *Server) carryOut(ctx context.Context, request agentapi.Request) error {
	switch {
	case request.Add != nil:
		return s.config.Pods.Add(ctx, *request.Add)
	case request.Del != nil:
		return s.config.Pods.Del(ctx, *request.Del)
	default:
		return s.config.Pods.Check(ctx, *request.Check)
	}
}

// report writes the head of a report and then a line for each pod.
func (s *Server) report(conn *net.UnixConn) error {
	s.extend(conn)
	if err := agentapi.WriteItem(conn, s.config.Node()); err != nil {
		return err
	}
	for _, pod := range s.config.Pods.Report() {
		s.extend(conn)
		if err := agentapi.WriteItem(conn, pod); err != nil {
			return fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	return agentapi.WriteEnd(conn, nil)
}

func (s *Server) say(conn *net.UnixConn, answer *agentapi.Error) {
	s.extend(conn)
	if err := agentapi.WriteResponse(conn, answer); err != nil {
		s.config.Logger.Debug("a client did not take its answer", "error", err)
	}
}

// extend gives the client another RequestTimeout. It fails on a closed connection
// only, as does what follows it.
func (s *Server) extend(conn *net.UnixConn) {
	_ = conn.SetDeadline(time.Now().Add(s.config.RequestTimeout))
}

var codes = map[status.Reason]uint{
	status.PodUnknown:    agentapi.CodePodUnknown,
	status.NetnsRefused:  agentapi.CodeNamespace,
	status.NoProxy:       agentapi.CodeNoProxy,
	status.NoAnswer:      agentapi.CodeProxyRefused,
	status.NoListeners:   agentapi.CodeProxyRefused,
	status.ProxyRefused:  agentapi.CodeProxyRefused,
	status.KernelRefused: agentapi.CodeKernel,
}

// asAnswer turns the outcome of a request into its answer. An agent that is
// stopping gives none: the plugin then asks the next one.
func asAnswer(err error) (*agentapi.Error, bool) {
	if err == nil {
		return nil, true
	}
	var failure *enroll.Failure
	if !errors.As(err, &failure) {
		return nil, false
	}
	code, known := codes[failure.Reason]
	if !known {
		code = agentapi.CodeInternal
	}
	answer := &agentapi.Error{Code: code, Message: failure.Message, Details: string(failure.Reason)}
	if remedy := failure.Reason.Remedy(); remedy != "" {
		answer.Details += "; remedy: " + remedy
	}
	return answer, true
}
