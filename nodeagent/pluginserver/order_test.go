package pluginserver

import (
	"fmt"
	"testing"
	"testing/synctest"
)

func TestOvertaken(t *testing.T) {
	o := newOrder()
	o.del("c1", 5)
	for number, want := range map[uint64]bool{4: true, 6: false} {
		if got := o.overtaken("c1", number); got != want {
			t.Errorf("ADD %d before DEL 5: %v", number, got)
		}
		if o.overtaken("c2", number) {
			t.Errorf("ADD %d of another container is overtaken", number)
		}
	}
	for i := range uint64(remembered - 1) {
		o.del(fmt.Sprintf("x%d", i), 6+i)
	}
	if !o.overtaken("c1", 4) {
		t.Error("forgotten too early")
	}
	o.del("x", 9999)
	if o.overtaken("c1", 4) {
		t.Error("never forgotten")
	}
}

func TestAnAddWaitsForTheUndoingOfAnEarlierOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrder()
		release := make(chan struct{})
		end := o.add("c1", 7)
		go func() {
			o.undo("c1", 7, func() { <-release })
			end()
		}()
		synctest.Wait()
		begun := false
		go func() {
			defer o.add("c1", 8)()
			begun = true
		}()
		o.add("c2", 9)() // waits for nobody
		synctest.Wait()
		if begun {
			t.Error("an ADD has begun while an earlier one was being undone")
		}
		close(release)
		synctest.Wait()
		if !begun || len(o.adds) != 0 {
			t.Errorf("begun: %v; %d containers are left", begun, len(o.adds))
		}
	})
}

func TestUndoLeavesANewerAddAlone(t *testing.T) {
	o := newOrder()
	older, newer := o.add("c1", 7), o.add("c1", 8)
	newer()
	o.undo("c1", 7, func() { t.Error("undone") })
	older()
	if len(o.adds) != 0 {
		t.Errorf("%d containers are left", len(o.adds))
	}
}
