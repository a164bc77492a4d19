// Package store says what a logical unit asks of the place where its blocks
// lie, and helps with stores that can do less.
//
// A store is a run of bytes with a fixed size. [lunlab/lun/store/mem], file and
// null are the ones that come along; package storetest holds the suite that
// they and any other have to pass.
package store

import (
	"errors"
	"fmt"
)

// Store is the least that a store does.
//
// All methods are safe for concurrent use. Where a write overlaps another call,
// each byte is the old or the new one; what doesn't overlap isn't disturbed.
//
// Errors wrap the operating system's (syscall.ENOSPC, syscall.EIO) where it is
// at fault, since the unit tells them apart for its sense data.
type Store interface {
	// ReadAt fills p from the bytes at off. It reads all of p or returns an
	// error, with the count of bytes that were read before it. What was never
	// written reads as zeros.
	ReadAt(p []byte, off int64) (n int, err error)

	// WriteAt stores p at off, all of it or an error with the count of bytes
	// that were written before it. A later ReadAt sees them at once; a crash
	// may lose them until Sync has returned.
	WriteAt(p []byte, off int64) (n int, err error)

	// Size is the size in bytes. It doesn't change but by [Resizer].
	Size() int64

	// Sync returns when all that was written before the call is durable.
	Sync() error

	// Close gives up the store. Calls that still run end first or fail with
	// [ErrClosed], as do later ones.
	Close() error
}

// Sparse is a Store with holes: parts that read as zeros and take up no room.
type Sparse interface {
	Store

	// Unmap makes n bytes at off read as zeros and frees their room as far as
	// the store's granularity allows.
	Unmap(off, n int64) error

	// Extent tells whether the byte at off has room of its own, and for how
	// many bytes, at least 1 and at most limit, the answer is the same. It may
	// stop short of the true end.
	Extent(off, limit int64) (mapped bool, n int64, err error)
}

// Zeroer is a Store that writes zeros faster than WriteAt does.
type Zeroer interface {
	// Zero makes n bytes at off read as zeros. Whether they keep their room is
	// the store's business.
	Zero(off, n int64) error
}

// RangeSyncer is a Store that can make a part of it durable for less than all
// of it.
type RangeSyncer interface {
	// SyncRange returns when what was written before to the n bytes at off is
	// durable.
	SyncRange(off, n int64) error
}

// DurableWriter is a Store that writes durably for less than a WriteAt and a
// SyncRange.
type DurableWriter interface {
	// WriteDurable is WriteAt for data that is durable when it returns.
	WriteDurable(p []byte, off int64) (n int, err error)
}

// Pool is a Store that may have less room than its size.
type Pool interface {
	// Used returns how many bytes of room are taken, by all stores that share it.
	Used() int64

	// Shared tells whether there are others.
	Shared() bool

	// Limit returns the most that Used can be, 0 if there is no limit, which doesn't
	// change. Any other may, and Used may be above it then.
	Limit() int64
}

// Resizer is a Store whose size can be changed while it is in use.
type Resizer interface {
	// Resize makes the store so many bytes long. What it grows by reads as zeros;
	// what lies beyond a smaller size is lost, which is for taking back a growth
	// that nobody has made use of. On an error the size is as before.
	Resize(size int64) error
}

// Guarded is a Store that may refuse to be written, with EROFS.
type Guarded interface {
	// ReadOnly reports whether it refuses, which doesn't change.
	ReadOnly() bool
}

// Waiter is a Store that knows whether its calls may sleep. One that isn't a
// Waiter is taken to do so.
type Waiter interface {
	// Blocking reports whether a call may wait for anything but memory.
	Blocking() bool
}

var (
	// ErrRange is returned for an access that isn't wholly within the store.
	// Nothing was read or written then.
	ErrRange = errors.New("store: access out of range")

	// ErrClosed is returned by the calls on a store that was closed.
	ErrClosed = errors.New("store: closed")

	// ErrNoRoomYet is returned for a write for which a [Pool] has no room, but is to
	// have some: the same write may be done later. A pool that waits for nothing
	// returns ENOSPC.
	ErrNoRoomYet = errors.New("store: no room yet")

	// ErrLocked is returned for a store that another process or another opener
	// of this one uses.
	ErrLocked = errors.New("store: in use by another opener")
)

// CheckRange returns an error that wraps [ErrRange] unless n bytes at off lie
// within a store of the given size.
func CheckRange(size, off, n int64) error {
	if off < 0 || n < 0 || off > size || n > size-off {
		return fmt.Errorf("%w: %d bytes at %d of %d", ErrRange, n, off, size)
	}
	return nil
}

// Blocking reports whether calls on s may sleep.
func Blocking(s Store) bool {
	if w, ok := s.(Waiter); ok {
		return w.Blocking()
	}
	return true
}

// ReadOnly reports whether s refuses to be written.
func ReadOnly(s Store) bool {
	g, ok := s.(Guarded)
	return ok && g.ReadOnly()
}

// SyncRange makes n bytes at off of s durable, and the rest too where s knows no
// better.
func SyncRange(s Store, off, n int64) error {
	if r, ok := s.(RangeSyncer); ok {
		return r.SyncRange(off, n)
	}
	return s.Sync()
}

// zeros is what Zero writes where the store has nothing better.
var zeros [64 << 10]byte

// Zero makes n bytes at off of s read as zeros, in the best way that s has.
func Zero(s Store, off, n int64) error {
	switch z := s.(type) {
	case Zeroer:
		return z.Zero(off, n)
	case Sparse:
		return z.Unmap(off, n)
	}
	if err := CheckRange(s.Size(), off, n); err != nil {
		return err
	}
	for n > 0 {
		p := zeros[:min(n, int64(len(zeros)))]
		if _, err := s.WriteAt(p, off); err != nil {
			return err
		}
		off, n = off+int64(len(p)), n-int64(len(p))
	}
	return nil
}

// Extent is s.Extent for a [Sparse] store and says that all is mapped for any
// other.
func Extent(s Store, off, limit int64) (mapped bool, n int64, err error) {
	if sp, ok := s.(Sparse); ok {
		return sp.Extent(off, limit)
	}
	return true, limit, nil
}
