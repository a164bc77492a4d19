// Package file is a store in a file or on a block device.
package file

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"lunlab/lun/store"
)

// Options say how to open a file. The zero value opens an existing one for
// reading and writing, through the page cache.
type Options struct {
	// Size makes the file if it isn't there, and sparse at that size in bytes.
	// A file that is there must have that size. 0 takes what is there.
	Size int64

	// ReadOnly opens the file for reading. Writes fail with EROFS.
	ReadOnly bool

	// Direct passes by the page cache (O_DIRECT). I/O that isn't aligned as the
	// file system wants it still goes through the cache.
	Direct bool
}

// Store is a file or block device. One process at a time may have it open for
// writing: an advisory lock (flock) sees to it, which readers share.
type Store struct {
	f      *os.File
	direct *direct // nil without O_DIRECT
	size   atomic.Int64
	device bool
	ro     bool
	closed atomic.Bool

	// noPunch is set once the file system has refused to punch a hole.
	noPunch atomic.Bool

	fdatasync func(fd int) error
	lost      atomic.Pointer[error] // of the first fdatasync that failed
}

// Open opens the file or block device at path.
func Open(path string, o Options) (*Store, error) {
	if o.Size < 0 {
		return nil, fmt.Errorf("file: %s: size %d is negative", path, o.Size)
	}
	flags, lock := os.O_RDWR, unix.LOCK_EX
	if o.ReadOnly {
		flags, lock = os.O_RDONLY, unix.LOCK_SH
	} else if o.Size > 0 {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("file: %w", err)
	}
	s := &Store{f: f, ro: o.ReadOnly, fdatasync: unix.Fdatasync}
	if err := s.open(path, o, lock); err != nil {
		f.Close()
		return nil, fmt.Errorf("file: %s: %w", path, err)
	}
	return s, nil
}

func (s *Store) open(path string, o Options, lock int) error {
	err := unix.Flock(int(s.f.Fd()), lock|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return store.ErrLocked
	} else if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	st, err := s.f.Stat()
	if err != nil {
		return err
	}
	size := st.Size()
	switch mode := st.Mode(); {
	case mode.IsRegular():
		if size == 0 && o.Size > 0 && !s.ro {
			if err := s.f.Truncate(o.Size); err != nil {
				return err
			}
			size = o.Size
		}
	case mode&fs.ModeDevice != 0 && mode&fs.ModeCharDevice == 0:
		s.device = true
		if size, err = s.f.Seek(0, io.SeekEnd); err != nil {
			return fmt.Errorf("size of the device: %w", err)
		}
	default:
		return errors.New("neither a regular file nor a block device")
	}
	if o.Size > 0 && size != o.Size {
		return fmt.Errorf("it has %d bytes where %d were asked for", size, o.Size)
	}
	if size == 0 {
		return errors.New("it is empty, and no size was given")
	}
	s.size.Store(size)
	if o.Direct {
		s.direct, err = openDirect(path, s.ro)
	}
	return err
}

func (s *Store) check(off, n int64) error {
	if s.closed.Load() {
		return store.ErrClosed
	}
	return store.CheckRange(s.size.Load(), off, n)
}

func (s *Store) checkWrite(off, n int64) error {
	if s.ro {
		return fmt.Errorf("file: opened read-only: %w", syscall.EROFS)
	}
	return s.check(off, n)
}

// ReadAt implements [store.Store].
func (s *Store) ReadAt(p []byte, off int64) (int, error) {
	if err := s.check(off, int64(len(p))); err != nil {
		return 0, err
	}
	if s.direct != nil && s.direct.fits(len(p), off) {
		return s.direct.readAt(p, off)
	}
	n, err := s.f.ReadAt(p, off)
	return n, s.wrap(err)
}

// WriteAt implements [store.Store].
func (s *Store) WriteAt(p []byte, off int64) (int, error) {
	if err := s.checkWrite(off, int64(len(p))); err != nil {
		return 0, err
	}
	if s.direct != nil && s.direct.fits(len(p), off) {
		return s.direct.writeAt(p, off)
	}
	if s.direct != nil {
		return s.direct.writeCached(s, p, off)
	}
	n, err := s.f.WriteAt(p, off)
	return n, s.wrap(err)
}

// wrap turns a use of the closed file into ErrClosed, and the end of a file
// that someone has cut into an I/O error.
func (s *Store) wrap(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrClosed):
		return store.ErrClosed
	case errors.Is(err, io.EOF):
		return fmt.Errorf("file: shorter than when it was opened: %w", syscall.EIO)
	}
	return err
}

// Unmap implements [store.Sparse] by punching a hole, or by writing zeros where
// the file system can't.
func (s *Store) Unmap(off, n int64) error {
	return s.zero(off, n, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE)
}

// Zero implements [store.Zeroer].
func (s *Store) Zero(off, n int64) error {
	return s.zero(off, n, unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE)
}

func (s *Store) zero(off, n int64, mode uint32) error {
	if err := s.checkWrite(off, n); err != nil || n == 0 {
		return err
	}
	punch := mode&unix.FALLOC_FL_PUNCH_HOLE != 0
	if !punch || !s.noPunch.Load() {
		err := s.control(func(fd int) error { return unix.Fallocate(fd, mode, off, n) })
		if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) {
			return err
		}
		if punch {
			s.noPunch.Store(true)
		}
	}
	return store.Zero(plain{s}, off, n)
}

// plain hides the better ways to write zeros from store.Zero.
type plain struct{ store.Store }

// Extent implements [store.Sparse]. A block device is mapped all over.
func (s *Store) Extent(off, limit int64) (mapped bool, n int64, err error) {
	if err := s.check(off, 1); err != nil {
		return false, 0, err
	}
	limit = min(s.size.Load()-off, max(limit, 1))
	if s.device {
		return true, limit, nil
	}
	data, err := s.seek(off, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return false, limit, nil
	case errors.Is(err, unix.EINVAL): // a file system that doesn't tell
		return true, limit, nil
	case err != nil:
		return false, 0, err
	case data > off:
		return false, min(limit, data-off), nil
	}
	hole, err := s.seek(off, unix.SEEK_HOLE)
	if err != nil {
		return false, 0, err
	}
	return true, max(1, min(limit, hole-off)), nil
}

// seek moves the file's offset, which nothing here relies on.
func (s *Store) seek(off int64, whence int) (at int64, err error) {
	err = s.control(func(fd int) error {
		at, err = unix.Seek(fd, off, whence)
		return err
	})
	return at, err
}

func (s *Store) control(do func(fd int) error) error {
	rc, err := s.f.SyscallConn()
	if err != nil {
		return s.wrap(err)
	}
	var inner error
	if err := rc.Control(func(fd uintptr) {
		for {
			if inner = do(int(fd)); inner != unix.EINTR {
				return
			}
		}
	}); err != nil {
		return s.wrap(err)
	}
	return inner
}

// Resize implements [store.Resizer]. A file is made that long, unless it is
// already; of a device, the size has to be the one that it has by now.
func (s *Store) Resize(size int64) error {
	if s.closed.Load() {
		return store.ErrClosed
	}
	now, err := s.f.Seek(0, io.SeekEnd)
	if err != nil {
		return s.wrap(err)
	}
	if now != size && s.device {
		return fmt.Errorf("file: the device has %d bytes, not %d: %w", now, size, errors.ErrUnsupported)
	}
	if now != size {
		if s.ro {
			return fmt.Errorf("file: opened read-only: %w", syscall.EROFS)
		}
		if err := s.f.Truncate(size); err != nil {
			return s.wrap(err)
		}
	}
	s.size.Store(size)
	return nil
}

// Size implements [store.Store].
func (s *Store) Size() int64 { return s.size.Load() }

// ReadOnly implements [store.Guarded].
func (s *Store) ReadOnly() bool { return s.ro }

// Blocking implements [store.Waiter].
func (s *Store) Blocking() bool { return true }

// Sync implements [store.Store] with fdatasync, which also empties the write
// cache of a device. Linux tells of writes that failed only once, and takes
// their pages for clean afterwards: from then on every Sync fails.
func (s *Store) Sync() error {
	if s.closed.Load() {
		return store.ErrClosed
	}
	if s.ro {
		return nil
	}
	if lost := s.lost.Load(); lost != nil {
		return *lost
	}
	err := s.control(s.fdatasync)
	if err != nil {
		err = fmt.Errorf("file: fdatasync: %w", err)
		s.lost.CompareAndSwap(nil, &err)
	}
	return err
}

// Close implements [store.Store]. It doesn't sync.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return store.ErrClosed
	}
	err := s.f.Close()
	if s.direct != nil {
		err = errors.Join(err, s.direct.f.Close())
	}
	return err
}
