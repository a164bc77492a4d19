package sim

import (
	"time"

	"lunlab/queue"
)

// rejection is what queuecommand returns.
type rejection int

const (
	accepted   rejection = iota
	hostBusy             // SCSI_MLQUEUE_HOST_BUSY
	deviceBusy           // SCSI_MLQUEUE_DEVICE_BUSY
)

func (r rejection) String() string { return [...]string{"accepted", "host busy", "device busy"}[r] }

// lun is what is behind the driver: how the logical unit of a slot answers.
type lun struct {
	busy      int // so many commands more are answered BUSY
	dropped   int // so many more are not answered
	abortFail bool
	fullAbove int // more than so many at once are answered TASK SET FULL; 0: never
	fullUntil time.Duration
	holding   bool // keeps what it has
	held      []*request
	counted   queue.Counted
}

// fullDelay is how long a full target takes to say so: it is sent to again at
// once where nothing holds the device back.
const fullDelay = 4 * time.Millisecond

// holdTime is how long a logical unit keeps commands once nothing else happens.
const holdTime = 20 * time.Millisecond

// queueCommand is the driver's queuecommand.
func (m *model) queueCommand(t *task, rq *request) rejection {
	if m.refuses > 0 {
		m.refuses--
		return hostBusy
	}
	if p := rq.q.sdev.port; p != nil {
		return p.queueCommand(t, rq)
	}
	m.arrive(rq)
	return accepted
}

// arrive hands the command to the logical unit.
func (m *model) arrive(rq *request) {
	s := rq.q.sdev
	l := &m.luns[s.slot]
	s.flight[rq] = true
	l.counted.Received++
	rq.answered = false
	m.inFlight++
	m.progress()
	s.stats.arrived(len(s.flight))
	if rq.gen == s.gen {
		s.newInFlight++
	}
	m.tracef(s.name, "command %d (%s) at the driver, tag %d, %s: %d in flight at queue_depth %d", rq.id, rq.op, rq.tag, tokenName(rq.token), len(s.flight), s.queueDepth)
	m.checkArrival(rq)
	switch {
	case l.dropped > 0 && rq.op != opInquiry:
		l.dropped--
		m.tracef(s.name, "command %d is lost at the target", rq.id)
	case l.holding:
		l.held = append(l.held, rq)
	default:
		m.answer(rq)
	}
}

// answer lets the logical unit answer after a while.
func (m *model) answer(rq *request) {
	s := rq.q.sdev
	l := &m.luns[s.slot]
	r := resultGood
	switch {
	case rq.op == opInquiry:
	case l.busy > 0:
		l.busy--
		r = resultBusy
	case l.fullAbove > 0 && m.now < l.fullUntil && len(s.flight) > l.fullAbove:
		r = resultTaskSetFull
	}
	after := time.Duration(20+m.rng.IntN(180)) * time.Microsecond
	if r == resultTaskSetFull {
		after += fullDelay
	}
	rq.answer = m.after(after, false, func() {
		l.counted.Answered++
		rq.answered = true
		m.spawn(s.name+" irq", rq.hctx.index, func(t *task) {
			m.tracef(t.name, "%s: command %d ends: %s", s.name, rq.id, r)
			if rq.qc != nil {
				rq.qc.complete(t)
			}
			m.done(t, rq, r)
		})
	})
}

// hold makes the logical unit keep its commands until nothing else happens for
// a while.
func (m *model) hold(slot int) {
	l := &m.luns[slot]
	if l.holding {
		return
	}
	l.holding = true
	m.after(holdTime, true, func() {
		l.holding = false
		held := l.held
		l.held = nil
		for _, rq := range held {
			m.answer(rq)
		}
	})
}

// leave takes the command from the driver.
func (m *model) leave(rq *request) {
	s := rq.q.sdev
	if !s.flight[rq] {
		return
	}
	delete(s.flight, rq)
	m.inFlight--
	m.progress()
	if rq.gen == s.gen {
		s.newInFlight--
	}
	if rq.answer != nil {
		rq.answer.dead = true
	}
	if !rq.answered {
		m.luns[s.slot].counted.Dropped++
	}
}
