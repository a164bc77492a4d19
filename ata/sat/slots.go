package sat

import (
	"math/bits"
	"slices"
	"sync"
)

// alone is the slot of a command that isn't queued by the drive.
const alone = -1

// slots hands out the drive's NCQ tags, or the drive as a whole for a command that isn't
// queued. Who comes first is served first, so that neither kind starves the other.
type slots struct {
	mu      sync.Mutex
	free    uint32 // tags
	all     uint32
	taken   bool // by a command that isn't queued
	waiting []*waiter
}

// waiter is one who waits, for a tag or to be alone.
type waiter struct {
	alone bool
	slot  chan int
}

func newSlots(depth int) *slots {
	all := uint32(1<<depth - 1)
	return &slots{free: all, all: all}
}

// grant returns a slot if there is one. mu is held.
func (s *slots) grant(wantsAlone bool) (slot int, ok bool) {
	switch {
	case s.taken:
		return 0, false
	case wantsAlone:
		s.taken = s.free == s.all
		return alone, s.taken
	case s.free == 0:
		return 0, false
	}
	slot = bits.TrailingZeros32(s.free)
	s.free &^= 1 << slot
	return slot, true
}

// acquire waits for a slot. ok is false if cancel was closed before.
func (s *slots) acquire(wantsAlone bool, cancel <-chan struct{}) (slot int, ok bool) {
	s.mu.Lock()
	if len(s.waiting) == 0 {
		if slot, ok := s.grant(wantsAlone); ok {
			s.mu.Unlock()
			return slot, true
		}
	}
	w := &waiter{wantsAlone, make(chan int, 1)}
	s.waiting = append(s.waiting, w)
	s.mu.Unlock()
	select {
	case slot := <-w.slot:
		return slot, true
	case <-cancel:
	}
	s.mu.Lock()
	i := slices.Index(s.waiting, w)
	if i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
		s.serve() // who waited behind
	}
	s.mu.Unlock()
	if i < 0 {
		s.release(<-w.slot)
	}
	return 0, false
}

// convert gives a tag back, and waits to be alone before all others.
func (s *slots) convert(slot int) {
	s.mu.Lock()
	w := &waiter{true, make(chan int, 1)}
	s.waiting = slices.Insert(s.waiting, 0, w)
	s.give(slot)
	s.mu.Unlock()
	<-w.slot
}

func (s *slots) release(slot int) {
	s.mu.Lock()
	s.give(slot)
	s.mu.Unlock()
}

// give gives a slot back. mu is held.
func (s *slots) give(slot int) {
	if slot == alone {
		s.taken = false
	} else {
		s.free |= 1 << slot
	}
	s.serve()
}

// serve gives slots to those who wait. mu is held.
func (s *slots) serve() {
	for len(s.waiting) > 0 {
		w := s.waiting[0]
		slot, ok := s.grant(w.alone)
		if !ok {
			return
		}
		s.waiting = slices.Delete(s.waiting, 0, 1)
		w.slot <- slot
	}
}
