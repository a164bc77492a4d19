package tcmu

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"lunlab/lun"
	"lunlab/target/shared"
)

// Stats counts what a device has done since it was created.
type Stats struct {
	Commands    uint64 // read from the ring
	InFlight    int    // of these, not answered yet
	MaxInFlight int    // the most that there were at once
	Aborted     uint64 // commands that a task management request hit in flight
	TMRs        uint64 // task management requests
	Unknown     uint64 // ring entries of an operation that isn't known
	Wakeups     uint64 // reads of the UIO device
	Doorbells   uint64 // writes to it
}

// bell is the UIO device: a read of 4 bytes waits for the kernel, a write of 4
// bytes wakes it. A read deadline in the past ends a read.
type bell interface {
	io.ReadWriter
	SetReadDeadline(time.Time) error
}

// ring serves one mapping. One goroutine is in serve; it alone reads entries,
// and it runs the commands of a unit that doesn't block. Commands of one that
// does run on goroutines of their own. Any of them completes commands, under
// mu.
type ring struct {
	mb    *mailbox
	bell  bell
	unit  lun.Unit
	nexus *lun.Nexus
	onTMR func(TMRType)

	next uint32 // where serve reads; serve's own, as is
	cur  *task  // what it reads into

	workers sync.WaitGroup

	mu       sync.Mutex
	slots    slots  // entries that were read and not given back yet, oldest first
	tail     uint32 // what cmd_tail is
	byID     []*task
	free     []*task
	failure  error
	inFlight int
	stats    Stats

	kicks     atomic.Int64
	doorbells atomic.Uint64
}

func newRing(mb *mailbox, bell bell, unit lun.Unit, nexus *lun.Nexus) (*ring, error) {
	r := &ring{mb: mb, bell: bell, unit: unit, nexus: nexus, tail: mb.tail()}
	if r.tail >= mb.size || r.tail%opAlign != 0 {
		return nil, ringErr("cmd_tail is %d in a ring of %d", r.tail, mb.size)
	}
	r.next = r.tail
	r.cur = newTask(r)
	return r, nil
}

// serve handles the ring until stop is called, which gives errStopped, or until
// it is broken. Afterwards nothing touches the mapping any more.
func (r *ring) serve() error {
	r.fail(r.loop())
	r.abortAll()
	r.workers.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failure
}

func (r *ring) loop() error {
	var count [4]byte
	for {
		n, err := r.guardedPoll()
		if err != nil {
			return err
		}
		if n > 0 {
			continue // there may be more by now
		}
		if _, err := r.bell.Read(count[:]); err != nil {
			return fmt.Errorf("wait for the ring: %w", err)
		}
		r.mu.Lock()
		r.stats.Wakeups++
		r.mu.Unlock()
	}
}

func (r *ring) guardedPoll() (n int, err error) {
	if fault := shared.GuardFault(func() { n, err = r.poll() }); fault != nil {
		return 0, fault
	}
	return n, err
}

// poll handles the entries that the ring holds now, and returns their number.
func (r *ring) poll() (n int, err error) {
	head, err := r.mb.head()
	if err != nil {
		return 0, err
	}
	before := r.tailNow()
	for r.next != head {
		t := r.cur
		if err := r.mb.read(r.next, head, &t.entry); err != nil {
			return n, err
		}
		r.next = (r.next + t.len) % r.mb.size
		n++
		switch t.op {
		case opCmd:
			if err := r.start(t); err != nil {
				return n, err
			}
			r.cur = r.task()
			if lun.Waits(r.unit, t.cdb) {
				r.workers.Add(1)
				go t.run()
			} else {
				r.complete(t, t.execute(nil))
			}
			continue
		case opTMR:
			r.manage(&t.entry)
		case opPad:
		default:
			r.mb.markUnknown(t.pos)
		}
		if err := r.skip(&t.entry); err != nil {
			return n, err
		}
	}
	if r.tailNow() != before {
		r.kick()
	}
	return n, nil
}

func (r *ring) tailNow() uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tail
}

// task takes an unused task.
func (r *ring) task() *task {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.free); n > 0 {
		t := r.free[n-1]
		r.free = r.free[:n-1]
		return t
	}
	return newTask(r)
}

// start books the command as in flight.
func (r *ring) start(t *task) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.checkTail(); err != nil {
		return err
	}
	if int(t.id) >= len(r.byID) {
		r.byID = append(r.byID, make([]*task, int(t.id)+1-len(r.byID))...)
	}
	if r.byID[t.id] != nil {
		return ringErr("command id %d at %d is in use", t.id, t.pos)
	}
	r.byID[t.id] = t
	r.slots.push(slot{t.pos, t.len, true})
	r.inFlight++
	r.stats.Commands++
	r.stats.MaxInFlight = max(r.stats.MaxInFlight, r.inFlight)
	return nil
}

// checkTail tells whether cmd_tail, which is ours alone, is what we left there.
func (r *ring) checkTail() error {
	if t := r.mb.tail(); t != r.tail {
		return ringErr("cmd_tail is %d and should be %d: the ring was reset", t, r.tail)
	}
	return nil
}

// skip gives an entry back that has no answer.
func (r *ring) skip(e *entry) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.checkTail(); err != nil {
		return err
	}
	if e.op > opTMR {
		r.stats.Unknown++
	}
	r.slots.push(slot{e.pos, e.len, false})
	r.giveBack()
	return nil
}

// complete puts t's answer into the ring. Answers go into the places of the
// oldest commands, whichever they are for.
func (r *ring) complete(t *task, a answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byID[t.id] = nil
	r.inFlight--
	if t.canceled {
		// The kernel waits for the entry, and tells no one its status.
		if !t.cmd.AnswerAborted {
			a = answer{id: t.id, status: uint8(lun.TaskAborted)}
		}
		t.cancel, t.canceled = make(chan struct{}), false
	}
	r.free = append(r.free, t)
	if r.failure != nil {
		return
	}
	// A command's slot is the oldest there is: slots before it were given back.
	s := r.slots.pop()
	r.mb.write(s.pos, a)
	r.tail = (r.tail + s.len) % r.mb.size
	r.giveBack()
}

// giveBack moves cmd_tail past the oldest entries that need no answer.
func (r *ring) giveBack() {
	for r.slots.len() > 0 && !r.slots.oldest().cmd {
		r.tail = (r.tail + r.slots.pop().len) % r.mb.size
	}
	r.mb.setTail(r.tail)
}

// manage carries out a task management request.
func (r *ring) manage(e *entry) {
	r.mu.Lock()
	r.stats.TMRs++
	for _, id := range e.ids {
		if int(id) < len(r.byID) && r.byID[id] != nil {
			r.abort(r.byID[id])
		}
	}
	r.mu.Unlock()
	switch e.tmr {
	case TMRLUNReset:
		r.unit.Notify(r.nexus, lun.LogicalUnitReset)
	case TMRTargetWarmReset, TMRTargetColdReset:
		r.unit.Notify(r.nexus, lun.HardReset)
	case TMRClearTaskSet:
		r.unit.Notify(r.nexus, lun.CommandsCleared)
	}
	if r.onTMR != nil {
		r.onTMR(e.tmr)
	}
}

// abort is called with mu held.
func (r *ring) abort(t *task) {
	if t.canceled {
		return
	}
	t.canceled = true
	r.stats.Aborted++
	close(t.cancel)
}

// abortAll aborts all that is in flight.
func (r *ring) abortAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.byID {
		if t != nil {
			r.abort(t)
		}
	}
}

// anyCount is what is written to the UIO device: the kernel takes any 4 bytes.
var anyCount = make([]byte, 4)

// kick tells the kernel that there are completions. Those that come while
// another goroutine is telling it are told by that one, all at once.
func (r *ring) kick() {
	if r.kicks.Add(1) != 1 {
		return
	}
	for n := int64(1); ; n = r.kicks.Load() {
		r.doorbells.Add(1)
		if _, err := r.bell.Write(anyCount); err != nil {
			r.fail(fmt.Errorf("ring the doorbell: %w", err))
		}
		if r.kicks.CompareAndSwap(n, 0) {
			return
		}
	}
}

// fail ends the ring: no answer is written any more, and serve ends.
func (r *ring) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure == nil {
		r.failure = err
		r.bell.SetReadDeadline(time.Unix(1, 0))
	}
}

// stop makes serve end.
func (r *ring) stop() { r.fail(errStopped) }

func (r *ring) snapshot() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	s.InFlight, s.Doorbells = r.inFlight, r.doorbells.Load()
	return s
}

// slot is the place of an entry in the ring.
type slot struct {
	pos, len uint32
	cmd      bool // wants an answer
}

// slots is a queue.
type slots struct {
	buf   []slot // a power of two long
	first int
	n     int
}

func (q *slots) len() int     { return q.n }
func (q *slots) oldest() slot { return q.buf[q.first] }

func (q *slots) push(s slot) {
	if q.n == len(q.buf) {
		buf := make([]slot, max(64, 2*len(q.buf)))
		for i := range q.n {
			buf[i] = q.buf[(q.first+i)&(len(q.buf)-1)]
		}
		q.buf, q.first = buf, 0
	}
	q.buf[(q.first+q.n)&(len(q.buf)-1)] = s
	q.n++
}

func (q *slots) pop() slot {
	s := q.buf[q.first]
	q.first = (q.first + 1) & (len(q.buf) - 1)
	q.n--
	return s
}

var (
	errStopped = errors.New("stopped")
	errDropped = errors.New("dropped on purpose")
)
