package vhostuser

import (
	"fmt"
	"sync"
)

// Change is what befell a logical unit, for the driver to learn of.
type Change uint8

const (
	Added   Change = iota // there is one where there was none
	Removed               // it is gone
	Changed               // its capacity or other parameters
)

// Events of the event queue (virtio 1.2 5.6.6.3).
const (
	eventSize = 16

	eventTransportReset = 1
	eventParamChange    = 3
	eventsMissed        = 1 << 31

	reasonRescan  = 1
	reasonRemoved = 2

	// reasonCapacity is CAPACITY DATA HAS CHANGED, the additional sense code and
	// its qualifier (virtio 1.2 5.6.6.3: reason of a parameter change).
	reasonCapacity = 0x09<<8 | 0x2a
)

// maxEvents is how many events wait for buffers. What comes then is missed.
const maxEvents = 64

type event struct {
	kind   uint32
	lun    [8]byte
	reason uint32
}

func (e event) encode() (b [eventSize]byte) {
	le.PutUint32(b[0:], e.kind)
	copy(b[4:], e.lun[:])
	le.PutUint32(b[12:], e.reason)
	return b
}

// eventOf is the event that tells of a change, if the driver's features have it.
func eventOf(n uint16, c Change, features uint64) (e event, ok bool) {
	e.lun = lunOf(n)
	switch c {
	case Added, Removed:
		e.kind, e.reason = eventTransportReset, reasonRescan
		if c == Removed {
			e.reason = reasonRemoved
		}
		return e, features&featureHotplug != 0
	}
	e.kind, e.reason = eventParamChange, reasonCapacity
	return e, features&featureChange != 0
}

// events are those that wait for the driver's buffers.
type events struct {
	mu     sync.Mutex
	list   []event
	missed bool
}

func (q *events) push(e event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) == maxEvents {
		q.missed = true
		return
	}
	q.list = append(q.list, e)
}

// pop returns the next event. If some were missed it says so, or is nothing else.
func (q *events) pop() (e event, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if ok = len(q.list) > 0 || q.missed; !ok {
		return e, false
	}
	if len(q.list) > 0 {
		e, q.list = q.list[0], q.list[1:]
	}
	if q.missed {
		q.missed = false
		e.kind |= eventsMissed
	}
	return e, true
}

// deliver fills up to n buffers of the event queue. It returns how many.
func (q *events) deliver(r *ring, n uint16) (done uint16, err error) {
	for done < n {
		e, ok := q.pop()
		if !ok {
			break
		}
		t, err := r.book(r.split.availHead(r.next))
		if err != nil {
			return done, err
		}
		r.next++
		done++
		t.event = e
		if err := t.guarded(t.deliverIt); err != nil {
			return done, err
		}
		if t.err != nil {
			return done, t.err
		}
	}
	r.signal()
	return done, nil
}

// deliver answers a request of the event queue with an event.
func (t *task) deliver() {
	if t.err = t.ring.split.walk(t.mem, t.head, &t.chain); t.err != nil {
		t.drop()
		return
	}
	if size(t.chain.in) < eventSize {
		t.err = fmt.Errorf("descriptor %d: an event's buffer of %d bytes", t.head, size(t.chain.in))
		t.drop()
		return
	}
	t.resp, _ = cut(t.resp[:0], t.chain.in, eventSize)
	b := t.event.encode()
	t.reply(b[:]...)
}
