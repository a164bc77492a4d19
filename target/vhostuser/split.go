package vhostuser

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// split is a split virtqueue in memory that is shared with a driver (virtio 1.2
// 2.7). Nothing that is read of it can be trusted, nor read twice.
type split struct {
	num               uint32 // its size, a power of two up to 32768
	desc, avail, used []byte
}

const (
	descSize     = 16
	usedElemSize = 8

	descNext     = 1
	descWrite    = 2
	descIndirect = 4

	availNoInterrupt = 1

	maxRingSize = 1 << 15

	// maxDescriptors is the most that a request may have, whatever tables they are
	// in: many more than the segments that a driver is allowed.
	maxDescriptors = 4096
)

// newSplit finds a virtqueue of num descriptors in the memory.
func newSplit(m *memory, num uint32, a *vringAddr) (q split, err error) {
	if num == 0 || num > maxRingSize || num&(num-1) != 0 {
		return q, fmt.Errorf("virtqueue %d has a size of %d", a.index, num)
	}
	if a.desc%16 != 0 || a.avail%2 != 0 || a.used%4 != 0 {
		return q, fmt.Errorf("virtqueue %d is not aligned: %#x, %#x, %#x", a.index, a.desc, a.avail, a.used)
	}
	q.num = num
	n := uint64(num)
	if q.desc, err = m.ofUser(a.desc, n*descSize); err != nil {
		return q, fmt.Errorf("virtqueue %d: descriptors: %w", a.index, err)
	}
	// Each has a 16-bit event index at its end.
	if q.avail, err = m.ofUser(a.avail, 4+2*n+2); err != nil {
		return q, fmt.Errorf("virtqueue %d: available ring: %w", a.index, err)
	}
	if q.used, err = m.ofUser(a.used, 4+usedElemSize*n+2); err != nil {
		return q, fmt.Errorf("virtqueue %d: used ring: %w", a.index, err)
	}
	if uintptr(unsafe.Pointer(&q.avail[0]))%2 != 0 || uintptr(unsafe.Pointer(&q.used[0]))%4 != 0 {
		return q, fmt.Errorf("virtqueue %d is not aligned in its file", a.index)
	}
	return q, nil
}

// load16 reads the number at b[off:] with acquire semantics. There are no atomic
// operations on 16 bits: it reads the aligned word that they are in, which is
// in the same page.
func load16(b []byte, off uint32) uint16 {
	p := unsafe.Pointer(&b[off])
	shift := uintptr(p) & 2
	return uint16(atomic.LoadUint32((*uint32)(unsafe.Add(p, -int(shift)))) >> (8 * shift))
}

// The available ring: flags, index, entries, used_event.

func (q *split) availIndex() uint16 { return load16(q.avail, 2) }

func (q *split) availHead(at uint16) uint16 {
	return le.Uint16(q.avail[4+2*(uint32(at)&(q.num-1)):])
}

func (q *split) interruptsOff() bool { return load16(q.avail, 0)&availNoInterrupt != 0 }
func (q *split) usedEvent() uint16   { return load16(q.avail, 4+2*q.num) }

// The used ring: flags, index, entries, avail_event.

func (q *split) word(off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&q.used[off])) }

func (q *split) usedIndex() uint16 { return load16(q.used, 2) }

// putUsed stores the entry at place at, and then the index after it.
func (q *split) putUsed(at, head uint16, n uint32) {
	e := q.used[4+usedElemSize*(uint32(at)&(q.num-1)):]
	le.PutUint32(e, uint32(head))
	le.PutUint32(e[4:], n)
	// The flags beside the index are ours, and 0.
	atomic.StoreUint32(q.word(0), uint32(at+1)<<16)
}

// setAvailEvent asks to be told when the available ring's index passes at. The
// bytes after it are somebody else's.
func (q *split) setAvailEvent(at uint16) bool {
	w := q.word(4 + usedElemSize*q.num)
	for range 1000 {
		old := atomic.LoadUint32(w)
		if atomic.CompareAndSwapUint32(w, old, old&0xffff0000|uint32(at)) {
			return true
		}
	}
	return false
}

// passes tells whether event was passed on the way from old to now (virtio 1.2
// 2.7.7.2).
func passes(event, now, old uint16) bool { return now-event-1 < now-old }

// chain is a request's buffers: what the driver wrote, and room for what it reads.
type chain struct {
	out, in [][]byte
	lasting bool // see region.lasting
}

// walk reads the chain of descriptors that begins at head.
func (q *split) walk(m *memory, head uint16, c *chain) error {
	c.out, c.in, c.lasting = c.out[:0], c.in[:0], true
	table, at, left, total := q.desc, uint32(head), q.num, uint64(0)
	indirect := false
	for range maxDescriptors {
		if at >= uint32(len(table)/descSize) {
			return fmt.Errorf("descriptor %d is beyond its table", at)
		}
		if left == 0 {
			return fmt.Errorf("the descriptors that begin with %d have a loop", head)
		}
		left--
		d := table[at*descSize:]
		addr, n, flags, next := le.Uint64(d), uint64(le.Uint32(d[8:])), le.Uint16(d[12:]), le.Uint16(d[14:])
		if flags&descIndirect != 0 {
			if indirect || flags&(descNext|descWrite) != 0 || n == 0 || n%descSize != 0 || n/descSize > maxDescriptors {
				return fmt.Errorf("descriptor %d has a bad table: flags %#x, %d bytes", at, flags, n)
			}
			var one [1][]byte
			t, lasting, err := m.at(one[:0], addr, n)
			if err != nil {
				return fmt.Errorf("descriptor %d: %w", at, err)
			}
			if len(t) > 1 {
				return fmt.Errorf("descriptor %d: the table goes from one region of memory to another", at)
			}
			c.lasting = c.lasting && lasting
			table, at, left, indirect = t[0], 0, uint32(n/descSize), true
			continue
		}
		if total += n; total > 1<<32 {
			return fmt.Errorf("the request at %d has more than 4 GiB", head)
		}
		list := &c.out
		if flags&descWrite != 0 {
			list = &c.in
		} else if len(c.in) > 0 {
			return fmt.Errorf("descriptor %d is to be read and comes after one that is to be written", at)
		}
		var lasting bool
		var err error
		if *list, lasting, err = m.at(*list, addr, n); err != nil {
			return fmt.Errorf("descriptor %d: %w", at, err)
		}
		c.lasting = c.lasting && lasting
		if flags&descNext == 0 {
			return nil
		}
		at = uint32(next)
	}
	return fmt.Errorf("the request at %d has more than %d descriptors", head, maxDescriptors)
}
