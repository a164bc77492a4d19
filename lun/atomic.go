package lun

var atomicOps = []op{
	{name: "WRITE ATOMIC(16)", usage: "9c 18 ffffffffffffffff 0000 ffff 3f 00", class: writes | medium, moves: movesAtomic, run: (*Disk).writeAtomic, when: atomicWrites},
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

// atomicExtent is extent for WRITE ATOMIC(16), and what is wrong with it. There
// are no atomic boundaries.
func (d *Disk) atomicExtent(cdb []byte) (lba, n uint64, s Sense) {
	lba, n = be64(cdb[2:]), uint64(be16(cdb[12:]))
	if s := d.beyond(lba, n); s.Key != NoSense {
		return 0, 0, s
	}
	if n > d.maxAtomic() || n%d.atomicUnit() != 0 {
		return 0, 0, InvalidField(12, 7)
	}
	if lba%d.atomicUnit() != 0 {
		return 0, 0, InvalidField(2, 7)
	}
	return lba, n, Sense{}
}

func movesAtomic(d *Disk, cdb []byte) (out, in uint64) {
	_, n, s := d.atomicExtent(cdb)
	if s.Key != NoSense {
		return 0, 0
	}
	return n * d.blockSize(), 0
}

// writeAtomic writes all of the blocks or none (SBC-4 5.44): no other command
// sees a part of them, and an error leaves what was there.
func (d *Disk) writeAtomic(_ *nexus, c *Command) Sense {
	lba, n, s := d.atomicExtent(c.CDB)
	if s.Key != NoSense {
		return s
	}
	if s := d.writeProtected(); s.Key != NoSense || n == 0 {
		return s
	}
	if total(c.DataOut) < n*d.blockSize() {
		return InvalidField(12, 7)
	}
	c.OutLen = n * d.blockSize()
	d.locks.lock(lba, n)
	defer d.locks.unlock(lba, n)
	if s := d.overtaken(c.erasures); s.Key != NoSense {
		return s
	}
	old := make([]byte, n*d.blockSize())
	if _, err := d.store.ReadAt(old, int64(lba*d.blockSize())); err != nil {
		return d.readError(err, lba*d.blockSize())
	}
	if s := d.writeBlocks(c.DataOut, 0, lba, n); s.Key != NoSense {
		// What was written had room, so that what was there has it too.
		d.writeBlocks([][]byte{old}, 0, lba, min(n, s.Info-lba+1))
		return s
	}
	if s := d.seal(lba, n); s.Key != NoSense {
		return s
	}
	d.count.wrote(c.CDB, n)
	return d.settle(flags(c.CDB), lba, n)
}
