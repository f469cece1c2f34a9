package enroll_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// Pods that come and go leave nothing: after many the agent's process holds what it
// held after a few, and so does the kernel.
func TestChurn(t *testing.T) {
	netlab.Kernel(t)
	few, many := 20, 60
	if numberFrom(t, sequencesEnv, fewSequences) >= allSequences {
		few, many = 100, 1000
	}
	w, err := newWorld(nodeDir(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	w.sweep = time.Second
	var more int
	w.tell(t, "churn", func() {
		w.begin()
		for range few {
			w.churn()
		}
		w.untilGone()
		state, before := w.state(), heap()
		for range many - few {
			w.churn()
		}
		w.untilState(state)
		more = heap() - before
		w.end()
	})
	t.Logf("after %d pods the heap has %d bytes more than after %d", many, more, few)
	const most = 128 << 10 // a process grows by half of it and no more; of 900 pods all of it is 146 bytes each
	if more > most {
		t.Errorf("that is more than %d", most)
	}
	if err := w.close(); err != nil {
		t.Error(err)
	}
}

// churn has a pod live.
func (w *world) churn() {
	s := w.slots[0]
	w.set(s, &object{w.newUID(s), true})
	w.launch(s, w.newBox(s.object.uid))
	w.settle()
	deleted(w, s)
	w.settle()
}

// heap is how many bytes are in use.
func heap() int {
	runtime.GC()
	runtime.GC() // for what the first has only made ready to go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
