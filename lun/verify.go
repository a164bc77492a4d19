package lun

import (
	"bytes"
	"sync"
)

var verifyOps = []op{
	{name: "VERIFY(10)", usage: "2f 16 ffffffff 3f ffff 00", class: reads | medium | protect, moves: movesVerify, run: (*Disk).verify},
	{name: "VERIFY(12)", usage: "af 16 ffffffff ffffffff 3f 00", class: reads | medium | protect, moves: movesVerify, run: (*Disk).verify},
	{name: "VERIFY(16)", usage: "8f 16 ffffffffffffffff ffffffff 3f 00", class: reads | medium | protect, moves: movesVerify, run: (*Disk).verify},
	{name: "WRITE AND VERIFY(10)", usage: "2e 12 ffffffff 3f ffff 00", class: writes | medium | protect, moves: movesOut, run: (*Disk).writeVerify},
	{name: "WRITE AND VERIFY(12)", usage: "ae 12 ffffffff ffffffff 3f 00", class: writes | medium | protect, moves: movesOut, run: (*Disk).writeVerify},
	{name: "WRITE AND VERIFY(16)", usage: "8e 12 ffffffffffffffff ffffffff 3f 00", class: writes | medium | protect, moves: movesOut, run: (*Disk).writeVerify},
	{name: "VERIFY(32)", usage: "7f 00 00000000 3f 18 000a 16 00 ffffffffffffffff ffffffff ffff ffff ffffffff", class: reads | medium | protect | type2, moves: movesVerify, run: (*Disk).verify, when: (*Disk).protectable},
	{name: "WRITE AND VERIFY(32)", usage: "7f 00 00000000 3f 18 000c 12 00 ffffffffffffffff ffffffff ffff ffff ffffffff", class: writes | medium | protect | type2, moves: movesOut, run: (*Disk).writeVerify, when: (*Disk).protectable},
}

// scratchSize is the piece in which blocks are compared and combined.
const scratchSize = 64 << 10

var scratch = sync.Pool{New: func() any { return new([scratchSize]byte) }}

// byteCheck returns the BYTCHK field.
func byteCheck(cdb []byte) byte { return flags(cdb) >> 1 & 3 }

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
		return p.size(d.blockSize()), 0
	}
	return 0, 0
}

func (d *Disk) verify(_ *nexus, c *Command) Sense {
	lba, n := extent(c.CDB)
	p, s := d.protection(c.CDB)
	if s.Key != NoSense {
		return s
	}
	if byteCheck(c.CDB) == 2 {
		return InvalidField(flagsByte(c.CDB), 2)
	}
	if s := d.outside(c.CDB, lba, n); s.Key != NoSense || n == 0 {
		return s
	}
	c.OutLen, _ = movesVerify(d, c.CDB)
	data := c.DataOut
	if byteCheck(c.CDB) == 3 {
		if total(data) < c.OutLen {
			return InvalidField(flagsByte(c.CDB), 2)
		}
		data = [][]byte{c.Gather(c.OutLen)}
	}
	d.locks.share(lba, n)
	defer d.locks.unshare(lba, n)
	if s := d.overtaken(c.erasures); s.Key != NoSense {
		return s
	}
	if s := d.count.verifying.note(d.spoiled(lba, n)); s.Key != NoSense {
		return s
	}
	return d.verifyBlocks(data, byteCheck(c.CDB), p, lba, n)
}

// verifyBlocks verifies n blocks at lba as BYTCHK says: that they can be read, or
// that they hold data, or the one block that it is.
func (d *Disk) verifyBlocks(data [][]byte, check byte, p checks, lba, n uint64) (s Sense) {
	if p.kind != 0 && (check == 0 || !p.transfer) {
		s = d.eachProtected(p, lba, n, nil)
	}
	switch {
	case s.Key != NoSense:
	case check == 0:
		if p.kind == 0 {
			s = d.readable(lba, n)
		}
	case p.transfer:
		s = d.compareProtected(data, check == 3, p, lba, n)
	case check == 1:
		s = d.compare(data, lba, n)
	default:
		for i := uint64(0); i < n && s.Key == NoSense; i++ {
			if s = d.compare(data, lba+i, 1); s.Key == Miscompare {
				s.Info += i * d.blockSize()
			}
		}
	}
	if s.Key == NoSense {
		d.count.verifying.blocks.Add(n)
	}
	return d.count.verifying.note(s)
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
			} else if i := difference(part, want); i < len(part) {
				s = Sense{Key: Miscompare, Code: ASCMiscompareDuringVerify, Info: off + uint64(i), HasInfo: true}
			}
			want, off = want[len(part):], off+uint64(len(part))
		}
		return s.Key == NoSense
	})
	return s
}

// compareProtected compares n blocks at lba and their protection information
// with data, or all of them with the one block that it is, whose reference tag
// counts up then where it is one that does. Both were checked. What isn't checked
// isn't compared.
func (d *Disk) compareProtected(data [][]byte, one bool, p checks, lba, n uint64) Sense {
	in := cursor{list: data}
	want := make([]byte, d.blockSize()+tupleSize)
	if !one {
		n = min(n, total(data)/p.size(d.blockSize()))
	}
	return d.eachProtected(p, lba, n, func(block []byte, t tuple, i uint64) Sense {
		if !one || i == 0 {
			in.read(want)
		}
		sent := parseTuple(want[d.blockSize():])
		if one && p.kind != 3 {
			sent.ref += uint32(i)
		}
		if s := p.check(want[:d.blockSize()], sent, lba+i, i); s.Key != NoSense {
			return s
		}
		at := difference(block, want)
		if at == len(block) && (!p.guard || t.guard == sent.guard) && (!p.app || t.app == sent.app && t.ref == sent.ref) {
			return Sense{}
		}
		return Sense{Key: Miscompare, Code: ASCMiscompareDuringVerify, Info: i*uint64(len(want)) + uint64(at), HasInfo: true}
	})
}

// difference returns where b, which is no shorter than a, first differs from it,
// len(a) if nowhere.
func difference(a, b []byte) int {
	if bytes.Equal(a, b[:len(a)]) {
		return len(a)
	}
	i := 0
	for a[i] == b[i] {
		i++
	}
	return i
}

func (d *Disk) writeVerify(_ *nexus, c *Command) Sense {
	lba, n := extent(c.CDB)
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
	s = d.overtaken(c.erasures)
	if s.Key == NoSense {
		s = d.put(c.DataOut, 0, p, lba, n)
	}
	d.unlockWrite(lba, n)
	if s.Key != NoSense {
		return s
	}
	d.count.wrote(c, n, n)
	// What is verified is the medium, so it has to be there (SBC-4 5.53).
	if s := d.flushBlocks(lba, n); s.Key != NoSense {
		return s
	}
	d.locks.share(lba, n)
	defer d.locks.unshare(lba, n)
	if s := d.overtaken(c.erasures); s.Key != NoSense {
		return s
	}
	check := byteCheck(c.CDB)
	if check == 1 {
		n = min(n, total(c.DataOut)/p.size(d.blockSize()))
	} else {
		p.kind = 0 // only that it can be read
	}
	return d.verifyBlocks(c.DataOut, check, p, lba, n)
}
