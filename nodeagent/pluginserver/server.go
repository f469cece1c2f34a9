// Package pluginserver answers what the CNI plugin and the agent's own commands
// ask over the agent's socket. It turns requests into the reconciler's verbs, and
// the reconciler's reasons into CNI error codes; it decides nothing.
//
// # Failures it survives
//
//   - A client that sends nothing, sends slowly, too much, or nonsense: it is cut off
//     after half a second, or told what is wrong. A thousand of them keep nobody
//     out: who has asked for nothing makes room for who comes.
//   - A client that does not read its answer: it is cut off.
//   - A plugin that dies, or that the runtime kills, while its ADD waits: the ADD
//     is cancelled, and what was begun is undone. If it is dead before its turn, the
//     ADD is not begun; if it dies before it has its answer, what was done is undone.
//     (Death after that is the runtime's to tell: it sends DEL.)
//   - An agent that was stalled, and finds ADDs of dead plugins and the DELs that
//     followed them, in any order: no deleted sandbox comes back.
//   - A pod or a head of the report that is too long to be sent: it is shortened and
//     says so; the report goes on.
//   - A client that is not root: refused.
//   - A client that goes in the middle of a drain: the drain goes on.
//   - More requests than [Config.MaxClients]: the next wait to be accepted, and the
//     plugins' own deadlines end that.
package pluginserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/nodeagent/enroll"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// Pods carries out what the runtime asks for: package enroll's Reconciler.
type Pods interface {
	Add(context.Context, agentapi.Attachment) error
	Del(context.Context, agentapi.Attachment) error
	Check(context.Context, agentapi.Attachment) error
	GC(ctx context.Context, valid []string) error
	Report() []status.Pod
}

// Config is what a Server needs. All of it is required.
type Config struct {
	Pods Pods
	// Node is the head of a status report.
	Node   func() status.Node
	Leaver Leaver
	// RequestTimeout bounds how long a client may take for each part of a request:
	// to send it, half a second at most, and to take each line of its answer.
	RequestTimeout time.Duration
	// MaxClients bounds how many are served at once.
	MaxClients int
	Logger     *slog.Logger
}

// A Server answers clients.
type Server struct {
	config Config
	order  *order
}

// New validates the configuration.
func New(c Config) (*Server, error) {
	if c.Pods == nil || c.Node == nil || c.Leaver == nil || c.Logger == nil || c.RequestTimeout <= 0 || c.MaxClients < 1 {
		return nil, errors.New("cannot answer the plugin: a part of the configuration is missing")
	}
	return &Server{config: c, order: newOrder()}, nil
}

// Run answers the clients of l until ctx is done, and closes l.
func (s *Server) Run(ctx context.Context, l *agentapi.Listener) error {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	var serving sync.WaitGroup
	defer serving.Wait()
	room := newRoom(s.config.MaxClients)
	for number := uint64(1); ; number++ {
		conn, err := l.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			s.config.Logger.Warn("cannot accept a client", "error", err)
			sleep(ctx, acceptPause)
			continue
		}
		if !room.enter(ctx, conn) {
			_ = conn.Close()
			return nil
		}
		serving.Go(func() {
			defer room.leave(conn)
			s.serve(ctx, client{conn, number}, room)
		})
	}
}

// acceptPause keeps a lack of file descriptors from becoming a busy loop.
const acceptPause = 100 * time.Millisecond

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// A client is one connection; those that came later have greater numbers.
type client struct {
	*net.UnixConn
	number uint64
}

// serve answers one client's one request.
func (s *Server) serve(ctx context.Context, c client, room *room) {
	defer func() { _ = c.Close() }()
	if err := agentapi.CheckPeer(c.UnixConn); err != nil {
		s.config.Logger.Warn("a client is refused", "error", err)
		return
	}
	c.extend(min(s.config.RequestTimeout, requestTimeout))
	err := agentapi.Await(c.UnixConn)
	if !room.speaks(c.UnixConn) {
		s.config.Logger.Debug("a client that said nothing had to make room")
		return
	}
	var request agentapi.Request
	if err == nil {
		request, err = agentapi.ReadRequest(c)
	}
	var bad *agentapi.Error
	switch {
	case errors.As(err, &bad):
		_ = s.say(c, bad)
	case err != nil:
		s.config.Logger.Debug("a client sent no request", "error", err)
	case request.Status != nil:
		s.heard(s.report(c))
	case request.Drain != nil:
		s.heard(s.drain(ctx, c, request.Drain.Undo))
	case request.Uninstall != nil:
		s.heard(s.uninstall(ctx, c))
	case request.Del != nil:
		s.del(ctx, c, *request.Del)
	case request.Add != nil:
		s.add(ctx, c, *request.Add)
	default:
		work, stop := agentapi.WithPeer(ctx, c.UnixConn)
		if request.GC != nil {
			err = s.config.Pods.GC(work, request.GC.Valid)
		} else {
			err = s.config.Pods.Check(work, *request.Check)
		}
		stop()
		_ = s.answer(c, err)
	}
}

// requestTimeout is how long a request may take to arrive. A plugin writes it as
// soon as it is connected, and dials again if it was not quick enough.
const requestTimeout = 500 * time.Millisecond

// del carries out a DEL, whether its plugin is there or not: the sandbox goes.
func (s *Server) del(ctx context.Context, c client, a agentapi.Attachment) {
	s.order.del(a.ContainerID, c.number)
	_ = s.answer(c, s.config.Pods.Del(ctx, a))
}

var errDeleted = &enroll.Failure{Reason: status.Deleted, Message: "the runtime has deleted this sandbox already"}

// add carries out an ADD that somebody waits for, and takes it back if a DEL has
// overtaken it, or if nobody hears of its success.
func (s *Server) add(ctx context.Context, c client, a agentapi.Attachment) {
	log := s.config.Logger.With("pod", a.Namespace+"/"+a.Name, "container", a.ContainerID)
	defer s.order.add(a.ContainerID, c.number)()
	err := s.begin(ctx, c, a)
	switch {
	case errors.Is(err, agentapi.ErrPeerGone):
		log.Debug("an ADD is not begun: its plugin is gone")
		return
	case err != nil:
		_ = s.answer(c, err)
		return
	}
	// Again: a DEL may have overtaken the ADD on its way to the reconciler.
	if s.order.overtaken(a.ContainerID, c.number) {
		err = errDeleted
	}
	if unheard := s.answer(c, err); err == nil {
		err = unheard
	}
	if err == nil {
		return
	}
	log.Info("an ADD is undone", "cause", err)
	s.order.undo(a.ContainerID, c.number, func() {
		if err := s.config.Pods.Del(ctx, a); err != nil {
			log.Warn("cannot undo an ADD", "error", err)
		}
	})
}

// begin hands an ADD to the reconciler, unless it is over already.
func (s *Server) begin(ctx context.Context, c client, a agentapi.Attachment) error {
	if s.order.overtaken(a.ContainerID, c.number) {
		return errDeleted
	}
	work, stop := agentapi.WithPeer(ctx, c.UnixConn)
	defer stop()
	if cause := context.Cause(work); errors.Is(cause, agentapi.ErrPeerGone) {
		return cause
	}
	return s.config.Pods.Add(work, a)
}

// heard takes note of what became of an answer of several lines.
func (s *Server) heard(err error) {
	if err != nil {
		s.config.Logger.Debug("a client did not take all of its answer", "error", err)
	}
}

// report writes the head of a report and then a line for each pod.
func (s *Server) report(c client) error {
	if err := writeItem(s, c, s.config.Node()); err != nil {
		return err
	}
	for _, pod := range s.config.Pods.Report() {
		if err := writeItem(s, c, pod); err != nil {
			return fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	return s.end(c, nil)
}

// shortened is what a report is made of.
type shortened[T any] interface {
	Clip() T
	Brief() T
}

// writeItem writes a line of a report, and less of it if it is too long.
func writeItem[T shortened[T]](s *Server, c client, item T) error {
	c.extend(s.config.RequestTimeout)
	err := agentapi.WriteItem(c, item.Clip())
	if errors.Is(err, agentapi.ErrTooLong) {
		err = agentapi.WriteItem(c, item.Brief())
	}
	return err
}

// answer tells a client what became of its request. An agent that is stopping
// says nothing: the plugin then asks the next one.
func (s *Server) answer(c client, err error) error {
	answer, ok := asAnswer(err)
	if !ok {
		return nil
	}
	return s.say(c, answer)
}

func (s *Server) say(c client, answer *agentapi.Error) error {
	c.extend(s.config.RequestTimeout)
	err := agentapi.WriteResponse(c, answer)
	if err != nil {
		s.config.Logger.Debug("a client did not take its answer", "error", err)
	}
	return err
}

// extend gives the client so much more time. It fails on a closed connection only,
// as does what follows it.
func (c client) extend(d time.Duration) { _ = c.SetDeadline(time.Now().Add(d)) }

var codes = map[status.Reason]uint{
	status.PodUnknown:     agentapi.CodePodUnknown,
	status.ManifestBroken: agentapi.CodePodUnknown,
	status.APIUnavailable: agentapi.CodePodUnknown,
	status.SandboxUnknown: agentapi.CodePodUnknown,
	status.NetnsRefused:   agentapi.CodeNamespace,
	status.NetnsUnknown:   agentapi.CodeNamespace,
	status.NoProxy:        agentapi.CodeNoProxy,
	status.NoAnswer:       agentapi.CodeProxyRefused,
	status.NoListeners:    agentapi.CodeProxyRefused,
	status.ProxyRefused:   agentapi.CodeProxyRefused,
	status.PortTaken:      agentapi.CodeProxyRefused,
	status.KernelRefused:  agentapi.CodeKernel,
	status.RulesFought:    agentapi.CodeKernel,

	// Of a pod that something else is being done with.
	status.Cancelled:            agentapi.CodeTryAgain,
	status.Deleted:              agentapi.CodeTryAgain,
	status.Capturing:            agentapi.CodeTryAgain,
	status.Draining:             agentapi.CodeTryAgain,
	status.Withdrawing:          agentapi.CodeTryAgain,
	status.NodeDrained:          agentapi.CodeTryAgain,
	status.ReasonOldConnections: agentapi.CodeTryAgain, // they are being reset
}

// asAnswer turns the outcome of a request into its answer, if it has one.
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
