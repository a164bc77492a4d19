// Package null is a store that forgets: writes go nowhere, reads are zeros. It
// measures everything but a store.
package null

import (
	"fmt"
	"sync/atomic"

	"lunlab/lun/store"
)

// Store is a store that holds nothing.
type Store struct {
	size   atomic.Int64
	closed atomic.Bool
}

// New returns a store that claims to have size bytes.
func New(size int64) (*Store, error) {
	if size < 0 {
		return nil, fmt.Errorf("null: size %d is negative", size)
	}
	s := &Store{}
	s.size.Store(size)
	return s, nil
}

// Resize implements [store.Resizer].
func (s *Store) Resize(size int64) error {
	if size < 0 {
		return fmt.Errorf("null: size %d is negative", size)
	}
	s.size.Store(size)
	return nil
}

func (s *Store) check(off, n int64) error {
	if s.closed.Load() {
		return store.ErrClosed
	}
	return store.CheckRange(s.size.Load(), off, n)
}

// ReadAt implements [store.Store] with zeros.
func (s *Store) ReadAt(p []byte, off int64) (int, error) {
	if err := s.check(off, int64(len(p))); err != nil {
		return 0, err
	}
	clear(p)
	return len(p), nil
}

// WriteAt implements [store.Store] and drops p.
func (s *Store) WriteAt(p []byte, off int64) (int, error) {
	if err := s.check(off, int64(len(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Zero implements [store.Zeroer].
func (s *Store) Zero(off, n int64) error { return s.check(off, n) }

// Unmap implements [store.Sparse].
func (s *Store) Unmap(off, n int64) error { return s.check(off, n) }

// Extent implements [store.Sparse]: all of it is a hole.
func (s *Store) Extent(off, limit int64) (bool, int64, error) {
	if err := s.check(off, 1); err != nil {
		return false, 0, err
	}
	return false, min(s.size.Load()-off, max(limit, 1)), nil
}

// Size implements [store.Store].
func (s *Store) Size() int64 { return s.size.Load() }

// Blocking implements [store.Waiter].
func (s *Store) Blocking() bool { return false }

// Sync implements [store.Store].
func (s *Store) Sync() error { return s.check(0, 0) }

// Close implements [store.Store].
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return store.ErrClosed
	}
	return nil
}
