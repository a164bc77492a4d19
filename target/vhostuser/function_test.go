package vhostuser_test

import (
	"testing"
	"time"

	"lunlab/lun"
	"lunlab/target"
	"lunlab/target/vhostuser"
)

// lateUnit is a disk whose READs wait for release, or for their end.
type lateUnit struct {
	*lun.Disk
	release chan struct{}
}

func (lateUnit) Blocking() bool { return true }

func (u lateUnit) Execute(c *lun.Command) {
	if c.CDB[0] == read16 {
		select {
		case <-u.release:
		case <-c.Cancel:
		}
	}
	u.Disk.Execute(c)
}

func (u lateUnit) Unwrap() lun.Unit { return u.Disk }

// tmf runs a task management function and returns the response.
func (q *queue) tmf(head uint16, function uint32, id uint64) (response byte) {
	q.f.t.Helper()
	base := uint32(dataBase) + uint32(head)*slot
	b := q.f.mem[base:]
	clear(b[:64])
	le.PutUint32(b[4:], function)
	b[8], b[10] = 1, 0x40
	le.PutUint64(b[16:], id)
	b[32] = 0xee
	q.put(head, buf{base, 24, false}, buf{base + 32, 1, true})
	q.ring()
	q.wait()
	return b[32]
}

// inFlight waits until so many commands are in flight.
func inFlight(t *testing.T, lu *target.LogicalUnit, n int) {
	t.Helper()
	for end := time.Now().Add(patience); lu.InFlight() != n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d commands in flight, want %d", lu.InFlight(), n)
		}
	}
}

func TestFunctions(t *testing.T) {
	u := lateUnit{memoryDisk(t, 1<<20, lun.DiskOptions{}), make(chan struct{})}
	tg := targetOf(t, u)
	lu := tg.Units()[0]
	path, _ := serve(t, vhostuser.Options{Target: tg})
	f := dial(t, path, version1|protocol|eventIdx, true)
	ctl, q := f.queue(0, 16), f.queue(2, 16)
	q.ready(0)
	const ctlHead = 12
	hold := func(head uint16, id uint64) {
		q.submit(head, &command{id: id, cdb: rw16(read16, 0, 1), in: 512})
	}
	// aborted sees to it that the request is in the used ring by now.
	aborted := func(what string, want byte, heads ...uint16) {
		t.Helper()
		for range heads {
			head, n, ok := q.poll()
			if !ok {
				t.Errorf("%s: complete before what it aborted", what)
				return
			}
			var c command
			if q.result(head, n, &c); c.response != want {
				t.Errorf("%s: response %d, want %d", what, c.response, want)
			}
		}
	}
	hold(0, 100)
	hold(4, 101)
	inFlight(t, lu, 2)
	for _, x := range []struct {
		what     string
		function uint32
		id       uint64
		want     byte
	}{
		{"QUERY TASK", 6, 100, 10}, {"QUERY TASK of none", 6, 102, 0}, {"QUERY TASK SET", 7, 0, 10},
		{"ABORT TASK of none", 0, 102, 0}, {"no such function", 77, 0, 11}, {"CLEAR ACA", 2, 0, 0},
	} {
		if got := ctl.tmf(ctlHead, x.function, x.id); got != x.want {
			t.Errorf("%s: response %d, want %d", x.what, got, x.want)
		}
	}
	if got := ctl.tmf(ctlHead, 0, 100); got != 0 {
		t.Errorf("ABORT TASK: response %d", got)
	}
	aborted("ABORT TASK", 2, 0)
	for _, x := range []struct {
		what     string
		function uint32
		as       byte
	}{{"ABORT TASK SET", 1, 2}, {"LOGICAL UNIT RESET", 5, 4}, {"CLEAR TASK SET", 3, 2}, {"I_T NEXUS RESET", 4, 4}} {
		hold(0, 103) // with what is held already
		if got := ctl.tmf(ctlHead, x.function, 0); got != 0 {
			t.Errorf("%s: response %d", x.what, got)
		}
		aborted(x.what, x.as, 0, 4)
		for q.run(command{cdb: testUnitReady}).status != 0 {
		}
		hold(4, 104)
	}
	// A virtqueue that is stopped has nothing in flight.
	stopped := make(chan []byte)
	go func() { stopped <- f.ask(11, state(2, 0)) }()
	close(u.release)
	if b := <-stopped; le.Uint32(b[4:]) != uint32(q.avail) {
		t.Errorf("stopped at %d, want %d", le.Uint32(b[4:]), q.avail)
	}
	aborted("stop", 0, 4)
	q.setUp()
	q.good(command{cdb: rw16(read16, 0, 1), in: 512})
	// Subscriptions are answered: there is nothing to subscribe to.
	b := f.mem[dataBase+ctlHead*slot:]
	clear(b[:64])
	b[0], b[4], b[12] = 2, 1, 0xff
	copy(b[32:], "\xee\xee\xee\xee\xee")
	ctl.put(ctlHead, buf{dataBase + ctlHead*slot, 16, false}, buf{dataBase + ctlHead*slot + 32, 5, true})
	ctl.ring()
	if _, n := ctl.wait(); n != 5 || le.Uint32(b[32:]) != 0 || b[36] != 0 {
		t.Errorf("subscription: % x", b[32:37])
	}
	// And a reset aborts without an answer.
	f.must(34, nil)
}

// TestEvents has the driver told of what befalls logical units.
func TestEvents(t *testing.T) {
	path, d := serve(t, vhostuser.Options{Target: targetOf(t)})
	f := dial(t, path, version1|protocol|hotplug|change|eventIdx, true)
	q := f.queue(1, 16)
	put := func(head uint16) {
		q.put(head, buf{dataBase + uint32(head)*64, 16, true})
		q.ring()
	}
	expect := func(kind uint32, l uint16, reason uint32) {
		t.Helper()
		head, n := q.wait()
		b := f.mem[dataBase+int(head)*64:]
		want := append(append(le.AppendUint32(nil, kind), 1, 0, 0x40|byte(l>>8), byte(l), 0, 0, 0, 0), le.AppendUint32(nil, reason)...)
		if n != 16 || string(b[:16]) != string(want) {
			t.Errorf("event % x, want % x", b[:16], want)
		}
	}
	put(0)
	put(1)
	d.Announce(3, vhostuser.Added)
	expect(1, 3, 1)
	d.Announce(300, vhostuser.Removed)
	expect(1, 300, 2)
	d.Announce(4, vhostuser.Changed)
	for range 70 {
		d.Announce(5, vhostuser.Changed)
	}
	put(2)
	expect(3|1<<31, 4, 0x092a)
	put(3)
	expect(3, 5, 0x092a)
}

// TestRestart loses nothing that was in flight when the process was killed: another
// one takes over what the front end kept of it.
func TestRestart(t *testing.T) {
	late := lateUnit{memoryDisk(t, 1<<20, lun.DiskOptions{}), make(chan struct{})}
	tg := targetOf(t, late)
	path, _ := serve(t, vhostuser.Options{Target: tg})
	f := dial(t, path, version1|protocol|eventIdx, true)
	f.send(31, 0, append(make([]byte, 16), 3, 0, 16, 0, 0, 0, 0, 0)) // padded, as QEMU's is
	info, fd, err := f.reply()
	if err != nil || fd < 0 {
		t.Fatalf("no memory for what is in flight: %v", err)
	}
	f.must(32, info, fd)
	q := f.queue(2, 16)
	q.ready(0)
	q.submit(0, &command{id: 1, cdb: rw16(read16, 0, 1), in: 512})
	q.submit(4, &command{id: 2, cdb: rw16(read16, 1, 1), in: 512})
	inFlight(t, tg.Units()[0], 2)
	f.conn.Close()
	inFlight(t, tg.Units()[0], 0)
	if _, _, ok := q.poll(); ok {
		t.Error("something was completed that was held back")
	}
	close(late.release)
	f.connect(path)
	f.must(32, info, fd)
	q.setUp()
	for range 2 {
		head, n := q.wait()
		var c command
		if q.result(head, n, &c); c.response != 0 {
			t.Errorf("descriptor %d: response %d", head, c.response)
		}
	}
	q.run(command{cdb: testUnitReady})
	q.good(command{cdb: testUnitReady})
}
