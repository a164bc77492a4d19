// Package mem is a store in memory that holds only what was written.
package mem

import (
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"lunlab/lun/store"
)

const (
	chunkSize  = 64 << 10 // what is allocated and locked at once
	sectorSize = 512      // what is mapped or not
	fanout     = 4096
	leafSpan   = fanout * chunkSize // 256 MiB
	middleSpan = fanout * leafSpan  // 1 TiB
)

// Store is a sparse store in memory. A new one of any size takes almost none.
//
// Its chunks hang in a tree whose pointers are set once and cleared only when
// a chunk is freed, so that finding one takes no lock; each chunk has a lock of
// its own. Reads and writes of chunks that are there allocate nothing.
type Store struct {
	size   atomic.Int64
	used   atomic.Int64
	room   *Room
	closed atomic.Bool

	// root has a pointer for each middleSpan. It only grows, under resizing, into a
	// longer one that has the same pointers.
	root     atomic.Pointer[[]*atomic.Pointer[middle]]
	resizing sync.Mutex
}

type (
	middle [fanout]atomic.Pointer[leaf]
	leaf   [fanout]atomic.Pointer[chunk]
)

// chunk holds chunkSize bytes. Bytes of a sector that isn't mapped are zero. It
// fits a cache line.
type chunk struct {
	mu     sync.RWMutex
	mapped [chunkSize / sectorSize / 64]uint64

	// data is nil when the chunk is no longer in the tree: look again. It is a slice
	// and no pointer to an array, since slicing that reads its first byte: a
	// miss of the cache and the TLB beside the one for the data that is wanted.
	data []byte
}

// New returns a store of size bytes that read as zeros.
func New(size int64) (*Store, error) { return NewLimited(size, 0) }

// NewLimited is New for a store that refuses to hold more than limit bytes
// (rounded up to 64 KiB chunks) with ENOSPC, as an overcommitted pool does.
// 0 is no limit.
func NewLimited(size, limit int64) (*Store, error) {
	if size < 0 || limit < 0 {
		return nil, fmt.Errorf("mem: size %d or limit %d is negative", size, limit)
	}
	return NewRoom(limit).New(size)
}

// New returns a store of size bytes whose memory is taken from the room.
func (r *Room) New(size int64) (*Store, error) {
	s := &Store{room: r}
	s.root.Store(new([]*atomic.Pointer[middle]))
	if err := s.Resize(size); err != nil {
		return nil, err
	}
	r.stores.Add(1)
	return s, nil
}

// Resize implements [store.Resizer].
func (s *Store) Resize(size int64) error {
	if size < 0 {
		return fmt.Errorf("mem: size %d is negative", size)
	}
	s.resizing.Lock()
	defer s.resizing.Unlock()
	if s.closed.Load() {
		return store.ErrClosed
	}
	if old := s.size.Load(); size < old {
		if err := s.Unmap(size, old-size); err != nil {
			return err
		}
	}
	root := slices.Clone(*s.root.Load())
	more := make([]atomic.Pointer[middle], max((max(size, 1)-1)/middleSpan+1-int64(len(root)), 0))
	for i := range more {
		root = append(root, &more[i])
	}
	s.root.Store(&root)
	s.size.Store(size)
	return nil
}

// Size implements [store.Store].
func (s *Store) Size() int64 { return s.size.Load() }

// Used returns the bytes of memory that data takes up now, of all stores that
// share it.
func (s *Store) Used() int64 { return s.room.used.Load() }

// Shared tells whether there are other stores that share it.
func (s *Store) Shared() bool { return s.room.stores.Load() > 1 }

// Limit returns the most bytes that Used may reach, 0 if there is no limit.
func (s *Store) Limit() int64 { return s.room.Limit() }

func (s *Store) take() error {
	if err := s.room.take(); err != nil {
		return err
	}
	s.used.Add(chunkSize)
	return nil
}

func (s *Store) give(n int64) {
	s.used.Add(-n)
	s.room.give(n)
}

// Blocking implements [store.Waiter]: memory never waits.
func (s *Store) Blocking() bool { return false }

// Sync implements [store.Store]. There is nothing more durable than this.
func (s *Store) Sync() error {
	if s.closed.Load() {
		return store.ErrClosed
	}
	return nil
}

// Close implements [store.Store] and drops the contents.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return store.ErrClosed
	}
	s.resizing.Lock()
	defer s.resizing.Unlock()
	for _, m := range *s.root.Load() {
		m.Store(nil)
	}
	s.give(s.used.Load())
	s.room.stores.Add(-1)
	return nil
}

func (s *Store) check(off, n int64) error {
	if s.closed.Load() {
		return store.ErrClosed
	}
	return store.CheckRange(s.size.Load(), off, n)
}

// ReadAt implements [store.Store].
func (s *Store) ReadAt(p []byte, off int64) (int, error) {
	if err := s.check(off, int64(len(p))); err != nil {
		return 0, err
	}
	for n := 0; n < len(p); {
		at := off + int64(n)
		in := int(at % chunkSize)
		part := p[n:min(len(p), n+chunkSize-in)]
		if c := s.find(at); c == nil {
			clear(part)
		} else {
			c.mu.RLock()
			if c.data == nil {
				clear(part)
			} else {
				copy(part, c.data[in:])
			}
			c.mu.RUnlock()
		}
		n += len(part)
	}
	return len(p), nil
}

// WriteAt implements [store.Store].
func (s *Store) WriteAt(p []byte, off int64) (int, error) {
	if err := s.check(off, int64(len(p))); err != nil {
		return 0, err
	}
	for n := 0; n < len(p); {
		at := off + int64(n)
		in := int(at % chunkSize)
		part := p[n:min(len(p), n+chunkSize-in)]
		c, err := s.make(at)
		if err != nil {
			return n, err
		}
		c.mu.Lock()
		if c.data == nil {
			c.mu.Unlock()
			continue
		}
		copy(c.data[in:], part)
		c.mark(in, in+len(part))
		c.mu.Unlock()
		n += len(part)
	}
	return len(p), nil
}

// Unmap implements [store.Sparse]. Its granularity is 512 bytes; memory is
// given back when all of a 64 KiB chunk is unmapped.
func (s *Store) Unmap(off, n int64) error {
	if err := s.check(off, n); err != nil {
		return err
	}
	end := off + n
	for off < end {
		slot, span := s.slot(off)
		next := min(end, off-off%span+span)
		if slot != nil {
			s.unmapChunk(slot, int(off%chunkSize), int(next-(off-off%chunkSize)))
		}
		off = next
	}
	return nil
}

func (s *Store) unmapChunk(slot *atomic.Pointer[chunk], from, to int) {
	c := slot.Load()
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.data == nil {
		return
	}
	if whole := from == 0 && to == chunkSize; !whole {
		clear(c.data[from:to])
		for i := (from + sectorSize - 1) / sectorSize; i < to/sectorSize; i++ {
			c.mapped[i/64] &^= 1 << (i % 64)
		}
		for _, m := range c.mapped {
			if m != 0 {
				return
			}
		}
	}
	c.data = nil
	slot.Store(nil)
	s.give(chunkSize)
}

// Extent implements [store.Sparse].
func (s *Store) Extent(off, limit int64) (mapped bool, n int64, err error) {
	if err := s.check(off, 1); err != nil {
		return false, 0, err
	}
	end := min(s.size.Load()-off, max(limit, 1)) + off
	for at := off; at < end; {
		is, span := s.run(at)
		if at == off {
			mapped = is
		} else if is != mapped {
			return mapped, at - off, nil
		}
		at += span
	}
	return mapped, end - off, nil
}

// run tells whether the byte at off is mapped and how many from there on, to
// the end of the chunk (or of the part of the tree that isn't there) at most,
// are the same.
func (s *Store) run(off int64) (mapped bool, n int64) {
	slot, span := s.slot(off)
	hole := span - off%span
	if slot == nil {
		return false, hole
	}
	c := slot.Load()
	if c == nil {
		return false, hole
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.data == nil {
		return false, hole
	}
	first := int(off % chunkSize / sectorSize)
	mapped = c.mapped[first/64]>>(first%64)&1 == 1
	i := first
	for i < chunkSize/sectorSize {
		word := c.mapped[i/64]
		if mapped {
			word = ^word
		}
		if word >>= i % 64; word != 0 {
			i += bits.TrailingZeros64(word)
			break
		}
		i = (i/64 + 1) * 64
	}
	return mapped, int64(i)*sectorSize - off%chunkSize
}

// slot returns the place for the chunk that holds off, or nil if the tree has
// none, and how large and aligned a span the answer is for.
func (s *Store) slot(off int64) (*atomic.Pointer[chunk], int64) {
	m := (*s.root.Load())[off/middleSpan].Load()
	if m == nil {
		return nil, middleSpan
	}
	l := m[off/leafSpan%fanout].Load()
	if l == nil {
		return nil, leafSpan
	}
	return &l[off/chunkSize%fanout], chunkSize
}

func (s *Store) find(off int64) *chunk {
	slot, _ := s.slot(off)
	if slot == nil {
		return nil
	}
	return slot.Load()
}

// make returns the chunk that holds off, a new one if need be.
func (s *Store) make(off int64) (*chunk, error) {
	slot, _ := s.slot(off)
	if slot == nil {
		root := (*s.root.Load())[off/middleSpan]
		if root.Load() == nil {
			root.CompareAndSwap(nil, new(middle))
		}
		m := root.Load()
		if m == nil {
			return nil, store.ErrClosed
		}
		l := &m[off/leafSpan%fanout]
		if l.Load() == nil {
			l.CompareAndSwap(nil, new(leaf))
		}
		slot = &l.Load()[off/chunkSize%fanout]
	}
	for {
		if c := slot.Load(); c != nil {
			return c, nil
		}
		if err := s.take(); err != nil {
			return nil, err
		}
		c := &chunk{data: make([]byte, chunkSize)}
		if slot.CompareAndSwap(nil, c) {
			return c, nil
		}
		s.give(chunkSize)
	}
}

// mark sets the sectors that hold bytes from to to as mapped. The lock is held.
func (c *chunk) mark(from, to int) {
	for i := from / sectorSize; i <= (to-1)/sectorSize; i++ {
		c.mapped[i/64] |= 1 << (i % 64)
	}
}
