package lun

import "lunlab/lun/store"

var provisionOps = []op{
	{name: "WRITE SAME(10)", usage: "41 00 ffffffff 3f ffff 00", class: writes | medium | protect, moves: movesSame, run: (*Disk).writeSame, when: not(unmapsBy(ByWriteSame10))},
	{name: "WRITE SAME(10)", usage: "41 18 ffffffff 3f ffff 00", class: writes | medium | protect, moves: movesSame, run: (*Disk).writeSame, when: unmapsBy(ByWriteSame10)},
	{name: "WRITE SAME(16)", usage: "93 01 ffffffffffffffff ffffffff 3f 00", class: writes | medium | protect, moves: movesSame, run: (*Disk).writeSame, when: not(unmapsBy(ByWriteSame16))},
	{name: "WRITE SAME(16)", usage: "93 19 ffffffffffffffff ffffffff 3f 00", class: writes | medium | protect, moves: movesSame, run: (*Disk).writeSame, when: unmapsBy(ByWriteSame16)},
	{name: "WRITE SAME(32)", usage: "7f 00 00000000 3f 18 000d 01 00 ffffffffffffffff ffffffff ffff ffff ffffffff", class: writes | medium | protect | type2, moves: movesSame, run: (*Disk).writeSame, when: both((*Disk).protectable, not(unmapsBy(ByWriteSame16)))},
	{name: "WRITE SAME(32)", usage: "7f 00 00000000 3f 18 000d 19 00 ffffffffffffffff ffffffff ffff ffff ffffffff", class: writes | medium | protect | type2, moves: movesSame, run: (*Disk).writeSame, when: both((*Disk).protectable, unmapsBy(ByWriteSame16))},
	{name: "UNMAP", usage: "42 01 00000000 3f ffff 00", class: writes | medium, moves: takes(7, 2), run: (*Disk).unmap, when: unmapsBy(ByUnmap)},
}

// Unmapping is a set of commands by which a thin disk unmaps blocks. Targets
// differ in what they offer, and initiators in what they can make use of.
type Unmapping uint8

const (
	ByUnmap       Unmapping = 1 << iota // UNMAP (LBPU)
	ByWriteSame16                       // WRITE SAME(16) with UNMAP set (LBPWS)
	ByWriteSame10                       // WRITE SAME(10) with UNMAP set (LBPWS10)

	unmappings = ByUnmap | ByWriteSame16 | ByWriteSame10
)

func thin(d *Disk) bool { return d.sparse != nil }

func unmapsBy(u Unmapping) func(*Disk) bool {
	return func(d *Disk) bool { return thin(d) && d.opt.UnmapBy&u != 0 }
}

func both(a, b func(*Disk) bool) func(*Disk) bool {
	return func(d *Disk) bool { return a(d) && b(d) }
}

func not(when func(*Disk) bool) func(*Disk) bool {
	return func(d *Disk) bool { return !when(d) }
}

const (
	// maxUnmap is the most blocks that UNMAP frees for one command, and
	// maxUnmapDescriptors the most ranges.
	maxUnmap            = 1 << 20
	maxUnmapDescriptors = 256

	// maxSame is the most blocks that WRITE SAME writes, all that the field of
	// the 10-byte one can say. It bounds how long a command takes.
	maxSame = 1<<16 - 1
)

// noDataOut is NDOB of WRITE SAME(16): all zeros instead of a block.
func noDataOut(cdb []byte) bool { return cdb[0] != 0x41 && flags(cdb)&1 != 0 }

func movesSame(d *Disk, cdb []byte) (out, in uint64) {
	p, s := d.protection(cdb)
	if _, _, s2 := d.sameExtent(cdb); s.Key != NoSense || s2.Key != NoSense || noDataOut(cdb) {
		return 0, 0
	}
	// One block more than it takes shows an initiator that sends too much.
	return p.size(d.blockSize()) + d.blockSize(), 0
}

// sameExtent is extent for WRITE SAME, whose length of 0 is to the end of the
// medium (SBC-4 5.53), if that isn't too far.
func (d *Disk) sameExtent(cdb []byte) (lba, n uint64, s Sense) {
	lba, n = extent(cdb)
	if s := d.beyond(lba, n); s.Key != NoSense {
		return 0, 0, s
	}
	if n == 0 {
		n = d.Blocks() - lba
	}
	if n == 0 || n > maxSame {
		return 0, 0, InvalidField(lengthField(cdb), 7)
	}
	return lba, n, Sense{}
}

func (d *Disk) writeSame(_ *nexus, c *Command) Sense {
	p, s := d.protection(c.CDB)
	if s.Key != NoSense {
		return s
	}
	unmap, anchor := flags(c.CDB)&8 != 0, flags(c.CDB)&16 != 0
	if anchor && !unmap {
		return InvalidField(flagsByte(c.CDB), 4)
	}
	lba, n, s := d.sameExtent(c.CDB)
	if s.Key != NoSense {
		return s
	}
	if s := d.writeProtected(); s.Key != NoSense {
		return s
	}
	var block []byte
	var t tuple
	if !noDataOut(c.CDB) {
		size := p.size(d.blockSize())
		if total(c.DataOut) != size {
			return Sense{Key: IllegalRequest, Code: ASCInvalidFieldInCDB}
		}
		c.OutLen = size
		block = c.Gather(size)
		if p.transfer {
			block, t = block[:d.blockSize()], parseTuple(block[d.blockSize():])
			if s := p.check(block, t, lba, 0); s.Key != NoSense {
				return s
			}
		}
	}
	wrote := n
	d.lockWrite(lba, n)
	s = d.overtaken(c.erasures)
	switch {
	case s.Key != NoSense:
	case unmap && isZero(block):
		wrote = 0
		s = d.unmapBlocks(lba, n, anchor)
	case d.zones != nil:
		s = d.writeZone(lba, n, func() Sense { return d.same(block, t, p, lba, n) })
	default:
		s = d.same(block, t, p, lba, n)
	}
	d.unlockWrite(lba, n)
	if s.Key != NoSense {
		return s
	}
	d.count.wrote(c, min(uint64(len(block)), 1), wrote)
	return d.settle(0, lba, n)
}

// same writes one block, nil for zeros, n times, with its tuple if there is one.
// The lock for writing is held.
func (d *Disk) same(block []byte, t tuple, p checks, lba, n uint64) Sense {
	if !isZero(block) {
		if s := d.fill(block, lba, n); s.Key != NoSense {
			return s
		}
	} else if err := d.zero(int64(lba*d.blockSize()), int64(n*d.blockSize())); err != nil {
		return d.writeError(err, lba*d.blockSize())
	}
	if block != nil && p.transfer {
		return d.sealAs(t, p.kind, lba, n)
	}
	return d.seal(lba, n)
}

// unmapBlocks unmaps n blocks at lba, to be anchored or deallocated. The lock for
// writing is held.
func (d *Disk) unmapBlocks(lba, n uint64, anchor bool) Sense {
	off, size := int64(lba*d.blockSize()), int64(n*d.blockSize())
	unmap := d.sparse.Unmap
	if anchor {
		// Zeros that were written have room of their own, whatever the store.
		unmap = func(off, size int64) error { return store.Zero(mapped{d.store}, off, size) }
	}
	if err := unmap(off, size); err != nil {
		return d.writeError(err, lba*d.blockSize())
	}
	if err := d.unseal(lba, n); err != nil {
		return d.writeError(err, lba*d.blockSize())
	}
	if anchor {
		// If there are too many to remember they are mapped, which an anchored block
		// may become by itself (SBC-4 4.7.3.5).
		d.anchored.Add(lba, n, d.Blocks())
	}
	return Sense{}
}

// zero writes zeros. The blocks of a thin disk are mapped afterwards, as for any
// write; those of a thick one always are, whatever the store does.
func (d *Disk) zero(off, size int64) error {
	if d.sparse == nil {
		return store.Zero(d.store, off, size)
	}
	if z, ok := d.store.(store.Zeroer); ok {
		return z.Zero(off, size)
	}
	return store.Zero(mapped{d.store}, off, size)
}

// mapped hides what a store has to unmap with.
type mapped struct{ store.Store }

// fill writes one block n times.
func (d *Disk) fill(block []byte, lba, n uint64) Sense {
	buf := scratch.Get().(*[scratchSize]byte)
	defer scratch.Put(buf)
	size := n * d.blockSize()
	for i := uint64(0); i < min(size, scratchSize); i += d.blockSize() {
		copy(buf[i:], block)
	}
	for off := uint64(0); off < size; {
		part := buf[:min(size-off, scratchSize)]
		at := lba*d.blockSize() + off
		if done, err := d.store.WriteAt(part, int64(at)); err != nil {
			return d.writeError(err, at+uint64(done))
		}
		off += uint64(len(part))
	}
	return Sense{}
}

func isZero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}

func (d *Disk) unmap(_ *nexus, c *Command) Sense {
	n := uint64(be16(c.CDB[7:]))
	if n == 0 {
		return Sense{}
	}
	if s := d.writeProtected(); s.Key != NoSense {
		return s
	}
	list := c.Gather(n)
	if len(list) < 8 || uint64(len(list)) < n {
		return Sense{Key: IllegalRequest, Code: ASCParameterListLengthError}
	}
	c.OutLen = n
	// Descriptors that are cut off are left out (SBC-4 5.36).
	count := min(int(be16(list[2:])), len(list)-8) / 16
	if count > maxUnmapDescriptors {
		return InvalidParameter(2, 7)
	}
	sum := uint64(0)
	for i := range count {
		lba, n := unmapRange(list, i)
		if s := d.beyond(lba, n); s.Key != NoSense && (n > 0 || lba > d.Blocks()) {
			return s
		}
		if sum += n; sum > maxUnmap {
			return InvalidParameter(8+16*i+8, 7)
		}
	}
	for i := range count {
		lba, n := unmapRange(list, i)
		if n == 0 {
			continue
		}
		d.lockWrite(lba, n)
		s := d.overtaken(c.erasures)
		if s.Key == NoSense {
			s = d.unmapBlocks(lba, n, c.CDB[1]&1 == 1)
		}
		d.unlockWrite(lba, n)
		if s.Key != NoSense {
			return s
		}
	}
	return d.settleAll(0)
}

func unmapRange(list []byte, i int) (lba, n uint64) {
	return be64(list[8+16*i:]), uint64(be32(list[8+16*i+8:]))
}
