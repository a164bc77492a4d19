package tcmu

import (
	"lunlab/lun"
	"lunlab/target/shared"
)

const inquiry = 0x12

// task is a command from the ring until its answer is in the ring. Tasks are
// used again, so that a command allocates nothing.
type task struct {
	entry
	cmd lun.Command

	ring *ring
	run  func() // (*task).background, bound once

	// cancel is closed, and canceled set, when the command is aborted. Both
	// are guarded by ring.mu.
	cancel   chan struct{}
	canceled bool
}

func newTask(r *ring) *task {
	t := &task{ring: r, cancel: make(chan struct{})}
	t.run = t.background
	return t
}

// execute runs the command in its logical unit. Like answer, it reads and writes
// the data area, which the kernel may take away: see shared.GuardFault.
//
// A command that is executed by the ring's own goroutine has no cancel: nothing
// can abort it meanwhile.
func (t *task) execute(cancel <-chan struct{}) answer {
	r, c := t.ring, &t.cmd
	c.Reset()
	c.Nexus, c.CDB, c.Cancel, c.Path = r.nexus, t.cdb, cancel, t
	if c.CDB[0] == inquiry {
		// Linux takes a target for a SCSI-2 one until it has seen the INQUIRY data of
		// one of its units, and puts the LUN there.
		c.CDB[1] &= 0x1f
	}
	// The ring says nothing of the direction, but for bidirectional commands.
	if out, _ := r.unit.DataLength(t.cdb); out > 0 || t.bidi < len(t.iov) {
		c.DataOut, c.DataIn = t.iov[:t.bidi], t.iov[t.bidi:]
	} else {
		c.DataIn = t.iov
	}
	r.unit.Execute(c)
	return t.answer()
}

// answer makes the ring's words of what the unit answered.
func (t *task) answer() answer {
	c := &t.cmd
	a := answer{id: t.id, status: uint8(c.Status)}
	if c.Status == lun.CheckCondition {
		a.sense = c.Sense[:min(len(c.Sense), senseSize)]
	}
	room := uint64(0)
	for _, b := range c.DataIn {
		room += uint64(len(b))
	}
	if c.InLen >= room && c.Status != lun.CheckCondition {
		return a
	}
	// The kernel takes all of the data area's blocks, which still hold another
	// command's data behind what was stored now.
	if t.ring.mb.flags&capReadLen != 0 && c.InLen > 0 {
		a.readLen = uint32(min(c.InLen, room)) // with sense data, it says that there is data too
	} else if c.Status != lun.CheckCondition {
		zeroFrom(c.DataIn, c.InLen)
	}
	return a
}

func zeroFrom(v [][]byte, n uint64) {
	for _, b := range v {
		k := min(n, uint64(len(b)))
		clear(b[k:])
		n -= k
	}
}

// Drop implements [lun.Path]. A ring that is dropped is lost as when the process
// that serves it was killed and another one took it over: see [Device.serve].
func (t *task) Drop(l lun.Link) bool {
	if l != lun.RingLink {
		return false
	}
	t.ring.fail(errDropped)
	return true
}

// background runs the command on a goroutine of its own.
func (t *task) background() {
	r := t.ring
	defer r.workers.Done()
	var a answer
	if err := shared.GuardFault(func() { a = t.execute(t.cancel) }); err != nil {
		r.fail(err)
		return
	}
	r.complete(t, a)
	r.kick()
}
