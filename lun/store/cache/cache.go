// Package cache is a volatile write-back cache in front of another store, as a
// disk has one: what was written and not synced is lost when the power goes.
//
// [Store.PowerCut] makes it go, so that a test can see what is left.
package cache

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"lunlab/lun/store"
)

// BlockSize is what the cache holds and loses as a whole, in bytes.
const BlockSize = 512

// DefaultLimit is the most bytes that are held if nothing else is asked for.
const DefaultLimit = 64 << 20

// Store is a cache in front of a store. Its blocks are never changed, only
// replaced, so that who has one needs no lock.
//
// Block by block what holds is in dirty, else in flushing, else in the store
// below, whose blocks that are just being made zero count as zeros. What holds
// begins or ceases to be that of the store below only together with a step of
// epoch, so that who has read below and found the same epoch afterwards knows that
// nothing moved from under them.
type Store struct {
	below store.Store
	limit int

	// moving is held by who moves blocks below, over the I/O that this takes.
	moving sync.Mutex

	mu              sync.Mutex
	dirty, flushing map[int64]*block // by number
	zeroed          blocks           // are being made zero below
	epoch           uint64
	closed          bool
}

type block [BlockSize]byte

// blocks are those with numbers from first to before end.
type blocks struct{ first, end int64 }

// zeros is what they hold while they are made zero.
var zeros block

// New returns a cache in front of s that holds up to limit bytes, [DefaultLimit]
// if that is 0. It closes s with itself.
func New(s store.Store, limit int64) *Store {
	if limit <= 0 {
		limit = DefaultLimit
	}
	return &Store{below: s, limit: int(max(limit/BlockSize, 1)), dirty: map[int64]*block{}, flushing: map[int64]*block{}}
}

// Size implements [store.Store].
func (s *Store) Size() int64 { return s.below.Size() }

// Resize implements [store.Resizer], if the store below does.
func (s *Store) Resize(size int64) error {
	r, ok := s.below.(store.Resizer)
	if !ok {
		return fmt.Errorf("cache: the store below can't be resized: %w", errors.ErrUnsupported)
	}
	s.moving.Lock()
	defer s.moving.Unlock()
	if err := r.Resize(size); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.dirty, func(i int64, _ *block) bool { return i*BlockSize >= size })
	if b := s.dirty[size/BlockSize]; b != nil {
		// What is cut off must not come back with a growth.
		short := new(block)
		copy(short[:size%BlockSize], b[:])
		s.dirty[size/BlockSize] = short
	}
	return nil
}

// Blocking implements [store.Waiter]. It is so even in front of memory: writes
// may have to make room, and a power cut can leave half of one behind.
func (s *Store) Blocking() bool { return true }

// ReadOnly implements [store.Guarded] for a store below that does.
func (s *Store) ReadOnly() bool { return store.ReadOnly(s.below) }

// Used implements [store.Pool] for a store below that does. What is in the cache
// only isn't counted.
func (s *Store) Used() int64 {
	if p, ok := s.below.(store.Pool); ok {
		return p.Used()
	}
	return 0
}

// Shared implements [store.Pool], likewise.
func (s *Store) Shared() bool {
	p, ok := s.below.(store.Pool)
	return ok && p.Shared()
}

// Limit implements [store.Pool], likewise. It is 0 for a store below that has no limit.
func (s *Store) Limit() int64 {
	if p, ok := s.below.(store.Pool); ok {
		return p.Limit()
	}
	return 0
}

// Dirty returns how many bytes would be lost if the power went now.
func (s *Store) Dirty() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.dirty)
	for i := range s.flushing {
		if s.dirty[i] == nil {
			n++
		}
	}
	return int64(n) * BlockSize
}

func (s *Store) check(off, n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return store.ErrClosed
	}
	return store.CheckRange(s.Size(), off, n)
}

// held returns the block if the cache has it. mu is held.
func (s *Store) held(i int64) *block {
	if b := s.dirty[i]; b != nil {
		return b
	}
	if b := s.flushing[i]; b != nil {
		return b
	}
	if i >= s.zeroed.first && i < s.zeroed.end {
		return &zeros
	}
	return nil
}

// ReadAt implements [store.Store].
func (s *Store) ReadAt(p []byte, off int64) (int, error) {
	if err := s.check(off, int64(len(p))); err != nil || len(p) == 0 {
		return 0, err
	}
	for {
		s.mu.Lock()
		epoch := s.epoch
		s.mu.Unlock()
		if n, err := s.below.ReadAt(p, off); err != nil {
			return n, err
		}
		s.mu.Lock()
		for i := off / BlockSize; i*BlockSize < off+int64(len(p)); i++ {
			b := s.held(i)
			if b == nil {
				continue
			}
			if at := i*BlockSize - off; at >= 0 {
				copy(p[at:], b[:])
			} else {
				copy(p, b[-at:])
			}
		}
		same := s.epoch == epoch
		s.mu.Unlock()
		if same {
			return len(p), nil
		}
	}
}

// WriteAt implements [store.Store]. It returns when the cache has the data.
func (s *Store) WriteAt(p []byte, off int64) (int, error) {
	if err := s.check(off, int64(len(p))); err != nil {
		return 0, err
	}
	for n := 0; n < len(p); {
		at := off + int64(n)
		in := int(at % BlockSize)
		part := p[n:min(len(p), n+BlockSize-in)]
		if err := s.replace(at/BlockSize, in, part); err != nil {
			return n, err
		}
		n += len(part)
	}
	s.mu.Lock()
	full := len(s.dirty) > s.limit
	s.mu.Unlock()
	if full {
		if err := s.move(func(int64) bool { return true }, false); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// replace puts part at in into block i.
func (s *Store) replace(i int64, in int, part []byte) error {
	next := new(block)
	if len(part) == BlockSize {
		copy(next[:], part)
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.put(i, next)
	}
	for {
		s.mu.Lock()
		epoch, old := s.epoch, s.held(i)
		s.mu.Unlock()
		if old != nil {
			*next = *old
		} else if _, err := s.below.ReadAt(next[:max(0, min(BlockSize, s.Size()-i*BlockSize))], i*BlockSize); err != nil {
			return err
		}
		copy(next[in:], part)
		s.mu.Lock()
		if s.epoch == epoch && s.held(i) == old {
			err := s.put(i, next)
			s.mu.Unlock()
			return err
		}
		s.mu.Unlock()
	}
}

// put makes b the content of block i, unless that lies beyond the end by now, from
// where [Store.Resize] would not take it away anymore. mu is held.
func (s *Store) put(i int64, b *block) error {
	if i*BlockSize >= s.Size() {
		return store.CheckRange(s.Size(), i*BlockSize, BlockSize)
	}
	s.dirty[i] = b
	return nil
}

// move writes the dirty blocks that are wanted to the store below, and syncs it
// if asked to. What can't be written stays dirty.
func (s *Store) move(wanted func(i int64) bool, sync bool) error {
	s.moving.Lock()
	defer s.moving.Unlock()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return store.ErrClosed
	}
	for i, b := range s.dirty {
		if wanted(i) {
			s.flushing[i] = b
			delete(s.dirty, i)
		}
	}
	blocks := maps.Clone(s.flushing)
	s.mu.Unlock()
	err := s.writeBelow(blocks)
	if err == nil && sync {
		err = s.below.Sync()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		for i, b := range s.flushing {
			if s.dirty[i] == nil {
				s.dirty[i] = b
			}
		}
	}
	clear(s.flushing)
	s.epoch++
	return err
}

// run is how much is written below at once, in blocks.
const run = 256

func (s *Store) writeBelow(blocks map[int64]*block) error {
	var buf []byte
	order := slices.Sorted(maps.Keys(blocks))
	for k := 0; k < len(order); {
		first := order[k]
		buf = buf[:0]
		for ; k < len(order) && order[k] == first+int64(len(buf)/BlockSize) && len(buf) < run*BlockSize; k++ {
			buf = append(buf, blocks[order[k]][:]...)
		}
		off := first * BlockSize
		if _, err := s.below.WriteAt(buf[:min(int64(len(buf)), s.Size()-off)], off); err != nil {
			return err
		}
	}
	return nil
}

// Sync implements [store.Store].
func (s *Store) Sync() error {
	return s.move(func(int64) bool { return true }, true)
}

// SyncRange implements [store.RangeSyncer]. The rest of the cache stays as it is.
func (s *Store) SyncRange(off, n int64) error {
	if err := s.check(off, n); err != nil {
		return err
	}
	return s.move(func(i int64) bool { return (i+1)*BlockSize > off && i*BlockSize < off+n }, true)
}

// Unmap implements [store.Sparse] if the store below does. It passes the cache by.
func (s *Store) Unmap(off, n int64) error {
	return s.zero(off, n, func() error {
		if sp, ok := s.below.(store.Sparse); ok {
			return sp.Unmap(off, n)
		}
		return store.Zero(s.below, off, n)
	})
}

// Zero implements [store.Zeroer]. It passes the cache by too.
func (s *Store) Zero(off, n int64) error {
	return s.zero(off, n, func() error { return store.Zero(s.below, off, n) })
}

// zero makes n bytes at off zero below. Whole blocks of them go from the cache,
// unless they are written anew meanwhile.
func (s *Store) zero(off, n int64, below func() error) error {
	if err := s.check(off, n); err != nil || n == 0 {
		return err
	}
	for _, edge := range []int64{off, off + n} {
		// A part of a block is written like any other data.
		if in := edge % BlockSize; in != 0 && edge < s.Size() {
			from, to := max(off, edge-in), min(off+n, edge-in+BlockSize)
			if err := s.replace(edge/BlockSize, int(from%BlockSize), make([]byte, to-from)); err != nil {
				return err
			}
		}
	}
	s.moving.Lock()
	defer s.moving.Unlock()
	whole := blocks{(off + BlockSize - 1) / BlockSize, (off + n) / BlockSize}
	if off+n == s.Size() {
		whole.end = (off + n + BlockSize - 1) / BlockSize
	}
	s.mu.Lock()
	old := map[int64]*block{}
	for i, b := range s.dirty {
		if i >= whole.first && i < whole.end {
			old[i] = b
			delete(s.dirty, i)
		}
	}
	s.zeroed = whole
	s.epoch++
	s.mu.Unlock()
	err := below()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		for i, b := range old {
			if s.dirty[i] == nil {
				s.dirty[i] = b
			}
		}
	}
	s.zeroed = blocks{}
	s.epoch++
	return err
}

// Extent implements [store.Sparse].
func (s *Store) Extent(off, limit int64) (mapped bool, n int64, err error) {
	for {
		if err := s.check(off, 1); err != nil {
			return false, 0, err
		}
		s.mu.Lock()
		epoch := s.epoch
		s.mu.Unlock()
		mapped, n, err = store.Extent(s.below, off, min(s.Size()-off, max(limit, 1)))
		if err != nil || mapped {
			return mapped, n, err
		}
		s.mu.Lock()
		if mapped = s.written(off / BlockSize); mapped {
			n = min(n, BlockSize-off%BlockSize)
		} else {
			for _, m := range []map[int64]*block{s.dirty, s.flushing} {
				for i := range m {
					if at := i * BlockSize; at > off {
						n = min(n, at-off)
					}
				}
			}
		}
		same := s.epoch == epoch
		s.mu.Unlock()
		if same {
			return mapped, n, nil
		}
	}
}

// written tells whether the cache has something to write to block i. mu is held.
func (s *Store) written(i int64) bool { return s.dirty[i] != nil || s.flushing[i] != nil }

// PowerCut loses what is dirty, as a disk does when the power goes, and leaves
// the store as it is found when the power is back. A block that survives tells
// of had reached the medium all the same; survives may be nil for none. Calls
// that run meanwhile may be lost or not.
func (s *Store) PowerCut(survives func(off int64) bool) error {
	s.moving.Lock()
	defer s.moving.Unlock()
	s.mu.Lock()
	kept := map[int64]*block{}
	for i, b := range s.dirty {
		if survives != nil && survives(i*BlockSize) {
			kept[i] = b
		}
	}
	clear(s.dirty)
	s.epoch++
	s.mu.Unlock()
	err := s.writeBelow(kept)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch++
	return err
}

// Close implements [store.Store]. Like a disk that is switched off in order, it
// syncs first.
func (s *Store) Close() error {
	err := s.Sync()
	if errors.Is(err, store.ErrClosed) {
		return err
	}
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	return errors.Join(err, s.below.Close())
}
