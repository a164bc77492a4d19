package vhostuser

import (
	"errors"
	"fmt"

	"lunlab/lun"
	"lunlab/target"
	"lunlab/target/shared"
)

// task is a request from the available ring until it is in the used ring. Tasks
// are used again, so that a request allocates nothing.
type task struct {
	target.Task
	ring *ring

	// Methods, bound once.
	run, startIt, executeIt, deliverIt func()

	head     uint16
	features uint64
	over     bool  // it was given back; changes under ring.mu
	err      error // why it can't be started; only for who takes requests

	mem   *memory // held
	chain chain
	raw   [requestPISize]byte
	req   requestHeader
	resp  [][]byte // room for the response
	event event    // what it is answered with, in the event queue

	out, in         [][]byte // the guest's data, or part of chain
	outLen, inLen   uint64   // bytes of them
	pieces          [2]pieces
	buf             []byte // what is copied
	reserved        int64  // of the device's budget for buf
	bounceIn        []byte // part of buf
	toUnit, toGuest [2][]byte

	// shared says that another goroutine may still have a look at the task when it
	// has ended: it isn't used again.
	shared bool
}

func newTask(r *ring) *task {
	t := &task{ring: r}
	t.run, t.startIt, t.executeIt, t.deliverIt = t.background, t.start, t.execute, t.deliver
	return t
}

// guarded calls f, which is one of the task's. It returns an error if the request's
// memory is gone; then it has no answer. Else the task may be another request's by
// now.
func (t *task) guarded(f func()) error {
	err := shared.GuardFault(f)
	if err != nil && !t.over {
		t.release()
		t.drop()
	}
	return err
}

// keepBuffer is the most that a task keeps of the memory it copied to.
const keepBuffer = 64 << 10

var errDropped = errors.New("dropped on purpose")

var (
	senseOverlapped = lun.Sense{Key: lun.AbortedCommand, Code: 0x4e00}
	senseBadField   = lun.Sense{Key: lun.IllegalRequest, Code: 0x2400}
)

// start begins with what was taken off the ring.
func (t *task) start() {
	if t.err = t.ring.split.walk(t.mem, t.head, &t.chain); t.err != nil {
		t.drop()
		return
	}
	if t.ring.index == controlQueue {
		t.control()
		return
	}
	n := requestSize
	if t.features&featureT10PI != 0 {
		n = requestPISize
	}
	if size(t.chain.out) < uint64(n) || size(t.chain.in) < responseSize {
		t.refuse()
		return
	}
	t.out = consume(t.chain.out, t.raw[:n])
	t.req.decode(t.raw[:n])
	t.resp, t.in = cut(t.resp[:0], t.chain.in, responseSize)
	t.outLen, t.inLen = size(t.out), size(t.in)
	t.begin()
}

// refuse gives up a request that is too short or has no room for an answer.
func (t *task) refuse() {
	t.err = fmt.Errorf("descriptor %d: a request of %d bytes with room for %d", t.head, size(t.chain.out), size(t.chain.in))
	t.drop()
}

// drop forgets the request.
func (t *task) drop() {
	t.mem.drop()
	t.ring.complete(t, 0, false, false)
}

// begin lets the command enter its task set, and executes it here or apart.
func (t *task) begin() {
	s := t.ring.s
	a, ok := address(t.req.lun)
	if !ok {
		t.answer(answer{response: responseBadTarget})
		return
	}
	t.Reset()
	if t.Attr, ok = attribute(t.req.attr); !ok {
		t.answer(answer{response: responseFailure})
		return
	}
	t.Priority, t.CDB, t.Path = t.req.prio&0xf, t.req.cdb[:], t
	lu := s.nexus.Lookup(a)
	t.Inline = !lun.Waits(lu.Unit(), t.CDB)
	if !t.layout(lu) {
		t.answerCommand()
		return
	}
	switch s.nexus.Enter(&t.Task, t, lu, tagOf(t.req.id)) {
	case target.Admitted:
	case target.DuplicateTag:
		t.Fail(senseOverlapped)
		t.answerCommand()
		return
	case target.Refused:
		t.answerCommand()
		return
	case target.NexusClosed:
		t.release()
		t.drop()
		return
	}
	if t.Inline {
		t.execute()
		return
	}
	s.begin()
	go t.run()
}

// background executes the command on a goroutine of its own.
func (t *task) background() {
	r := t.ring
	defer r.s.end()
	if err := t.guarded(t.executeIt); err != nil {
		r.fail(err)
	}
	r.guardedSignal()
}

func (r *ring) guardedSignal() {
	if err := shared.GuardFault(r.signalIt); err != nil {
		r.fail(err)
	}
}

// execute executes the command, and answers if it is ours to answer.
func (t *task) execute() {
	if !t.Execute() {
		return
	}
	t.ring.settling.RLock()
	defer t.ring.settling.RUnlock()
	if t.Leave() {
		t.answerCommand()
	} else {
		t.answer(answer{response: t.abortedAs()})
	}
}

// abortedAs is the response to a request that was aborted in silence. In virtio
// each is given back: Linux tries it again if that was by a reset (DID_RESET), and
// else reports an I/O error.
func (t *task) abortedAs() response {
	if t.ring.draining.Load() || t.ring.s.resetting.Load() > 0 {
		return responseReset
	}
	return responseAborted
}

// TaskAborted implements [target.Owner].
func (t *task) TaskAborted(*target.Task) {
	t.shared = true
	r := t.ring
	err := t.guarded(func() {
		if t.Status == lun.TaskAborted {
			t.answerCommand()
		} else {
			t.answer(answer{response: t.abortedAs()})
		}
	})
	if err != nil {
		r.fail(err)
	}
	r.guardedSignal()
}

// TaskDeferred implements [target.Owner].
func (t *task) TaskDeferred(*target.Task) { t.Inline, t.shared = false, true }

// TaskReady implements [target.Owner].
func (t *task) TaskReady(*target.Task) {
	t.ring.s.begin()
	go t.run()
}

// answerCommand answers with what the command's outcome is.
func (t *task) answerCommand() {
	stored := min(t.InLen, t.inLen)
	if t.bounceIn != nil {
		t.toGuest[0] = t.bounceIn[:min(stored, uint64(len(t.bounceIn)))]
		copyAll(t.in, t.toGuest[:1])
	}
	a := answer{status: t.Status, residual: uint32(t.inLen - stored)}
	if t.inLen == 0 {
		a.residual = uint32(t.outLen - min(t.OutLen, t.outLen))
	}
	if t.Status == lun.CheckCondition {
		a.sense = t.Sense
	} else if t.InLen > t.inLen || t.OutLen > t.outLen {
		a.response = responseOverrun
	}
	t.finish(a, uint32(stored))
}

// answer answers without any data.
func (t *task) answer(a answer) {
	a.residual = uint32(max(t.inLen, t.outLen))
	t.finish(a, 0)
}

func (t *task) finish(a answer, data uint32) {
	var b [responseSize]byte
	a.encode(&b)
	rest := b[:]
	for _, p := range t.resp {
		rest = rest[copy(p, rest):]
	}
	t.complete(responseSize + data)
}

// complete gives the request back.
func (t *task) complete(n uint32) {
	t.release()
	t.mem.drop()
	t.ring.complete(t, n, true, !t.shared)
}

// release gives up what belongs to the command's data.
func (t *task) release() {
	t.ring.s.dev.copied.Add(-t.reserved)
	t.reserved, t.bounceIn = 0, nil
	t.toUnit, t.toGuest = [2][]byte{}, [2][]byte{}
	if cap(t.buf) > keepBuffer {
		t.buf = nil
	}
	for i := range t.pieces {
		t.pieces[i].release()
	}
}

// Drop implements [lun.Path]: the ring breaks, or the connection to the front end.
func (t *task) Drop(l lun.Link) bool {
	if l == lun.RingLink {
		t.ring.fail(errDropped)
		return true
	}
	t.ring.s.conn.Close()
	return true
}
