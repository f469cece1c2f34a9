package nodeproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/fairlead-mesh/fairlead/ztunnelproto"
)

// The time between two attempts to reach the agent grows from the one to the other.
const (
	firstBackoff = 20 * time.Millisecond
	maxBackoff   = 15 * time.Second
)

// Most errors are the answer to one request and nothing more. These two say that
// the connection is of no more use, and that the proxy cannot go on.
type (
	disconnectError struct{ error }
	fatalError      struct{ error }
)

// link keeps a connection to the agent until ctx is done. It fails if the proxy
// cannot go on.
func (p *Proxy) link(ctx context.Context) error {
	defer p.workloads.setLink(linkEnding)
	backoff := firstBackoff
	for ctx.Err() == nil {
		s, err := p.connect(ctx)
		if err != nil {
			if ctx.Err() == nil {
				p.log.Warn("cannot reach the agent, trying again", "error", err, "in", backoff)
			}
			pause(ctx, backoff)
			backoff = min(2*backoff, maxBackoff)
			continue
		}
		backoff = firstBackoff
		p.log.Info("connected to the agent", "socket", p.cfg.ZDS)
		err = s.run(ctx)
		p.workloads.setLink(linkDown)
		var fatal fatalError
		switch {
		case errors.As(err, &fatal):
			return fmt.Errorf("node proxy cannot go on: %w", fatal.error)
		case ctx.Err() == nil:
			p.log.Warn("disconnected from the agent, connecting again", "error", err)
		}
	}
	return nil
}

// A session is one connection to the agent.
type session struct {
	proxy *Proxy
	conn  *ztunnelproto.Conn
	// named are the workloads that the agent wants to go on, as far as it has said. Nil
	// once the snapshot is complete.
	named map[string]bool
}

// connect dials the agent and says hello.
func (p *Proxy) connect(ctx context.Context) (*session, error) {
	conn, err := ztunnelproto.Dial(ctx, p.cfg.ZDS)
	if err != nil {
		return nil, err
	}
	if !p.faults.Load().NoHello {
		if err := conn.Send(&ztunnelproto.ZdsHello{Version: ztunnelproto.Version_V1}, nil); err != nil {
			_ = conn.Close() // of no use: what the agent has said is not known
			return nil, fmt.Errorf("cannot say hello: %w", err)
		}
	}
	return &session{proxy: p, conn: conn, named: map[string]bool{}}, nil
}

// run answers the agent's requests until the connection ends, and says why it did.
func (s *session) run(ctx context.Context) error {
	// A second close is no error.
	defer context.AfterFunc(ctx, func() { _ = s.conn.Close() })()
	defer func() { _ = s.conn.Close() }()
	s.proxy.workloads.setLink(linkUp)
	s.proxy.workloads.forgetPending()
	for {
		var request ztunnelproto.WorkloadRequest
		file, err := s.conn.Receive(&request)
		switch {
		case errors.Is(err, io.EOF) || ctx.Err() != nil:
			return errors.New("it was closed")
		case errors.As(err, new(syscall.Errno)):
			return err // the connection broke; there is nothing to answer, and nobody
		}
		if err != nil {
			err = disconnectError{err}
		} else {
			err = s.carryOut(&request, file)
		}
		unanswered := s.answer(ctx, uidOf(&request), err)
		if errors.As(err, new(disconnectError)) || errors.As(err, new(fatalError)) {
			return err
		}
		if unanswered != nil {
			return unanswered
		}
	}
}

// carryOut does what the agent asks for. It owns file, which may be nil.
func (s *session) carryOut(request *ztunnelproto.WorkloadRequest, file *os.File) error {
	workloads := s.proxy.workloads
	if add := request.GetAdd(); add != nil {
		return s.add(add, file)
	}
	if file != nil {
		_ = file.Close() // nothing was written
		return disconnectError{errors.New("a file descriptor came with a request that has none")}
	}
	switch payload := request.GetPayload().(type) {
	case *ztunnelproto.WorkloadRequest_Keep:
		if s.named == nil {
			return fatalError{fmt.Errorf("the agent sent Keep for %q after its snapshot", payload.Keep.GetUid())}
		}
		s.named[payload.Keep.GetUid()] = true
	case *ztunnelproto.WorkloadRequest_Del:
		delete(s.named, payload.Del.GetUid())
		workloads.del(payload.Del.GetUid())
	case *ztunnelproto.WorkloadRequest_SnapshotSent:
		if s.named == nil {
			return fatalError{errors.New("the agent sent a second snapshot on one connection")}
		}
		workloads.keepOnly(s.named)
		s.named = nil
		workloads.setLink(linkSynced)
	default:
		return disconnectError{errors.New("a request of a kind that this proxy does not know")}
	}
	return nil
}

// add starts a workload. It owns file, which may be nil.
func (s *session) add(add *ztunnelproto.AddWorkload, file *os.File) error {
	if file == nil {
		return disconnectError{fmt.Errorf("no file descriptor came with the Add of workload %q", add.GetUid())}
	}
	if add.GetWorkloadInfo() == nil {
		_ = file.Close() // nothing was written
		return fatalError{fmt.Errorf("the agent sent an Add of workload %q without workload_info", add.GetUid())}
	}
	if s.named != nil {
		s.named[add.GetUid()] = true
	}
	return s.proxy.workloads.add(add.GetUid(), infoOf(add.GetWorkloadInfo()), file)
}

// answer acks a request, or nacks it with an error's text.
func (s *session) answer(ctx context.Context, uid string, err error) error {
	faults := s.proxy.faults.Load().about(uid)
	if faults.NoAck {
		return nil
	}
	if faults.SlowAck > 0 {
		pause(ctx, faults.SlowAck)
	}
	text := ""
	if err != nil {
		text = err.Error()
		s.proxy.log.Warn("refused the agent's request", "uid", uid, "error", err)
	}
	if err := s.conn.Send(ztunnelproto.NewResponse(text), nil); err != nil {
		return err
	}
	if err == nil {
		s.proxy.acks++
	}
	if faults.DieAfterAcks > 0 && s.proxy.acks >= faults.DieAfterAcks {
		return fatalError{fmt.Errorf("told to die after %d acks", faults.DieAfterAcks)}
	}
	return nil
}

func uidOf(request *ztunnelproto.WorkloadRequest) string {
	// At most one of them is there.
	return request.GetAdd().GetUid() + request.GetKeep().GetUid() + request.GetDel().GetUid()
}

func infoOf(w *ztunnelproto.WorkloadInfo) Info {
	return Info{Name: w.GetName(), Namespace: w.GetNamespace(), ServiceAccount: w.GetServiceAccount()}
}
