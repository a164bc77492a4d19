package lun

import (
	"bytes"
	"sync"
)

var verifyOps = []op{
	{name: "VERIFY(10)", usage: "2f 16 ffffffff 3f ffff 00", class: reads | medium | protect, moves: movesVerify, run: (*Disk).verify},
	{name: "VERIFY(12)", usage: "af 16 ffffffff ffffffff 3f 00", class: reads | medium | protect, moves: movesVerify, run: (*Disk).verify},
	{name: "VERIFY(16)", usage: "8f 16 ffffffffffffffff ffffffff 3f 00", class: reads | medium | protect, moves: movesVerify, run: (*Disk).verify},
	{name: "WRITE AND VERIFY(10)", usage: "2e 16 ffffffff 3f ffff 00", class: writes | medium | protect, moves: movesOut, run: (*Disk).writeVerify},
	{name: "WRITE AND VERIFY(12)", usage: "ae 16 ffffffff ffffffff 3f 00", class: writes | medium | protect, moves: movesOut, run: (*Disk).writeVerify},
	{name: "WRITE AND VERIFY(16)", usage: "8e 16 ffffffffffffffff ffffffff 3f 00", class: writes | medium | protect, moves: movesOut, run: (*Disk).writeVerify},
	{name: "VERIFY(32)", usage: "7f 00 00000000 3f 18 000a 16 00 ffffffffffffffff ffffffff ffff ffff ffffffff", class: reads | medium | protect, moves: movesVerify, run: (*Disk).verify, when: (*Disk).protectable},
	{name: "WRITE AND VERIFY(32)", usage: "7f 00 00000000 3f 18 000c 16 00 ffffffffffffffff ffffffff ffff ffff ffffffff", class: writes | medium | protect, moves: movesOut, run: (*Disk).writeVerify, when: (*Disk).protectable},
	{name: "COMPARE AND WRITE", usage: "89 1a ffffffffffffffff 000000 ff 3f 00", class: writes | medium, moves: movesCompare, run: (*Disk).compareAndWrite, when: notZoned},
	{name: "ORWRITE(16)", usage: "8b 1a ffffffffffffffff ffffffff 3f 00", class: writes | medium, moves: movesOut, run: (*Disk).orWrite, when: notZoned},
}

// maxCompare is the most blocks that COMPARE AND WRITE takes, all that its
// field can say.
const maxCompare = 255

// scratchSize is the piece in which blocks are compared and combined.
const scratchSize = 64 << 10

var scratch = sync.Pool{New: func() any { return new([scratchSize]byte) }}

// byteCheck returns the BYTCHK field.
func byteCheck(cdb []byte) byte { return flags(cdb) >> 1 & 3 }

func byteCheckField(cdb []byte) Sense {
	if cdb[0] == variable {
		return InvalidField(10, 2)
	}
	return InvalidField(1, 2)
}

func movesVerify(d *Disk, cdb []byte) (out, in uint64) {
	lba, n := extent(cdb)
	p, s := d.protection(cdb)
	if s.Key != NoSense || n == 0 || d.outside(cdb, lba, n).Key != NoSense {
		return 0, 0
	}
	switch byteCheck(cdb) {
	case 1:
		return n * p.size(d.blockSize()), 0
	case 3:
		return d.blockSize(), 0
	}
	return 0, 0
}

func (d *Disk) verify(_ *nexus, c *Command) Sense {
	lba, n := extent(c.CDB)
	p, s := d.protection(c.CDB)
	if s.Key != NoSense {
		return s
	}
	if check := byteCheck(c.CDB); check == 2 || check == 3 && p.transfer {
		return byteCheckField(c.CDB)
	}
	if s := d.outside(c.CDB, lba, n); s.Key != NoSense || n == 0 {
		return s
	}
	c.OutLen, _ = movesVerify(d, c.CDB)
	d.count.blocksVerified.Add(n)
	d.locks.share(lba, n)
	defer d.locks.unshare(lba, n)
	if s := d.spoiled(lba, n); s.Key != NoSense {
		return s
	}
	switch check := byteCheck(c.CDB); {
	case p.kind != 0 && check == 1 && p.transfer:
		return d.compareProtected(c.DataOut, p, lba, n)
	case p.kind != 0:
		if s := d.eachProtected(p, lba, n, nil); s.Key != NoSense {
			return s
		}
	}
	switch byteCheck(c.CDB) {
	case 1:
		return d.compare(c.DataOut, lba, n)
	case 3:
		one := c.Gather(d.blockSize())
		if uint64(len(one)) < d.blockSize() {
			return Sense{Key: IllegalRequest, Code: ASCInvalidFieldInCDB}
		}
		list := [][]byte{one}
		for i := range n {
			if s := d.compare(list, lba+i, 1); s.Key != NoSense {
				s.Info += i * d.blockSize()
				return s
			}
		}
		return Sense{}
	}
	if s = d.readable(lba, n); s.Key != NoSense {
		d.count.verifyErrors.Add(1)
	}
	return s
}

// readable reads n blocks at lba for the errors only.
func (d *Disk) readable(lba, n uint64) Sense {
	buf := scratch.Get().(*[scratchSize]byte)
	defer scratch.Put(buf)
	for at, end := lba*d.blockSize(), (lba+n)*d.blockSize(); at < end; {
		part := buf[:min(end-at, scratchSize)]
		if done, err := d.store.ReadAt(part, int64(at)); err != nil {
			return d.readError(err, at+uint64(done))
		}
		at += uint64(len(part))
	}
	return Sense{}
}

// compare compares n blocks at lba with data, as much of it as there is. The
// INFORMATION of a MISCOMPARE is the offset of the first byte that differs
// (SBC-4 5.2).
func (d *Disk) compare(data [][]byte, lba, n uint64) Sense {
	buf := scratch.Get().(*[scratchSize]byte)
	defer scratch.Put(buf)
	var s Sense
	cut(data, 0, n*d.blockSize(), func(want []byte, off uint64) bool {
		for len(want) > 0 && s.Key == NoSense {
			part := buf[:min(len(want), scratchSize)]
			at := lba*d.blockSize() + off
			if done, err := d.store.ReadAt(part, int64(at)); err != nil {
				s = d.readError(err, at+uint64(done))
			} else if !bytes.Equal(part, want[:len(part)]) {
				i := 0
				for part[i] == want[i] {
					i++
				}
				s = Sense{Key: Miscompare, Code: ASCMiscompareDuringVerify, Info: off + uint64(i), HasInfo: true}
			}
			want, off = want[len(part):], off+uint64(len(part))
		}
		return s.Key == NoSense
	})
	return s
}

// compareProtected compares n blocks at lba and their protection information
// with data, after both were checked. What isn't checked isn't compared.
func (d *Disk) compareProtected(data [][]byte, p checks, lba, n uint64) Sense {
	in := cursor{list: data}
	want := make([]byte, d.blockSize()+tupleSize)
	n = min(n, total(data)/p.size(d.blockSize()))
	return d.eachProtected(p, lba, n, func(block []byte, t tuple, i uint64) Sense {
		in.read(want)
		sent := parseTuple(want[d.blockSize():])
		if s := p.check(want[:d.blockSize()], sent, lba+i, i); s.Key != NoSense {
			return s
		}
		at := 0
		for at < len(block) && block[at] == want[at] {
			at++
		}
		if at == len(block) && (!p.guard || t.guard == sent.guard) && (!p.app || t.app == sent.app && t.ref == sent.ref) {
			return Sense{}
		}
		return Sense{Key: Miscompare, Code: ASCMiscompareDuringVerify, Info: i*uint64(len(want)) + uint64(at), HasInfo: true}
	})
}

func (d *Disk) writeVerify(_ *nexus, c *Command) Sense {
	lba, n := extent(c.CDB)
	if byteCheck(c.CDB) >= 2 {
		return byteCheckField(c.CDB)
	}
	p, s := d.protection(c.CDB)
	if s.Key != NoSense {
		return s
	}
	if s := d.outside(c.CDB, lba, n); s.Key != NoSense {
		return s
	}
	if s := d.writeProtected(); s.Key != NoSense || n == 0 {
		return s
	}
	c.OutLen = n * p.size(d.blockSize())
	d.lockWrite(lba, n)
	defer d.unlockWrite(lba, n)
	if s := d.overtaken(c.erasures); s.Key != NoSense {
		return s
	}
	if s := d.put(c.DataOut, p, lba, n); s.Key != NoSense {
		return s
	}
	// What is verified is the medium, so it has to be there (SBC-4 5.53).
	if s := d.flushBlocks(lba, n); s.Key != NoSense {
		return s
	}
	if have := min(n, total(c.DataOut)/p.size(d.blockSize())); byteCheck(c.CDB) == 1 && p.transfer {
		return d.compareProtected(c.DataOut, p, lba, have)
	} else if byteCheck(c.CDB) == 1 {
		return d.compare(c.DataOut, lba, have)
	}
	return d.readable(lba, n)
}

func movesCompare(d *Disk, cdb []byte) (out, in uint64) {
	lba, n := be64(cdb[2:]), uint64(cdb[13])
	if d.beyond(lba, n).Key != NoSense {
		return 0, 0
	}
	// One block more than it takes shows an initiator that sends too much.
	return (2*n + 1) * d.blockSize(), 0
}

func (d *Disk) compareAndWrite(_ *nexus, c *Command) Sense {
	lba, n := be64(c.CDB[2:]), uint64(c.CDB[13])
	if s := d.beyond(lba, n); s.Key != NoSense {
		return s
	}
	if s := d.writeProtected(); s.Key != NoSense {
		return s
	}
	if total(c.DataOut) != 2*n*d.blockSize() {
		// Half an exchange is none.
		return InvalidField(13, 7)
	}
	if n == 0 {
		return Sense{}
	}
	c.OutLen = 2 * n * d.blockSize()
	d.locks.lock(lba, n)
	defer d.locks.unlock(lba, n)
	if s := d.overtaken(c.erasures); s.Key != NoSense {
		return s
	}
	if s := d.spoiled(lba, n); s.Key != NoSense {
		return s
	}
	if s := d.compare(c.DataOut, lba, n); s.Key != NoSense {
		return s
	}
	if s := d.writeBlocks(c.DataOut, n*d.blockSize(), lba, n); s.Key != NoSense {
		return s
	}
	if s := d.seal(lba, n); s.Key != NoSense {
		return s
	}
	return d.settle(flags(c.CDB), lba, n)
}

func (d *Disk) orWrite(_ *nexus, c *Command) Sense {
	lba, n := extent(c.CDB)
	if s := d.outside(c.CDB, lba, n); s.Key != NoSense {
		return s
	}
	if s := d.writeProtected(); s.Key != NoSense || n == 0 {
		return s
	}
	c.OutLen = n * d.blockSize()
	d.locks.lock(lba, n)
	defer d.locks.unlock(lba, n)
	if s := d.overtaken(c.erasures); s.Key != NoSense {
		return s
	}
	if s := d.spoiled(lba, n); s.Key != NoSense {
		return s
	}
	if s := d.or(c.DataOut, lba, n); s.Key != NoSense {
		return s
	}
	if s := d.seal(lba, n); s.Key != NoSense {
		return s
	}
	return d.settle(flags(c.CDB), lba, n)
}

// or writes the bitwise OR of data and what is there, for whole blocks.
func (d *Disk) or(data [][]byte, lba, n uint64) Sense {
	buf := scratch.Get().(*[scratchSize]byte)
	defer scratch.Put(buf)
	var s Sense
	size := min(n, total(data)/d.blockSize()) * d.blockSize()
	cut(data, 0, size, func(with []byte, off uint64) bool {
		for len(with) > 0 {
			part := buf[:min(len(with), scratchSize)]
			at := lba*d.blockSize() + off
			if done, err := d.store.ReadAt(part, int64(at)); err != nil {
				s = d.readError(err, at+uint64(done))
				return false
			}
			for i := range part {
				part[i] |= with[i]
			}
			if done, err := d.store.WriteAt(part, int64(at)); err != nil {
				s = d.writeError(err, at+uint64(done))
				return false
			}
			with, off = with[len(part):], off+uint64(len(part))
		}
		return true
	})
	return s
}
