package lun

import (
	"bytes"
	"slices"
	"sync"
)

// CopySet is the disks that EXTENDED COPY reaches: a disk in one may copy from
// and to every other in it. The zero value is an empty set. It is safe for
// concurrent use.
type CopySet struct {
	mu    sync.Mutex
	disks []*Disk
}

func (s *CopySet) add(d *Disk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.disks = append(s.disks, d)
}

func (s *CopySet) remove(d *Disk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.disks = slices.DeleteFunc(s.disks, func(x *Disk) bool { return x == d })
}

// find returns the disk that has a designation descriptor (SPC-5 7.7.6.1), which
// may be followed by padding, or nil. For a nexus that isn't nil it is one that the
// nexus sees.
func (s *CopySet) find(designator []byte, n *Nexus) *Disk {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.disks {
		if d.designated(designator) && (n == nil || n.Sees == nil || n.Sees(d.opt.LUN)) {
			return d
		}
	}
	return nil
}

// designated tells whether the descriptor names this disk.
func (d *Disk) designated(want []byte) bool {
	n := int(want[3])
	if n > len(want)-4 {
		return false
	}
	for all := d.unitDesignators(); len(all) > 0; {
		size := int(all[3])
		same := all[0]&0x0f == want[0]&0x0f && all[1]&0x3f == want[1]&0x3f && n == size
		if same && bytes.Equal(all[4:4+size], want[4:4+n]) {
			return true
		}
		all = all[4+size:]
	}
	return false
}
