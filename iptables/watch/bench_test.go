package watch

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// BenchmarkLatency is from the end of a change to the call, with the changer's pauses
// as long as it takes to be heard at once.
func BenchmarkLatency(b *testing.B) {
	for name, change := range map[string]func(b *testing.B, n *netlab.NS) func(i int){
		"transaction": func(b *testing.B, n *netlab.NS) func(int) {
			c := newChanger(b, n)
			return func(i int) {
				if err := c.change(i%2 == 0); err != nil {
					b.Fatal(err)
				}
			}
		},
		"nft flush ruleset": func(b *testing.B, n *netlab.NS) func(int) {
			return func(int) { run(b, n, "nft add table ip t; flush ruleset") }
		},
	} {
		b.Run(name, func(b *testing.B) {
			w := start(b)
			n := netlab.NewNS(b, "a")
			do := change(b, n)
			called := make(chan time.Time, 100)
			if _, err := w.Add(n.Handle, func(Change) { called <- time.Now() }); err != nil {
				b.Fatal(err)
			}
			rest := time.NewTimer(0)
			var latencies []time.Duration
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				rest.Reset(interval)
				<-rest.C
				b.StartTimer()
				do(i)
				done := time.Now()
				latencies = append(latencies, (<-called).Sub(done)) // less than 0: before it has returned
			}
			slices.Sort(latencies)
			b.ReportMetric(float64(latencies[len(latencies)/2].Microseconds()), "µs-after/p50")
			b.ReportMetric(float64(latencies[len(latencies)*99/100].Microseconds()), "µs-after/p99")
		})
	}
}

// BenchmarkFlood is how much of a core one hostile namespace costs us.
func BenchmarkFlood(b *testing.B) {
	w := start(b)
	n := netlab.NewNS(b, "a")
	calls := 0
	called := make(chan int, 1)
	if _, err := w.Add(n.Handle, func(Change) {
		calls++
		select {
		case called <- calls:
		default:
		}
	}); err != nil {
		b.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan int)
	c := newChanger(b, n)
	go func() { stopped <- c.loop(b, stop, func(int) {}) }()
	for b.Loop() {
		<-called
	}
	close(stop)
	b.ReportMetric(float64(<-stopped)/b.Elapsed().Seconds(), "changes/s")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
}

// BenchmarkNamespaces is what a watched namespace costs: the process's memory, its
// files, the time to add one.
func BenchmarkNamespaces(b *testing.B) {
	for _, count := range []int{250, 1000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			var handles []*netns.Handle
			for range count {
				h, err := netns.New()
				if err != nil {
					b.Fatal(err)
				}
				handles = append(handles, h)
			}
			for b.Loop() {
				measure(b, handles)
			}
			for _, h := range handles {
				if err := h.Close(); err != nil {
					b.Error(err)
				}
			}
		})
	}
}

func measure(b *testing.B, handles []*netns.Handle) {
	w, err := New()
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error)
	go func() { ended <- w.Run(ctx) }()
	memoryBefore, filesBefore := memory(), files(b)
	begin := time.Now()
	for _, h := range handles {
		if _, err := w.Add(h, func(Change) {}); err != nil {
			b.Fatal(err)
		}
	}
	each := float64(len(handles))
	b.ReportMetric(float64(time.Since(begin).Microseconds())/each, "µs/add")
	b.ReportMetric(float64(memory()-memoryBefore)/each, "B/namespace")
	b.ReportMetric(float64(files(b)-filesBefore)/each, "files/namespace")
	cancel()
	if err := <-ended; err != nil {
		b.Error(err)
	}
}

func memory() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

func files(b *testing.B) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		b.Fatal(err)
	}
	return len(entries)
}
