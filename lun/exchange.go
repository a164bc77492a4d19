package lun

import "sync"

// Commands that read and write blocks in one go (SBC-4 4.25): COMPARE AND WRITE
// and ORWRITE.

var exchangeOps = []op{
	{name: "COMPARE AND WRITE", usage: "89 1a ffffffffffffffff 000000 ff 3f 00", class: writes | medium | protect, moves: movesCompare, run: (*Disk).compareAndWrite},
	{name: "ORWRITE(16)", usage: "8b 1a ffffffffffffffff ffffffff 3f 00", class: writes | medium | protect, moves: movesOut, run: (*Disk).orWrite, when: notZoned},
	{name: "ORWRITE(32)", usage: "7f 00 07 0f 0000 3f 18 000e 18 00 ffffffffffffffff ffffffff ffffffff ffffffff", class: writes | medium | protect, moves: movesOut, run: (*Disk).orWriteGeneration, when: notZoned},
}

// orWrite32 is the service action of ORWRITE(32).
const orWrite32 = 0x000e

// maxCompare is the most blocks that COMPARE AND WRITE takes, all that its
// field can say.
const maxCompare = 255

func movesCompare(d *Disk, cdb []byte) (out, in uint64) {
	lba, n := be64(cdb[2:]), uint64(cdb[13])
	p, s := d.protection(cdb)
	if s.Key != NoSense || d.beyond(lba, n).Key != NoSense {
		return 0, 0
	}
	// One block more than it takes shows an initiator that sends too much.
	return (2*n + 1) * p.size(d.blockSize()), 0
}

// compareAndWrite is SBC-4 5.3. Only the data is compared; it is the second half
// whose protection information is checked and written.
func (d *Disk) compareAndWrite(_ *nexus, c *Command) Sense {
	lba, n := be64(c.CDB[2:]), uint64(c.CDB[13])
	p, s := d.protection(c.CDB)
	if s.Key != NoSense {
		return s
	}
	if s := d.beyond(lba, n); s.Key != NoSense {
		return s
	}
	if s := d.writeProtected(); s.Key != NoSense {
		return s
	}
	half := n * p.size(d.blockSize())
	if total(c.DataOut) != 2*half {
		// Half an exchange is none.
		return InvalidField(13, 7)
	}
	if n == 0 {
		return Sense{}
	}
	c.OutLen = 2 * half
	s = d.exchange(c, lba, n, func() Sense {
		if s := d.count.reading.note(d.compareHalf(c.DataOut, p, lba, n)); s.Key != NoSense {
			return s
		}
		if p.transfer {
			if s := d.checkTuples(c.DataOut, half, p, lba, n); s.Key != NoSense {
				return s
			}
		}
		return d.put(c.DataOut, half, p, lba, n)
	})
	if s.Key == NoSense {
		d.count.wrote(c, 2*n, n)
	}
	return s
}

// compareHalf compares n blocks at lba with the first half of data.
func (d *Disk) compareHalf(data [][]byte, p checks, lba, n uint64) Sense {
	switch s := d.spoiled(lba, n); {
	case s.Key != NoSense:
		return s
	case p.transfer:
		return d.compareWithTuples(data, lba, n)
	}
	return d.compare(data, lba, n)
}

// compareWithTuples is compare for data that has protection information, which
// isn't compared.
func (d *Disk) compareWithTuples(data [][]byte, lba, n uint64) Sense {
	in := cursor{list: data}
	want := make([]byte, d.blockSize()+tupleSize)
	return d.eachProtected(checks{}, lba, n, func(block []byte, _ tuple, i uint64) Sense {
		in.read(want)
		if at := difference(block, want); at < len(block) {
			return Sense{Key: Miscompare, Code: ASCMiscompareDuringVerify, Info: i*uint64(len(want)) + uint64(at), HasInfo: true}
		}
		return Sense{}
	})
}

// orState is what ORWRITE commands use to agree on the generation of a bitmap
// (SBC-4 4.27.2). A logical unit reset leaves it alone.
type orState struct {
	change sync.Mutex // held over a change of generation; before locks and mu

	// Under Disk.mu.
	current, previous uint32
	policy            byte
}

// ORWRITE processing policies (SBC-4 table 29): what becomes of a set operation
// for the previous generation, and for those before.
const (
	orPreviousOnly   = 0x0 // done; refused
	orIgnorePrevious = 0x2 // ignored; refused
	orAll            = 0x3 // done
	orIgnoreOthers   = 0x5 // ignored
	orCurrentOnly    = 0x7 // refused
)

// reset is for power on and hard reset. Disk.mu is held.
func (o *orState) reset() { o.current, o.previous, o.policy = 0, 0, orCurrentOnly }

// admits tells whether a set operation for a generation is to be done, or what is
// wrong with it. Disk.mu is held.
func (o *orState) admits(generation uint32) (do bool, s Sense) {
	mismatch := Sense{Key: IllegalRequest, Code: ASCORWriteGenerationDoesNotMatch}
	switch {
	case generation == o.current, o.policy == orAll, o.policy == orPreviousOnly && generation == o.previous:
		return true, Sense{}
	case o.policy == orIgnoreOthers, o.policy == orIgnorePrevious && generation == o.previous:
		return false, Sense{}
	}
	return false, mismatch
}

// orWrite is SBC-4 5.10, a set operation for generation 0.
func (d *Disk) orWrite(_ *nexus, c *Command) Sense { return d.orSet(c, 0) }

// orWriteGeneration is SBC-4 5.11.
func (d *Disk) orWriteGeneration(_ *nexus, c *Command) Sense {
	expected := be32(c.CDB[20:])
	switch c.CDB[2] {
	case 0:
		return d.orSet(c, expected)
	case 1:
	default:
		return InvalidField(2, 2)
	}
	policy := c.CDB[3]
	switch policy {
	case orPreviousOnly, orIgnorePrevious, orAll, orIgnoreOthers, orCurrentOnly:
	default:
		return InvalidField(3, 3)
	}
	d.or.change.Lock()
	defer d.or.change.Unlock()
	d.mu.Lock()
	matches := expected == d.or.current
	d.mu.Unlock()
	if !matches {
		return Sense{Key: IllegalRequest, Code: ASCORWriteGenerationDoesNotMatch}
	}
	if s := d.combine(c, true, func() (bool, Sense) { return true, Sense{} }); s.Key != NoSense {
		return s
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.or.policy, d.or.previous, d.or.current = policy, d.or.current, be32(c.CDB[24:])
	return Sense{}
}

func (d *Disk) orSet(c *Command, generation uint32) Sense {
	return d.combine(c, false, func() (bool, Sense) {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.or.admits(generation)
	})
}

// combine puts together what is there and data-out, bit by bit, by OR or by AND,
// if admits says so once nobody else is at the blocks.
func (d *Disk) combine(c *Command, and bool, admits func() (bool, Sense)) Sense {
	lba, n := extent(c.CDB)
	p, s := d.protection(c.CDB)
	if s.Key != NoSense {
		return s
	}
	if s := d.outside(c.CDB, lba, n); s.Key != NoSense {
		return s
	}
	if s := d.writeProtected(); s.Key != NoSense {
		return s
	}
	c.OutLen = n * p.size(d.blockSize())
	if n == 0 {
		_, s := admits()
		return s
	}
	s = d.exchange(c, lba, n, func() Sense {
		if do, s := admits(); !do {
			return s
		}
		if s := d.count.reading.note(d.spoiled(lba, n)); s.Key != NoSense {
			return s
		}
		return d.combineBlocks(c.DataOut, p, and, lba, n)
	})
	if s.Key == NoSense {
		d.count.wrote(c, n, n)
	}
	return s
}

// combineBlocks does so for whole blocks. All checks come before the first of
// them is written. The new protection information is that of the data-out with
// another guard (SBC-4 4.27.1).
func (d *Disk) combineBlocks(data [][]byte, p checks, and bool, lba, n uint64) Sense {
	n = min(n, total(data)/p.size(d.blockSize()))
	if p.kind != 0 {
		if s := d.count.reading.note(d.eachProtected(p, lba, n, nil)); s.Key != NoSense {
			return s
		}
	}
	if p.transfer {
		if s := d.checkTuples(data, 0, p, lba, n); s.Key != NoSense {
			return s
		}
	}
	b := batches.Get().(*protectedBatch)
	defer batches.Put(b)
	in, size := cursor{list: data}, d.blockSize()
	with := make([]byte, size)
	for n > 0 {
		count := min(n, scratchSize/size)
		part, off := b.data[:count*size], lba*size
		if k, err := d.store.ReadAt(part, int64(off)); err != nil {
			return d.count.reading.note(d.readError(err, off+uint64(k)))
		}
		for i := range count {
			block := part[i*size:][:size]
			in.read(with)
			for k, x := range with {
				if and {
					block[k] &= x
				} else {
					block[k] |= x
				}
			}
			if p.transfer {
				t := b.tuples[i*tupleSize:][:tupleSize]
				in.read(t)
				put16(t, guard(block))
			}
		}
		if k, err := d.store.WriteAt(part, int64(off)); err != nil {
			return d.writeError(err, off+uint64(k))
		}
		s := Sense{}
		if p.transfer {
			d.written(lba, count)
			s = d.writeTuples(b.tuples[:count*tupleSize], lba)
		} else {
			s = d.seal(lba, count)
		}
		if s.Key != NoSense {
			return s
		}
		lba, n = lba+count, n-count
	}
	return Sense{}
}
