package storetest_test

import (
	"sync"
	"testing"

	"lunlab/lun/store"
	"lunlab/lun/store/storetest"
)

// slice is a store of one's own: the least that a store has to be.
type slice struct {
	mu     sync.RWMutex
	b      []byte
	closed bool
}

func (s *slice) check(off, n int64) error {
	if s.closed {
		return store.ErrClosed
	}
	return store.CheckRange(int64(len(s.b)), off, n)
}

func (s *slice) ReadAt(p []byte, off int64) (int, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.check(off, int64(len(p))); err != nil {
		return 0, err
	}
	return copy(p, s.b[off:]), nil
}

func (s *slice) WriteAt(p []byte, off int64) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(off, int64(len(p))); err != nil {
		return 0, err
	}
	return copy(s.b[off:], p), nil
}

func (s *slice) Size() int64 { return int64(len(s.b)) }

func (s *slice) Sync() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.check(0, 0)
}

func (s *slice) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return store.ErrClosed
	}
	s.closed = true
	return nil
}

// TestOwnStore is all that the test of a store needs.
func TestOwnStore(t *testing.T) {
	storetest.Run(t, func(*testing.T) store.Store { return &slice{b: make([]byte, storetest.Size)} }, storetest.Options{})
}
