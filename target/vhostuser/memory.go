package vhostuser

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// maxRegions is how many regions of memory there may be at once.
const maxRegions = 64

// region is a part of the guest's memory, mapped.
type region struct {
	memoryRegion
	b       []byte // its bytes
	mapping []byte // what was mapped: they and what lies before them in their file
	refs    atomic.Int64

	// lasting says that the memory can't be taken away as long as it is mapped: its
	// file can't be made shorter. What lies elsewhere is copied with care, and no
	// unit gets to see it.
	lasting bool
}

// mapRegion maps memory that m describes and fd has. It doesn't keep fd.
func mapRegion(m memoryRegion, fd int) (*region, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("memory at %#x: %w", m.guest, err)
	}
	end := m.offset + m.size
	if end > 1<<46 || st.Mode&unix.S_IFMT != unix.S_IFREG || end > uint64(st.Size) {
		return nil, fmt.Errorf("memory at %#x: %#x bytes at %#x of a file of %#x", m.guest, m.size, m.offset, st.Size)
	}
	b, err := unix.Mmap(fd, 0, int(end), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("memory at %#x: mmap: %w", m.guest, err)
	}
	r := &region{memoryRegion: m, mapping: b, b: b[m.offset:end:end], lasting: isLasting(fd)}
	r.refs.Store(1)
	return r, nil
}

// isLasting tells whether a file keeps its length and always has pages to give,
// which huge pages haven't.
func isLasting(fd int) bool {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return false
	}
	var fs unix.Statfs_t
	return unix.Fstatfs(fd, &fs) == nil && uint32(fs.Type) != unix.HUGETLBFS_MAGIC
}

func (r *region) drop() error {
	if r.refs.Add(-1) > 0 {
		return nil
	}
	return unix.Munmap(r.mapping)
}

// memory is the guest's memory as it was told of at one time. It is never
// changed, and stays mapped while something holds it.
type memory struct {
	regions []*region
	refs    atomic.Int64
}

// newMemory takes over the regions. They must not overlap.
func newMemory(regions []*region) (*memory, error) {
	m := &memory{regions: regions}
	m.refs.Store(1)
	if len(regions) > maxRegions {
		return nil, errors.Join(fmt.Errorf("more than %d regions of memory", maxRegions), m.drop())
	}
	for i, r := range regions {
		for _, o := range regions[:i] {
			if overlap(r.guest, r.size, o.guest, o.size) || overlap(r.user, r.size, o.user, o.size) {
				return nil, errors.Join(fmt.Errorf("regions of memory overlap: %#x bytes at %#x, %#x bytes at %#x", o.size, o.guest, r.size, r.guest), m.drop())
			}
		}
	}
	return m, nil
}

func overlap(a, n, b, m uint64) bool { return a <= b+(m-1) && b <= a+(n-1) }

// with is the memory and r, which it takes over.
func (m *memory) with(r *region) (*memory, error) {
	return newMemory(append(m.share(), r))
}

// without is the memory without the region that d describes.
func (m *memory) without(d memoryRegion) (*memory, error) {
	i := slices.IndexFunc(m.regions, func(r *region) bool {
		return r.guest == d.guest && r.size == d.size && r.user == d.user
	})
	if i < 0 {
		return nil, fmt.Errorf("no memory of %#x bytes at %#x", d.size, d.guest)
	}
	regions := m.share()
	if err := regions[i].drop(); err != nil {
		return nil, err
	}
	return newMemory(slices.Delete(regions, i, i+1))
}

func (m *memory) share() []*region {
	for _, r := range m.regions {
		r.refs.Add(1)
	}
	return slices.Clone(m.regions)
}

func (m *memory) hold() { m.refs.Add(1) }

func (m *memory) drop() error {
	if m.refs.Add(-1) > 0 {
		return nil
	}
	var errs []error
	for _, r := range m.regions {
		errs = append(errs, r.drop())
	}
	return errors.Join(errs...)
}

// at appends to list the n bytes at the guest's address, which may go on from one
// region to the next. lasting tells whether all of them are so.
func (m *memory) at(list [][]byte, addr, n uint64) (_ [][]byte, lasting bool, err error) {
	lasting = true
	for n > 0 {
		r := m.find(addr)
		if r == nil {
			return list, false, fmt.Errorf("%#x bytes at %#x are not in the guest's memory", n, addr)
		}
		off := addr - r.guest
		k := min(n, r.size-off)
		list = append(list, r.b[off:off+k:off+k])
		lasting = lasting && r.lasting
		if n -= k; addr+k < addr && n > 0 {
			return list, false, fmt.Errorf("%#x bytes are beyond the end of addresses", n)
		}
		addr += k
	}
	return list, lasting, nil
}

func (m *memory) find(addr uint64) *region {
	for _, r := range m.regions {
		if addr-r.guest < r.size {
			return r
		}
	}
	return nil
}

// ofUser returns the n bytes at an address of the front end, all in one region.
func (m *memory) ofUser(addr, n uint64) ([]byte, error) {
	for _, r := range m.regions {
		if off := addr - r.user; off < r.size && n <= r.size-off {
			return r.b[off : off+n : off+n], nil
		}
	}
	return nil, fmt.Errorf("%#x bytes at the front end's %#x are not in the guest's memory", n, addr)
}
