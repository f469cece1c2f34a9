package enroll

import (
	"errors"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
)

// A pod whose kernel work takes long does not hold up what is heard of others: all are
// heard by one goroutine.
func TestABusyPodDoesNotDeafenTheAgentForOthers(t *testing.T) {
	netlab.Kernel(t)
	o := opener(t)
	var mu sync.Mutex
	heard := map[string]bool{}
	kernels := map[string]*netKernel{}
	pods := map[string]*netlab.NS{}
	for _, name := range []string{"busy", "other"} {
		pods[name] = netlab.NewNS(t, name)
		place, err := o.Finder.Told(pods[name].Path)
		if err != nil {
			t.Fatal(err)
		}
		k, err := o.Open(place, func(string) {
			mu.Lock()
			defer mu.Unlock()
			heard[name] = true
		})
		if err != nil {
			t.Fatal(err)
		}
		kernels[name] = k.(*netKernel)
		defer func() {
			if err := k.Close(); err != nil {
				t.Error(err)
			}
		}()
		if err := k.Apply(t.Context(), full()); err != nil {
			t.Fatal(err)
		}
		if drift, err := k.Check(t.Context(), full(), Changes); drift != "" || err != nil {
			t.Fatal(drift, err)
		}
	}
	over, done := make(chan struct{}), make(chan error)
	begun := make(chan struct{})
	go func() {
		first := sync.OnceFunc(func() { close(begun) })
		done <- kernels["busy"].table.Netfilter().Request(t.Context(), unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETTABLE, unix.NLM_F_DUMP,
			nlconn.NetfilterHeader(unix.AF_UNSPEC), func([]byte) error { first(); <-over; return nil })
	}()
	<-begun
	defer func() {
		close(over)
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	for _, name := range []string{"busy", "other"} {
		netlab.MustRun(t, pods[name], "nft", "add", "table", "inet", "theirs")
		netlab.Eventually(t, func() error {
			mu.Lock()
			defer mu.Unlock()
			if !heard[name] {
				return errors.New("nothing is heard of " + name)
			}
			return nil
		})
	}
}
