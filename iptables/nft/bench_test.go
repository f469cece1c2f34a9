package nft

import (
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// The budgets: Apply 2 ms, Check 1.5 ms, Generation 0.1 ms.

func BenchmarkApply(b *testing.B) {
	netlab.Kernel(b)
	table, want := open(b, netlab.NewNS(b, "bench")), ordinary(b)
	for b.Loop() {
		apply(b, table, want)
	}
}

func BenchmarkCheck(b *testing.B) {
	netlab.Kernel(b)
	table, want := open(b, netlab.NewNS(b, "bench")), ordinary(b)
	apply(b, table, want)
	for b.Loop() {
		if diff := check(b, table, want); len(diff) > 0 {
			b.Fatal(diff)
		}
	}
}

func BenchmarkGeneration(b *testing.B) {
	netlab.Kernel(b)
	table := open(b, netlab.NewNS(b, "bench"))
	for b.Loop() {
		generation(b, table)
	}
}
