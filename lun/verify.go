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
	{name: "VERIFY(32)", usage: "7f 00 00000000 3f 18 000a 16 00 ffffffffffffffff ffffffff ffff ffff ffffffff", class: reads | medium | protect | type2, moves: movesVerify, run: (*Disk).verify, when: (*Disk).protectable},
	{name: "WRITE AND VERIFY(32)", usage: "7f 00 00000000 3f 18 000c 16 00 ffffffffffffffff ffffffff ffff ffff ffffffff", class: writes | medium | protect | type2, moves: movesOut, run: (*Disk).writeVerify, when: (*Disk).protectable},
}

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
	if s := d.overtaken(c.erasures); s.Key != NoSense {
		return s
	}
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
	s = d.overtaken(c.erasures)
	if s.Key == NoSense {
		s = d.put(c.DataOut, 0, p, lba, n)
	}
	d.unlockWrite(lba, n)
	if s.Key != NoSense {
		return s
	}
	// What is verified is the medium, so it has to be there (SBC-4 5.53).
	if s := d.flushBlocks(lba, n); s.Key != NoSense {
		return s
	}
	d.locks.share(lba, n)
	defer d.locks.unshare(lba, n)
	if s := d.overtaken(c.erasures); s.Key != NoSense {
		return s
	}
	if have := min(n, total(c.DataOut)/p.size(d.blockSize())); byteCheck(c.CDB) == 1 && p.transfer {
		return d.compareProtected(c.DataOut, p, lba, have)
	} else if byteCheck(c.CDB) == 1 {
		return d.compare(c.DataOut, lba, have)
	}
	return d.readable(lba, n)
}
