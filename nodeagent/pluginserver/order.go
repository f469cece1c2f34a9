package pluginserver

import "sync"

// An order knows in which order a container's requests were made. Clients are
// served side by side, and after a stall the agent finds many of them at once: an
// ADD whose plugin is dead, and the DEL that the runtime sent after it. The kernel
// queues connections in the order they are made, so their numbers tell which came
// first. That is exact where a memory of deleted containers with a time-out is
// not: a runtime may ADD a container again that it has deleted.
//
// It stands here and not in the reconciler, which forgets a pod at its DEL and
// sees requests only as they are handed over, in whatever order.
type order struct {
	mu      sync.Mutex
	deleted [remembered]deletion // a ring
	next    int
	adds    map[string]*adds // by container, while an ADD of it is served
}

// remembered is how many DELs may pass while an ADD is served.
const remembered = 1024

type deletion struct {
	container string
	number    uint64 // of the DEL
}

type adds struct {
	served int
	newest uint64
	undone chan struct{} // closed when the undoing of an ADD is over; nil: none is being undone
}

func newOrder() *order { return &order{adds: map[string]*adds{}} }

// del notes a DEL. It is called before the DEL is carried out.
func (o *order) del(container string, number uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.deleted[o.next] = deletion{container, number}
	o.next = (o.next + 1) % remembered
}

// overtaken reports whether a DEL of the container has come after the ADD.
func (o *order) overtaken(container string, number uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range o.deleted {
		if d.container == container && d.number > number {
			return true
		}
	}
	return false
}

// add notes an ADD that is about to be carried out. It waits while an earlier one
// of the same container is undone. end must be called.
func (o *order) add(container string, number uint64) (end func()) {
	o.mu.Lock()
	a := o.adds[container]
	if a == nil {
		a = &adds{}
		o.adds[container] = a
	}
	a.served++
	a.newest = max(a.newest, number)
	undone := a.undone
	o.mu.Unlock()
	if undone != nil {
		<-undone
	}
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if a.served--; a.served == 0 {
			delete(o.adds, container)
		}
	}
}

// undo carries out undo, unless a newer ADD has taken over what the ADD did. The
// ADD's end has not been called.
func (o *order) undo(container string, number uint64, undo func()) {
	o.mu.Lock()
	a := o.adds[container]
	if a.newest != number {
		o.mu.Unlock()
		return
	}
	undone := make(chan struct{})
	a.undone = undone
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		a.undone = nil
		close(undone)
	}()
	undo()
}
