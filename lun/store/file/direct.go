package file

import (
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"lunlab/lun/store"
)

// direct is the second descriptor of a file that is open with O_DIRECT.
//
// The kernel keeps what goes through it and what goes through the page cache apart
// from each other only if they don't run at the same time on one page: a page that
// is dirty, or being written to, outlives a direct write and is written back over it.
// So calls that are aligned share mixing, and a write that isn't has it for itself
// until its pages are clean.
type direct struct {
	mixing sync.RWMutex

	f     *os.File
	align int // of offset, length and memory
}

// bounceSize is the most that one call moves for memory that isn't aligned.
const bounceSize = 256 << 10

// bounce holds *[]byte, aligned to 4,096.
var bounce = sync.Pool{New: func() any {
	b := make([]byte, bounceSize+4096)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & 4095
	b = b[skip : skip+bounceSize]
	return &b
}}

func openDirect(path string, ro bool) (*direct, error) {
	flags := os.O_RDWR
	if ro {
		flags = os.O_RDONLY
	}
	f, err := os.OpenFile(path, flags|unix.O_DIRECT, 0)
	if err != nil {
		return nil, fmt.Errorf("O_DIRECT: %w", err)
	}
	d := &direct{f: f, align: 4096}
	var st unix.Statx_t
	err = unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st)
	if err == nil && st.Mask&unix.STATX_DIOALIGN != 0 {
		if a := max(st.Dio_mem_align, st.Dio_offset_align); a >= 1 && a <= 4096 {
			d.align = int(a)
		}
	}
	return d, nil
}

func (d *direct) fits(n int, off int64) bool {
	return n > 0 && n%d.align == 0 && off%int64(d.align) == 0
}

func (d *direct) aligned(p []byte) bool {
	return uintptr(unsafe.Pointer(&p[0]))%uintptr(d.align) == 0
}

func (d *direct) readAt(p []byte, off int64) (int, error) {
	d.mixing.RLock()
	defer d.mixing.RUnlock()
	if d.aligned(p) {
		n, err := d.f.ReadAt(p, off)
		return n, wrapDirect(err)
	}
	b := bounce.Get().(*[]byte)
	defer bounce.Put(b)
	done := 0
	for done < len(p) {
		part := (*b)[:min(bounceSize, len(p)-done)]
		n, err := d.f.ReadAt(part, off+int64(done))
		done += copy(p[done:], part[:n])
		if err != nil {
			return done, wrapDirect(err)
		}
	}
	return done, nil
}

// writeCached writes what isn't aligned through the page cache of s.
func (d *direct) writeCached(s *Store, p []byte, off int64) (int, error) {
	d.mixing.Lock()
	defer d.mixing.Unlock()
	n, err := s.f.WriteAt(p, off)
	if err != nil {
		return n, s.wrap(err)
	}
	return n, s.Sync() // which remembers an error for later ones
}

func (d *direct) writeAt(p []byte, off int64) (int, error) {
	d.mixing.RLock()
	defer d.mixing.RUnlock()
	if d.aligned(p) {
		n, err := d.f.WriteAt(p, off)
		return n, wrapDirect(err)
	}
	b := bounce.Get().(*[]byte)
	defer bounce.Put(b)
	done := 0
	for done < len(p) {
		part := (*b)[:copy(*b, p[done:])]
		n, err := d.f.WriteAt(part, off+int64(done))
		done += n
		if err != nil {
			return done, wrapDirect(err)
		}
	}
	return done, nil
}

func wrapDirect(err error) error { return (*Store)(nil).wrap(err) }

var _ store.Sparse = (*Store)(nil)
