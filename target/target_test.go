package target_test

import (
	"encoding/hex"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lunlab/lun"
	"lunlab/lun/store/mem"
	"lunlab/target"
)

// unit answers everything with GOOD, when gate lets it, and writes down what it
// is told.
type unit struct {
	gate    chan struct{} // nil: doesn't block
	waiting atomic.Int32  // for gate

	mu     sync.Mutex
	events []lun.Event
}

func (u *unit) Blocking() bool                         { return u.gate != nil }
func (u *unit) DataLength(cdb []byte) (out, in uint64) { return 0, 0 }
func (u *unit) Execute(c *lun.Command) {
	if u.gate == nil {
		return
	}
	u.waiting.Add(1)
	select {
	case <-u.gate:
	case <-c.Cancel:
	}
}

func (u *unit) Notify(_ *lun.Nexus, e lun.Event) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.events = append(u.events, e)
}

func (u *unit) told() []lun.Event {
	u.mu.Lock()
	defer u.mu.Unlock()
	e := u.events
	u.events = nil
	return e
}

// owner counts the tasks that management took away.
type owner struct{ aborted []uint64 }

func (o *owner) TaskAborted(t *target.Task) { o.aborted = append(o.aborted, t.Tag) }
func (o *owner) TaskDeferred(*target.Task)  {}
func (o *owner) TaskReady(*target.Task)     {}

func TestAddress(t *testing.T) {
	for n, want := range map[uint16]string{0: "0000", 1: "0001", 255: "00ff", 256: "4100", 16383: "7fff"} {
		a := target.NumberAddress(n)
		if got := hex.EncodeToString(a[:2]); got != want {
			t.Errorf("%d is %s, want %s", n, got, want)
		}
		if got, ok := a.Number(); !ok || got != n {
			t.Errorf("%d comes back as %d, %v", n, got, ok)
		}
	}
	// Flat space may hold low numbers too; others aren't numbers.
	if n, ok := (target.Address{0x40, 0x05}).Number(); !ok || n != 5 {
		t.Errorf("4005 is %d, %v", n, ok)
	}
	for _, a := range []target.Address{{0x01, 0x05}, {0x80, 0x05}, {0xc1, 0x01}, {0, 5, 0, 1}, {0, 0, 0, 0, 0, 0, 0, 1}} {
		if n, ok := a.Number(); ok {
			t.Errorf("%x is %d", a, n)
		}
	}
}

// execute runs one command through a nexus to its end.
func execute(t *testing.T, n *target.Nexus, a target.Address, in int, cdb ...byte) *target.Task {
	t.Helper()
	k := &target.Task{}
	k.CDB = cdb
	k.DataIn = [][]byte{make([]byte, in)}
	if got := n.Enter(k, &owner{}, n.Lookup(a), 1); got != target.Admitted {
		t.Fatalf("Enter: %v", got)
	}
	if !k.Execute() || !k.Leave() {
		t.Fatal("the task was aborted")
	}
	return k
}

func TestReportLUNs(t *testing.T) {
	d := target.New()
	for _, n := range []uint16{300, 0, 7} {
		if _, err := d.Add(n, &unit{}, target.Limits{}); err != nil {
			t.Fatal(err)
		}
	}
	all := d.Open(lun.Nexus{}, nil)
	defer all.Close()
	some := d.Open(lun.Nexus{}, func(n uint16) bool { return n != 7 })
	defer some.Close()
	for _, tt := range []struct {
		name   string
		n      *target.Nexus
		a      target.Address
		report byte
		alloc  byte
		want   string
	}{
		{"all", all, target.Address{}, 0, 255, "0000001800000000" + "0000000000000000" + "0007000000000000" + "412c000000000000"},
		{"masked", some, target.Address{}, 0, 255, "0000001000000000" + "0000000000000000" + "412c000000000000"},
		{"at a LUN that isn't there", some, target.NumberAddress(7), 0, 255, "0000001000000000" + "0000000000000000" + "412c000000000000"},
		{"well known only", all, target.ReportLUNsWellKnown, 1, 255, "0000000800000000" + "c101000000000000"},
		{"both", some, target.Address{}, 2, 255, "0000001800000000" + "0000000000000000" + "412c000000000000" + "c101000000000000"},
		{"administrative only", all, target.Address{}, 0x10, 255, "0000000000000000"},
		{"those of no conglomerate", some, target.Address{}, 0x11, 255, "0000001000000000" + "0000000000000000" + "412c000000000000"},
		{"subsidiary to LUN 0", all, target.Address{}, 0x12, 255, "0000000000000000"},
		{"cut short", all, target.Address{}, 0, 12, "0000001800000000" + "00000000"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := execute(t, tt.n, tt.a, 255, 0xa0, 0, tt.report, 0, 0, 0, 0, 0, 0, tt.alloc, 0, 0)
			if k.Status != lun.Good {
				t.Fatalf("status %02x", k.Status)
			}
			if d := cmp.Diff(tt.want, hex.EncodeToString(k.DataIn[0][:k.InLen])); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
	refuses(t, all, target.Address{}, "a00009000000000000ff0000", 0xcf, 2)
	refuses(t, all, target.Address{}, "a00013000000000000ff0000", 0xcf, 2)
}

// refuses wants INVALID FIELD IN CDB, with the sense-key specific byte flags and a pointer
// to byte field, and no data moved.
func refuses(t *testing.T, n *target.Nexus, a target.Address, cdb string, flags, field byte) {
	t.Helper()
	b, err := hex.DecodeString(cdb)
	if err != nil {
		t.Fatal(err)
	}
	k := execute(t, n, a, 255, b...)
	if k.Status != lun.CheckCondition || k.Sense[2] != 5 || k.Sense[12] != 0x24 || k.Sense[13] != 0 || k.InLen != 0 {
		t.Errorf("%s at %x: status %02x, sense %x", cdb, a, k.Status, k.Sense)
		return
	}
	if got, want := k.Sense[15:18], []byte{flags, 0, field}; !slices.Equal(got, want) {
		t.Errorf("%s at %x: field pointer %x, want %x", cdb, a, got, want)
	}
}

// TestReservedBits sets bits of the CDBs that the target itself answers which the usage
// data of a disk doesn't have either.
func TestReservedBits(t *testing.T) {
	s, err := mem.New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	disk, err := lun.NewDisk(s, lun.DiskOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	d := target.New()
	d.Add(0, disk, target.Limits{})
	n := d.Open(lun.Nexus{}, nil)
	defer n.Close()
	there, absent := target.Address{}, target.NumberAddress(3)
	execute(t, n, there, 0, 0, 0, 0, 0, 0, 0) // takes the unit attention
	for _, a := range []target.Address{there, absent, target.ReportLUNsWellKnown} {
		refuses(t, n, a, "a08000000000000000ff0000", 0xcf, 1)
		refuses(t, n, a, "a00000010000000000ff0000", 0xc8, 3)
		refuses(t, n, a, "a00000000200000000ff0000", 0xc9, 4)
		refuses(t, n, a, "a00000000080000000ff0000", 0xcf, 5)
		refuses(t, n, a, "a00000000000000000ff0100", 0xc8, 10)
		refuses(t, n, a, "a00000000000000000ff00c0", 0xcf, 11)
		refuses(t, n, a, "12fe00006000", 0xcf, 1)
		refuses(t, n, a, "120000006040", 0xce, 5)
		refuses(t, n, a, "120001006000", 0xcf, 2)
		refuses(t, n, a, "03020000ff00", 0xc9, 1)
		refuses(t, n, a, "03000001ff00", 0xc8, 3)
		if k := execute(t, n, a, 252, 0x03, 1, 0, 0, 252, 0); k.Status != lun.Good || k.DataIn[0][0] != 0x72 {
			t.Errorf("REQUEST SENSE with DESC at %x: status %02x, %x", a, k.Status, k.DataIn[0][:8])
		}
	}
	refuses(t, n, target.ReportLUNsWellKnown, "000100000000", 0xc8, 1)
}

// An initiator learns once that the inventory has changed, by one logical unit or by
// REPORT LUNS; others are told for themselves.
func TestInventoryReportedOnce(t *testing.T) {
	d := target.New()
	disk := func() *lun.Disk {
		s, err := mem.New(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		k, err := lun.NewDisk(s, lun.DiskOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { k.Close() })
		return k
	}
	for i := range uint16(2) {
		d.Add(i, disk(), target.Limits{})
	}
	var nexuses []*target.Nexus
	for range 2 {
		n := d.Open(lun.Nexus{}, nil)
		defer n.Close()
		nexuses = append(nexuses, n)
		for lun := range uint16(2) {
			execute(t, n, target.NumberAddress(lun), 0, 0, 0, 0, 0, 0, 0)
		}
	}
	ready := func(n *target.Nexus, number uint16, want uint16) {
		t.Helper()
		k := execute(t, n, target.NumberAddress(number), 0, 0, 0, 0, 0, 0, 0)
		got := uint16(0)
		if k.Status == lun.CheckCondition {
			got = uint16(k.Sense[12])<<8 | uint16(k.Sense[13])
		}
		if got != want {
			t.Errorf("LUN %d: sense code %04x, want %04x", number, got, want)
		}
	}
	a, b := nexuses[0], nexuses[1]
	d.Add(7, disk(), target.Limits{})
	ready(a, 1, lun.ASCReportedLUNsDataHasChanged)
	ready(a, 0, 0)
	ready(a, 7, lun.ASCPowerOnOrReset)
	execute(t, b, target.NumberAddress(1), 255, 0xa0, 9, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0) // is refused
	execute(t, b, target.NumberAddress(1), 18, 3, 0, 0, 0, 18, 0)
	ready(b, 0, 0)
	ready(b, 7, lun.ASCPowerOnOrReset)
	d.Remove(7)
	execute(t, a, target.NumberAddress(1), 255, 0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0)
	ready(a, 0, 0)
	ready(a, 1, 0)
	ready(b, 0, lun.ASCReportedLUNsDataHasChanged)
}

func TestAbsent(t *testing.T) {
	d := target.New()
	n := d.Open(lun.Nexus{}, nil)
	defer n.Close()
	a := target.NumberAddress(3)
	if n.Lookup(a).Present() {
		t.Error("LUN 3 is there")
	}
	if k := execute(t, n, a, 96, 0x12, 0, 0, 0, 96, 0); k.Status != lun.Good || k.InLen != 36 || k.DataIn[0][0] != 0x7f {
		t.Errorf("INQUIRY: status %02x, %d bytes, %x", k.Status, k.InLen, k.DataIn[0][0])
	}
	if k := execute(t, n, a, 96, 0x12, 1, 0x83, 0, 96, 0); k.Status != lun.CheckCondition || k.Sense[12] != 0x25 {
		t.Errorf("INQUIRY page 83: status %02x, sense %x", k.Status, k.Sense)
	}
	if k := execute(t, n, a, 252, 0x03, 0, 0, 0, 252, 0); k.Status != lun.Good || k.DataIn[0][2] != 5 || k.DataIn[0][12] != 0x25 {
		t.Errorf("REQUEST SENSE: status %02x, %x", k.Status, k.DataIn[0][:18])
	}
	if k := execute(t, n, a, 0, 0, 0, 0, 0, 0, 0); k.Status != lun.CheckCondition || k.Sense[2] != 5 || k.Sense[12] != 0x25 {
		t.Errorf("TEST UNIT READY: status %02x, sense %x", k.Status, k.Sense)
	}
	// The REPORT LUNS well known logical unit.
	if k := execute(t, n, target.ReportLUNsWellKnown, 96, 0x12, 0, 0, 0, 96, 0); k.Status != lun.Good || k.DataIn[0][0] != 0x1e {
		t.Errorf("INQUIRY of c101: status %02x, %x", k.Status, k.DataIn[0][0])
	}
	if k := execute(t, n, target.ReportLUNsWellKnown, 0, 0, 0, 0, 0, 0, 0); k.Status != lun.Good {
		t.Errorf("TEST UNIT READY of c101: status %02x", k.Status)
	}
	if k := execute(t, n, target.ReportLUNsWellKnown, 512, 0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0); k.Status != lun.CheckCondition || k.Sense[12] != 0x20 {
		t.Errorf("READ of c101: status %02x, sense %x", k.Status, k.Sense)
	}
	// No CDB, however short, does harm.
	for op := range 256 {
		for l := range 17 {
			cdb := make([]byte, 17)[:max(l, 1)]
			cdb[0] = byte(op)
			for _, a := range []target.Address{a, target.ReportLUNsWellKnown} {
				n.DataLength(n.Lookup(a), cdb)
				execute(t, n, a, 4, cdb...)
			}
		}
	}
}

func TestTaskSet(t *testing.T) {
	d := target.New()
	u := &unit{}
	lu, err := d.Add(0, u, target.Limits{CmdPerLUN: 2})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Add(0, u, target.Limits{}); err == nil {
		t.Error("two units at LUN 0")
	}
	if _, err := d.Add(target.MaxNumber+1, u, target.Limits{}); err == nil {
		t.Error("a LUN beyond what can be addressed")
	}
	n := d.Open(lun.Nexus{}, nil)
	o := &owner{}
	a, b, c := &target.Task{}, &target.Task{}, &target.Task{}
	for _, tt := range []struct {
		k    *target.Task
		tag  uint64
		want target.Admission
	}{{a, 1, target.Admitted}, {b, 1, target.DuplicateTag}, {b, 65, target.Admitted}, {c, 3, target.Refused}} {
		if got := n.Enter(tt.k, o, lu, tt.tag); got != tt.want {
			t.Errorf("Enter with tag %d: %d, want %d", tt.tag, got, tt.want)
		}
	}
	if lu.InFlight() != 2 || lu.MostInFlight() != 2 || lu.TaskSetFull() != 1 {
		t.Errorf("in flight %d, most %d, full %d", lu.InFlight(), lu.MostInFlight(), lu.TaskSetFull())
	}
	if n.Find(65) != b || n.Find(2) != nil {
		t.Error("Find finds the wrong task")
	}
	if !a.FailUnexecuted(lun.Sense{Key: lun.AbortedCommand}) || a.Status != lun.CheckCondition {
		t.Error("a task that waits can't be failed")
	}
	ab, found := n.AbortTask(lu, 65)
	if ab.Wait(); !found || !slices.Equal(o.aborted, []uint64{65}) {
		t.Errorf("AbortTask: %v, %v", found, o.aborted)
	}
	if b.Execute() || b.Leave() {
		t.Error("an aborted task executes")
	}
	if lu.InFlight() != 0 {
		t.Errorf("%d in flight at rest", lu.InFlight())
	}
	n.Enter(c, o, lu, 7)
	n.Close()
	if !slices.Equal(o.aborted, []uint64{65, 7}) || lu.InFlight() != 0 {
		t.Errorf("after Close: %v, %d in flight", o.aborted, lu.InFlight())
	}
	if got := n.Enter(c, o, lu, 8); got != target.NexusClosed {
		t.Errorf("Enter after Close: %d", got)
	}
	if d := cmp.Diff([]lun.Event{lun.NexusLoss}, u.told()); d != "" {
		t.Errorf("the unit was told (-want +got):\n%s", d)
	}
}

// TestAbortRunning ends tasks that execute, by each function, and waits for them.
func TestAbortRunning(t *testing.T) {
	for _, tt := range []struct {
		name   string
		do     func(d *target.Target, n, other *target.Nexus, lu *target.LogicalUnit) target.Aborting
		others bool // are ended as well
		told   []lun.Event
	}{
		{"abort task", func(_ *target.Target, n, _ *target.Nexus, lu *target.LogicalUnit) target.Aborting {
			a, _ := n.AbortTask(lu, 1)
			return a
		}, false, nil},
		{"abort task set", func(_ *target.Target, n, _ *target.Nexus, lu *target.LogicalUnit) target.Aborting {
			return n.AbortTaskSet(lu)
		}, false, nil},
		{"clear task set", func(_ *target.Target, n, _ *target.Nexus, lu *target.LogicalUnit) target.Aborting {
			return n.ClearTaskSet(lu)
		}, true, []lun.Event{lun.CommandsLost}},
		{"logical unit reset", func(_ *target.Target, n, _ *target.Nexus, lu *target.LogicalUnit) target.Aborting {
			return n.LogicalUnitReset(lu)
		}, true, []lun.Event{lun.CommandsLost, lun.LogicalUnitReset}},
		{"target reset", func(_ *target.Target, n, _ *target.Nexus, lu *target.LogicalUnit) target.Aborting {
			return n.TargetReset()
		}, true, []lun.Event{lun.CommandsLost, lun.HardReset}},
		{"nexus reset", func(_ *target.Target, n, _ *target.Nexus, lu *target.LogicalUnit) target.Aborting {
			return n.NexusReset()
		}, false, []lun.Event{lun.NexusReset}},
		{"remove", func(d *target.Target, _, _ *target.Nexus, _ *target.LogicalUnit) (a target.Aborting) {
			if !d.Remove(0) {
				t.Error("nothing to remove")
			}
			return a
		}, true, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := target.New()
			u := &unit{gate: make(chan struct{})}
			lu, err := d.Add(0, u, target.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			n, other := d.Open(lun.Nexus{}, nil), d.Open(lun.Nexus{}, nil)
			answered := make([]chan bool, 2)
			for i, x := range []*target.Nexus{n, other} {
				k := &target.Task{}
				if got := x.Enter(k, &owner{}, lu, 1); got != target.Admitted {
					t.Fatal(got)
				}
				answered[i] = make(chan bool, 1)
				go func() {
					k.Execute()
					answered[i] <- k.Leave()
				}()
			}
			for u.waiting.Load() < 2 {
				runtime.Gosched()
			}
			a := tt.do(d, n, other, lu)
			a.Wait()
			if tt.name != "remove" && <-answered[0] {
				t.Error("the aborted task is answered")
			}
			if !tt.others {
				if got := lu.InFlight(); got != 1 {
					t.Errorf("%d in flight, want the other nexus's", got)
				}
				close(u.gate)
				if !<-answered[1] {
					t.Error("the other nexus's task isn't answered")
				}
			}
			if d := cmp.Diff(tt.told, u.told()); d != "" {
				t.Errorf("the unit was told (-want +got):\n%s", d)
			}
			n.Close()
			other.Close()
			if lu.InFlight() != 0 {
				t.Errorf("%d in flight at rest", lu.InFlight())
			}
		})
	}
}

func TestInventoryChanged(t *testing.T) {
	d := target.New()
	a, b := &unit{}, &unit{}
	d.Add(0, a, target.Limits{})
	n := d.Open(lun.Nexus{}, nil)
	defer n.Close()
	d.Add(1, b, target.Limits{})
	if got := a.told(); !slices.Equal(got, []lun.Event{lun.LUNsChanged}) {
		t.Errorf("on Add the first unit was told %v", got)
	}
	d.Remove(1)
	if got := a.told(); !slices.Equal(got, []lun.Event{lun.LUNsChanged}) {
		t.Errorf("on Remove the first unit was told %v", got)
	}
	if d.Remove(1) {
		t.Error("removed twice")
	}
}

// A unit may be closed once it is removed: what was looked up before then doesn't
// reach it.
func TestEnterRemoved(t *testing.T) {
	d := target.New()
	d.Add(0, &unit{}, target.Limits{})
	n := d.Open(lun.Nexus{}, nil)
	defer n.Close()
	for _, attr := range []lun.TaskAttribute{lun.Simple, lun.Ordered} {
		lu := n.Lookup(target.NumberAddress(0))
		d.Remove(0)
		k := &target.Task{}
		k.Attr = attr
		if got := n.Enter(k, &owner{}, lu, 1); got != target.Refused || k.Status != lun.CheckCondition || k.Sense[12] != 0x25 {
			t.Errorf("Enter: %v, status %02x, sense %x", got, k.Status, k.Sense)
		}
		d.Add(0, &unit{}, target.Limits{})
	}
}

// TestNoAllocations takes a READ and a WRITE of a memory disk through a task set
// that knows of no order, and one that does.
func TestNoAllocations(t *testing.T) {
	for _, rules := range []lun.TaskRules{{}, {Restricted: true}, {PerNexus: true}} {
		for _, cdb := range []string{"28000000000000000800", "2a000000000000000800"} {
			store, err := mem.New(1 << 20)
			if err != nil {
				t.Fatal(err)
			}
			disk, err := lun.NewDisk(store, lun.DiskOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer disk.Close()
			disk.TaskControl().SetRules(rules)
			d := target.New()
			lu, err := d.Add(0, disk, target.Limits{CmdPerLUN: 8})
			if err != nil {
				t.Fatal(err)
			}
			n := d.Open(lun.Nexus{Name: "initiator"}, nil)
			defer n.Close()
			var k target.Task
			k.CDB, _ = hex.DecodeString(cdb)
			data := [][]byte{make([]byte, 4096)}
			o, command := &owner{}, k.CDB
			run := func() {
				k.Reset()
				k.CDB, k.DataIn, k.DataOut = command, data, data
				if rules.PerNexus {
					k.Attr = lun.Ordered
				}
				if n.Enter(&k, o, lu, 7) != target.Admitted || !k.Execute() || !k.Leave() {
					t.Fatal("it isn't executed")
				}
			}
			for k.Status = lun.CheckCondition; k.Status != lun.Good; { // unit attentions
				run()
			}
			if got := testing.AllocsPerRun(100, run); got != 0 {
				t.Errorf("%x, %+v: %v allocations", k.CDB, rules, got)
			}
			if k.Status != lun.Good {
				t.Errorf("%x, %+v: status %02x, sense %x", k.CDB, rules, k.Status, k.Sense)
			}
		}
	}
}
