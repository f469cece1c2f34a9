package sandbox_test

import (
	"fmt"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
)

// 250 pods of a node that has 1,000 processes, once from the cache, once from the
// processes.
func BenchmarkSearch(b *testing.B) {
	netlab.Kernel(b)
	const many = 250
	for _, source := range []string{"cache", "processes"} {
		b.Run(source, func(b *testing.B) {
			n := newNode(b)
			var want []sandbox.Wanted
			for i := range many {
				pod := netlab.NewNS(b, fmt.Sprintf("pod%d", i))
				uid := fmt.Sprintf("u%d", i)
				want = append(want, sandbox.Wanted{UID: uid})
				if source == "cache" {
					n.cached(uid, "c1", "eth0", pod.Path)
					continue
				}
				for j := range 4 {
					n.process(100+4*i+j, "/kubepods/burstable/pod"+uid+"/c1", pod.Path)
				}
			}
			for b.Loop() {
				if found, missing := n.finder.Search(b.Context(), want); len(found) != many {
					b.Fatal(missing)
				}
			}
		})
	}
}
