package tcmu

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lunlab/lun"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// testUnit is a unit whose Execute is a function. It moves as much data as
// bytes 2 to 5 of the CDB say, out if the operation code is 0x2a.
type testUnit struct {
	blocking bool
	execute  func(*lun.Command)

	mu     sync.Mutex
	events []lun.Event
}

func (u *testUnit) Execute(c *lun.Command) { u.execute(c) }
func (u *testUnit) Blocking() bool         { return u.blocking }

func (u *testUnit) DataLength(cdb []byte) (out, in uint64) {
	n := uint64(binary.BigEndian.Uint32(cdb[2:]))
	if cdb[0] == 0x2a {
		return n, 0
	}
	return 0, n
}

func (u *testUnit) Notify(_ *lun.Nexus, e lun.Event) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.events = append(u.events, e)
}

func cdb(op byte, n int) []byte {
	b := make([]byte, 16)
	b[0] = op
	binary.BigEndian.PutUint32(b[2:], uint32(n))
	return b
}

func join(v [][]byte) []byte { return bytes.Join(v, nil) }

func fill(v [][]byte, d []byte) uint64 {
	n := len(d)
	for _, b := range v {
		d = d[copy(b, d):]
	}
	return uint64(n)
}

func TestCommands(t *testing.T) {
	var got *lun.Command
	var in, out []byte
	u := &testUnit{execute: func(c *lun.Command) {
		got, out = c, join(c.DataOut)
		switch c.CDB[0] {
		case 0x28:
			c.InLen = fill(c.DataIn, in)
		case 0xc0:
			c.InLen = fill(c.DataIn, in)
			c.Fail(lun.Sense{Key: lun.RecoveredError, Code: 0x1701})
		case 0xc1:
			c.Status = lun.TaskSetFull
		}
	}}
	p := newProducer(t, 4096, 4)
	p.start(u)

	pattern := bytes.Repeat([]byte("0123456789abcdef"), 256)
	p.run(cdb(0x2a, 4096), 4096, 3, pattern)
	if !bytes.Equal(out, pattern) {
		t.Error("data-out differs")
	}
	if len(got.DataIn) != 0 || got.Nexus == nil || got.Cancel != nil || got.Path == nil {
		t.Errorf("command: %d data-in buffers, nexus %v, cancel %v, path %v", len(got.DataIn), got.Nexus, got.Cancel, got.Path)
	}

	in = pattern
	c := p.run(cdb(0x28, 4096), 4096, 2, make([]byte, 4096))
	if !bytes.Equal(p.data(c.id, 4096), pattern) {
		t.Error("data-in differs")
	}
	if c.status != 0 || c.uflags != 0 || c.readLen != 0 {
		t.Errorf("full read: %+v", c)
	}

	in = pattern[:100]
	c = p.run(cdb(0x28, 4096), 4096, 1, nil)
	if c.uflags != uflagReadLen || c.readLen != 100 {
		t.Errorf("short read: uflags %#x, read_len %d; want %#x, 100", c.uflags, c.readLen, uflagReadLen)
	}

	// What another command left in the data area must not get out.
	in = nil
	c = p.run(cdb(0x28, 4096), 4096, 3, pattern)
	if c.uflags != 0 || !bytes.Equal(p.data(c.id, 4096), make([]byte, 4096)) {
		t.Errorf("read of nothing: uflags %#x, or old data is left", c.uflags)
	}

	withLUN := cdb(0x12, 0)
	withLUN[1] = 0x61
	if p.run(withLUN, 0, 0, nil); got.CDB[1] != 1 {
		t.Errorf("INQUIRY with a LUN in its CDB: %x", got.CDB)
	}

	in = pattern[:10]
	c = p.run(cdb(0xc0, 10), 4096, 1, nil)
	want := completion{id: c.id, status: uint8(lun.CheckCondition), uflags: uflagReadLen, readLen: 10}
	copy(want.sense[:], lun.Sense{Key: lun.RecoveredError, Code: 0x1701}.AppendFixed(nil))
	if c != want {
		t.Errorf("sense and data: %+v, want %+v", c, want)
	}

	in = pattern
	c = p.run(cdb(0xc0, 4096), 4096, 1, nil)
	if c.status != uint8(lun.CheckCondition) || c.readLen != 4096 || !bytes.Equal(p.data(c.id, 4096), pattern) {
		t.Errorf("sense and all of the data: %+v", c)
	}

	c = p.run(cdb(0xc1, 0), 0, 0, nil)
	if want := (completion{id: c.id, status: uint8(lun.TaskSetFull)}); c != want {
		t.Errorf("status: %+v, want %+v", c, want)
	}
}

// TestOutOfOrder completes commands in another order than they came in.
func TestOutOfOrder(t *testing.T) {
	var mu sync.Mutex
	gates := map[byte]chan struct{}{}
	for i := range byte(4) {
		gates[i] = make(chan struct{})
	}
	u := &testUnit{blocking: true, execute: func(c *lun.Command) {
		mu.Lock()
		g := gates[c.CDB[15]]
		mu.Unlock()
		<-g
		c.Status = lun.Status(c.CDB[15])
	}}
	p := newProducer(t, 4096, 4)
	r, _ := p.start(u)
	ids := map[byte]uint16{}
	for i := range byte(4) {
		b := cdb(0, 0)
		b[15] = i
		ids[i], _ = p.submit(b, 0, 0, nil)
	}
	p.ring()
	for end := time.Now().Add(10 * time.Second); r.snapshot().InFlight < 4 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	for _, i := range []byte{2, 0, 3, 1} {
		close(gates[i])
		c := p.wait(1)[0]
		if want := (completion{id: ids[i], status: i}); c != want {
			t.Errorf("got %+v, want %+v", c, want)
		}
	}
	if s := r.snapshot(); s.MaxInFlight != 4 || s.InFlight != 0 || s.Commands != 4 {
		t.Errorf("stats: %+v", s)
	}
}

// TestStress runs many commands of random sizes through a small ring, which
// wraps around with pads, and checks every byte.
func TestStress(t *testing.T) {
	for _, blocking := range []bool{false, true} {
		disk := make([]byte, 64*prodDataSlot)
		u := &testUnit{blocking: blocking, execute: func(c *lun.Command) {
			d := disk[int(c.CDB[15])*prodDataSlot:]
			if c.CDB[0] == 0x2a {
				copy(d, join(c.DataOut))
				return
			}
			c.InLen = fill(c.DataIn, d[:binary.BigEndian.Uint32(c.CDB[2:])])
		}}
		p := newProducer(t, 3*1024+512+64, 32)
		r, _ := p.start(u)
		rnd := rand.New(rand.NewPCG(1, 2))
		written := map[int][]byte{}
		busy := map[int]bool{}
		type op struct {
			slot, n int
			write   []byte
		}
		running := map[uint16]op{}
		check := func(c completion) {
			o := running[c.id]
			delete(running, c.id)
			busy[o.slot] = false
			if c.status != 0 {
				t.Errorf("status %#x", c.status)
			}
			if o.write != nil {
				written[o.slot] = o.write
			} else if want := written[o.slot][:o.n]; !bytes.Equal(p.data(c.id, o.n), want) {
				t.Fatalf("slot %d: %d bytes differ", o.slot, o.n)
			}
		}
		const total = 20000
		for done := 0; done < total; {
			for range rnd.IntN(16) {
				o := op{slot: rnd.IntN(32)}
				if busy[o.slot] {
					continue
				}
				code := byte(0x28)
				if o.n = rnd.IntN(len(written[o.slot]) + 1); o.n == 0 || rnd.IntN(2) == 0 {
					code, o.n = 0x2a, 1+rnd.IntN(2048)
					o.write = make([]byte, o.n)
					for i := range o.write {
						o.write[i] = byte(rnd.Uint32())
					}
				}
				b := cdb(code, o.n)
				b[15] = byte(o.slot)
				id, ok := p.submit(b, o.n, 1+rnd.IntN(7), o.write)
				if !ok {
					break
				}
				busy[o.slot], running[id] = true, o
			}
			p.ring()
			if n := p.reap(check); n > 0 {
				done += n
			} else if len(running) > 0 {
				p.bell.waitDoorbell(time.Millisecond)
			}
		}
		for _, c := range p.wait(len(running)) {
			check(c)
		}
		s := r.snapshot()
		if s.Commands < total || s.InFlight != 0 {
			t.Errorf("stats: %+v", s)
		}
	}
}

// TestThousandsHeld holds 8,192 commands at once, and completes them with far
// fewer doorbells.
func TestThousandsHeld(t *testing.T) {
	const n = 8192
	hold := make(chan struct{})
	var held atomic.Int64
	u := &testUnit{blocking: true, execute: func(c *lun.Command) {
		held.Add(1)
		<-hold
	}}
	p := newProducer(t, 2<<20, n)
	r, _ := p.start(u)
	for range n {
		if _, ok := p.submit(cdb(0, 0), 0, 0, nil); !ok {
			t.Fatal("ring is full")
		}
	}
	p.ring()
	for end := time.Now().Add(10 * time.Second); held.Load() < n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d commands of %d are held", held.Load(), n)
		}
	}
	if s := r.snapshot(); s.InFlight != n || s.MaxInFlight != n {
		t.Errorf("stats: %+v", s)
	}
	close(hold)
	p.wait(n)
}

func TestDoorbellPerBatch(t *testing.T) {
	p := newProducer(t, 64<<10, 200)
	for range 100 {
		p.submit(cdb(0, 0), 0, 0, nil)
	}
	p.publish()
	r, _ := p.start(&testUnit{execute: func(*lun.Command) {}})
	p.wait(100)
	if n := p.bell.writes.Load(); n > 4 {
		t.Errorf("%d doorbells for a batch of 100 commands, want at most 4", n)
	}
	if s := r.snapshot(); s.Commands != 100 {
		t.Errorf("stats: %+v", s)
	}
}

func TestTaskManagement(t *testing.T) {
	var canceled atomic.Int64
	hold := make(chan struct{})
	u := &testUnit{blocking: true, execute: func(c *lun.Command) {
		select {
		case <-c.Cancel:
			canceled.Add(1)
		case <-hold:
		}
	}}
	p := newProducer(t, 8192, 8)
	r, _ := p.start(u)
	var ids []uint16
	for range 4 {
		id, _ := p.submit(cdb(0, 0), 0, 0, nil)
		ids = append(ids, id)
	}
	p.ring()
	p.tmr(TMRAbortTask, ids[1])
	p.ring()
	if c := p.wait(1)[0]; c.id != ids[1] || c.status != uint8(lun.TaskAborted) {
		t.Errorf("aborted: %+v, want id %d, status %#x", c, ids[1], lun.TaskAborted)
	}
	// One that isn't in flight any more, one that never was, and one that is.
	p.tmr(TMRLUNReset, ids[1], 9999, ids[3])
	p.ring()
	if c := p.wait(1)[0]; c.id != ids[3] || c.status != uint8(lun.TaskAborted) {
		t.Errorf("reset: %+v, want id %d, status %#x", c, ids[3], lun.TaskAborted)
	}
	p.tmr(TMRTargetColdReset)
	p.tmr(TMRClearTaskSet)
	p.tmr(TMRLUNResetPRO)
	p.ring()
	close(hold)
	for _, c := range p.wait(2) {
		if c.status != 0 {
			t.Errorf("not aborted: %+v", c)
		}
	}
	// A command after an abort is not taken for aborted.
	if c := p.run(cdb(0, 0), 0, 0, nil); c.status != 0 {
		t.Errorf("after an abort: %+v", c)
	}
	if canceled.Load() != 2 {
		t.Errorf("%d units saw Cancel, want 2", canceled.Load())
	}
	want := []lun.Event{lun.LogicalUnitReset, lun.HardReset, lun.CommandsCleared}
	if diff := cmp.Diff(want, u.events); diff != "" {
		t.Errorf("events: %s", diff)
	}
	if s := r.snapshot(); s.TMRs != 5 || s.Aborted != 2 {
		t.Errorf("stats: %+v", s)
	}
}

func TestUnknownOperation(t *testing.T) {
	p := newProducer(t, 4096, 4)
	r, _ := p.start(&testUnit{execute: func(*lun.Command) {}})
	b := p.place(64)
	native.PutUint32(b, 64|5)
	if c := p.run(cdb(0, 0), 0, 0, nil); c.status != 0 {
		t.Errorf("the command behind it: %+v", c)
	}
	if b[hdrUflags] != uflagUnknownOp {
		t.Errorf("uflags %#x, want %#x", b[hdrUflags], uflagUnknownOp)
	}
	if s := r.snapshot(); s.Unknown != 1 {
		t.Errorf("stats: %+v", s)
	}
}

// TestPageTakenAway has the kernel take a page of the data area away, as it may
// when a ring is reset under its reader: from a unit that stores data there, and
// from the ring, which clears what a unit that answers short has left.
func TestPageTakenAway(t *testing.T) {
	stores := func(c *lun.Command) { fill(c.DataIn, make([]byte, 512)) }
	short := func(*lun.Command) {}
	for name, u := range map[string]*testUnit{
		"stores":           {execute: stores},
		"stores, blocking": {execute: stores, blocking: true},
		"short":            {execute: short},
		"short, blocking":  {execute: short, blocking: true},
	} {
		t.Run(name, func(t *testing.T) { pageTakenAway(t, u) })
	}
}

func pageTakenAway(t *testing.T, u *testUnit) {
	fd, err := unix.MemfdCreate("ring", unix.MFD_CLOEXEC)
	if err != nil {
		t.Skip(err)
	}
	defer unix.Close(fd)
	p := newProducer(t, 4096-prodOff, 4)
	size := len(p.mem) &^ 4095
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	copy(mem, p.mem[:4096])
	p.mem = mem
	_, done := p.start(u)
	p.submit(cdb(0x28, 512), 512, 1, nil)
	if err := unix.Ftruncate(fd, 4096); err != nil {
		t.Fatal(err)
	}
	p.ring()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "shared memory is gone") {
			t.Errorf("error %v, want that the shared memory is gone", err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("the ring is still served")
	}
	if err := unix.Munmap(mem); err != nil {
		t.Error(err)
	}
}

func TestCommandsAllocateNothing(t *testing.T) {
	p := newProducer(t, 64<<10, 64)
	mb, err := openMailbox(p.mem)
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 4096)
	u := &testUnit{execute: func(c *lun.Command) {
		if c.CDB[0] == 0x2a {
			for _, v := range c.DataOut {
				copy(data, v)
			}
			return
		}
		c.InLen = fill(c.DataIn, data)
	}}
	r, err := newRing(mb, p.bell, u, &lun.Nexus{})
	if err != nil {
		t.Fatal(err)
	}
	read, write := cdb(0x28, 4096), cdb(0x2a, 4096)
	batch := func() {
		for i := range 32 {
			b := read
			if i%2 == 0 {
				b = write
			}
			if _, ok := p.submit(b, 4096, 2, nil); !ok {
				t.Fatal("ring is full")
			}
		}
		p.publish()
		if n, err := r.guardedPoll(); err != nil || n < 32 {
			t.Fatal(n, err)
		}
		p.reap(nil)
	}
	for range 100 {
		batch()
	}
	if n := testing.AllocsPerRun(200, batch); n > 0 {
		t.Errorf("%v allocations for 32 commands, want 0", n)
	}
}

func TestSlots(t *testing.T) {
	var q slots
	var want []uint32
	rnd := rand.New(rand.NewPCG(3, 4))
	for i := range uint32(10000) {
		if rnd.IntN(5) > 1 || len(want) == 0 {
			q.push(slot{pos: i})
			want = append(want, i)
			continue
		}
		if got := q.oldest().pos; got != want[0] {
			t.Fatalf("oldest is %d, want %d", got, want[0])
		}
		q.pop()
		want = slices.Delete(want, 0, 1)
		if q.len() != len(want) {
			t.Fatalf("length is %d, want %d", q.len(), len(want))
		}
	}
}

// TestDropInRing loses the ring that a command came by: nothing is answered any more,
// and what executes is canceled.
func TestDropInRing(t *testing.T) {
	canceled := make(chan struct{})
	u := &testUnit{blocking: true, execute: func(c *lun.Command) {
		if c.CDB[0] == 0x2a {
			<-c.Cancel
			close(canceled)
			return
		}
		if c.Path.Drop(lun.SessionLink) || !c.Path.Drop(lun.RingLink) {
			t.Error("a session is there, or no ring")
		}
	}}
	p := newProducer(t, 4096, 4)
	_, served := p.start(u)
	for _, b := range [][]byte{cdb(0x2a, 512), cdb(0x28, 512)} {
		if _, ok := p.submit(b, 512, 1, nil); !ok {
			t.Fatal("no room")
		}
	}
	p.ring()
	<-canceled
	if err := <-served; err != errDropped {
		t.Errorf("the ring ends with %v, want %v", err, errDropped)
	}
	if n := p.reap(func(completion) {}); n != 0 {
		t.Errorf("%d answers in a ring that was lost", n)
	}
}
