package lun

var atomicOps = []op{
	{name: "WRITE ATOMIC(16)", usage: "9c 18 ffffffffffffffff 0000 ffff 3f 00", class: writes | medium | protect, moves: movesAtomic, run: (*Disk).writeAtomic, when: atomicWrites},
	{name: "WRITE ATOMIC(32)", usage: "7f 00 0000 0000 3f 18 000f 18 00 ffffffffffffffff ffffffff ffff ffff ffffffff", class: writes | medium | protect | type2, moves: movesAtomic, run: (*Disk).writeAtomic, when: both((*Disk).protectable, atomicWrites)},
}

// maxAtomicBytes bounds WRITE ATOMIC, which holds what was there before until it
// is done.
const maxAtomicBytes = 1 << 20

// atomicWrites tells whether the disk has WRITE ATOMIC: only where nothing that
// ends the process leaves half of a write behind, which is memory.
func atomicWrites(d *Disk) bool { return d.volatile && d.maxAtomic() > 0 && notZoned(d) }

// maxAtomic is the most blocks that WRITE ATOMIC takes.
func (d *Disk) maxAtomic() uint64 {
	most := min(maxAtomicBytes/d.blockSize(), uint64(d.geometry().maxTransfer))
	return most &^ (d.atomicUnit() - 1)
}

// atomicUnit is what an atomic write has to be a multiple of and aligned to: the
// blocks of a physical one.
func (d *Disk) atomicUnit() uint64 { return 1 << d.geometry().exponent }

// atomicExtent is extent for WRITE ATOMIC, and what is wrong with it. There are
// no atomic boundaries.
func (d *Disk) atomicExtent(cdb []byte) (lba, n uint64, s Sense) {
	lba, n = extent(cdb)
	lbaAt, lengthAt := 12, 28
	if cdb[0] != variable {
		n, lbaAt, lengthAt = uint64(be16(cdb[12:])), 2, 12
	}
	if s := d.beyond(lba, n); s.Key != NoSense {
		return 0, 0, s
	}
	if n > d.maxAtomic() || n%d.atomicUnit() != 0 {
		return 0, 0, InvalidField(lengthAt, 7)
	}
	if lba%d.atomicUnit() != 0 {
		return 0, 0, InvalidField(lbaAt, 7)
	}
	return lba, n, Sense{}
}

func movesAtomic(d *Disk, cdb []byte) (out, in uint64) {
	p, s := d.protection(cdb)
	_, n, s2 := d.atomicExtent(cdb)
	if s.Key != NoSense || s2.Key != NoSense {
		return 0, 0
	}
	return n * p.size(d.blockSize()), 0
}

// writeAtomic writes all of the blocks or none (SBC-4 5.44): no other command
// sees a part of them, and an error leaves what was there.
func (d *Disk) writeAtomic(_ *nexus, c *Command) Sense {
	p, s := d.protection(c.CDB)
	if s.Key != NoSense {
		return s
	}
	lba, n, s := d.atomicExtent(c.CDB)
	if s.Key != NoSense {
		return s
	}
	lengthAt := 12
	if c.CDB[0] == variable {
		lengthAt = 28
	}
	if s := d.writeProtected(); s.Key != NoSense || n == 0 {
		return s
	}
	size := n * p.size(d.blockSize())
	if total(c.DataOut) < size {
		return InvalidField(lengthAt, 7)
	}
	c.OutLen = size
	s = d.exchange(c, lba, n, func() Sense {
		old := make([]byte, n*d.blockSize())
		if _, err := d.store.ReadAt(old, int64(lba*d.blockSize())); err != nil {
			return d.count.reading.note(d.readError(err, lba*d.blockSize()))
		}
		var tuples []byte
		if p.kind != 0 {
			tuples = make([]byte, n*tupleSize)
			if s := d.count.reading.note(d.readTuples(tuples, lba)); s.Key != NoSense {
				return s
			}
		}
		s := d.put(c.DataOut, 0, p, lba, n)
		if s.Key != NoSense {
			// What was written had room, so that what was there has it too. Where
			// there was none, nothing is to be undone.
			d.writeBlocks([][]byte{old}, 0, lba, n)
			if tuples != nil {
				d.writeTuples(tuples, lba)
			}
		}
		return s
	})
	if s.Key == NoSense {
		d.count.wrote(c, n, n)
	}
	return s
}
