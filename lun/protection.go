package lun

import (
	"encoding/binary"
	"sync"
)

// Protection information (SBC-4 4.21): 8 bytes beside each block, a guard (CRC),
// an application tag and a reference tag.
//
// They lie behind the blocks in the store, inverted, so that where nothing was
// written they read as all ones, which is what says that there is nothing to
// check.
const tupleSize = 8

// unchecked is the application tag that escapes all checks.
const unchecked = 0xffff

// tuple is the protection information of a block.
type tuple struct {
	guard, app uint16
	ref        uint32
}

func parseTuple(b []byte) tuple { return tuple{be16(b), be16(b[2:]), be32(b[4:])} }

func (t tuple) put(b []byte) {
	put16(b, t.guard)
	put16(b[2:], t.app)
	put32(b[4:], t.ref)
}

// crcTable is for CRC-16/T10-DIF, whose polynomial is 8BB7h (SBC-4 4.21.4).
var crcTable = func() (t [256]uint16) {
	for i := range t {
		c := uint16(i) << 8
		for range 8 {
			if c&0x8000 != 0 {
				c = c<<1 ^ 0x8bb7
			} else {
				c <<= 1
			}
		}
		t[i] = c
	}
	return t
}()

func guard(b []byte) (c uint16) {
	for _, x := range b {
		c = c<<8 ^ crcTable[byte(c>>8)^x]
	}
	return c
}

// checks is what RDPROTECT, WRPROTECT or VRPROTECT ask for (SBC-4 tables 61, 62,
// 120).
type checks struct {
	kind     byte // protection type of the medium, 0 if there is nothing to do
	transfer bool // the protection information goes along with the blocks
	guard    bool
	app, ref bool

	// Of the 32-byte commands.
	expectedRef     uint32
	appTag, appMask uint16
}

// protection returns what a CDB's protection field asks for, or how it is wrong.
func (d *Disk) protection(cdb []byte) (p checks, s Sense) {
	// ORWRITE(32) has other things where the others of 32 bytes have their tags.
	or := cdb[0] == variable && be16(cdb[8:]) == orWrite32
	long := cdb[0] == variable && !or
	field := flags(cdb) >> 5
	p.kind = d.protectionType()
	switch {
	case long && p.kind != 2, !long && !or && p.kind == 2 && field != 0:
		return p, Sense{Key: IllegalRequest, Code: ASCInvalidCommandOperationCode}
	case field > 5, field != 0 && p.kind == 0:
		return p, InvalidField(flagsByte(cdb), 7)
	case p.kind == 0:
		return p, Sense{}
	}
	p.transfer = field != 0
	p.guard = field != 2 && field != 3
	p.app = field != 3 && field != 4
	p.ref = p.app && p.kind != 3
	if long {
		p.expectedRef, p.appTag, p.appMask = be32(cdb[20:]), be16(cdb[24:]), be16(cdb[26:])
	} else if p.kind == 2 {
		p.ref = false // what it is to be isn't known
	}
	return p, Sense{}
}

// protectionType is the type that the medium is formatted with, 0 for none.
func (d *Disk) protectionType() byte { return byte(d.protectedAs.Load()) }

// size is the length of a block on the wire.
func (p checks) size(blockSize uint64) uint64 {
	if p.transfer {
		return blockSize + tupleSize
	}
	return blockSize
}

// reference is the reference tag that the block at lba, the i-th of a command,
// has to have.
func (p checks) reference(lba, i uint64) uint32 {
	if p.kind == 2 {
		return p.expectedRef + uint32(i)
	}
	return uint32(lba)
}

// check compares a block with its protection information.
func (p checks) check(block []byte, t tuple, lba, i uint64) Sense {
	if t.app == unchecked && (p.kind != 3 || t.ref == 1<<32-1) {
		return Sense{}
	}
	code := uint16(0)
	switch {
	case p.guard && guard(block) != t.guard:
		code = ASCGuardCheckFailed
	case p.app && (t.app^p.appTag)&p.appMask != 0:
		code = ASCApplicationTagCheckFailed
	case p.ref && t.ref != p.reference(lba, i):
		code = ASCReferenceTagCheckFailed
	default:
		return Sense{}
	}
	return Sense{Key: AbortedCommand, Code: code, Info: lba, HasInfo: true}
}

// tupleOffset is where in the store the tuple of a block lies.
func (d *Disk) tupleOffset(lba uint64) int64 {
	g := d.geometry()
	return int64(g.most*g.blockSize + lba*tupleSize)
}

// protectedBatch is how many blocks are looked at together: as many as fit.
type protectedBatch struct {
	data   [scratchSize]byte
	tuples [scratchSize / 512 * tupleSize]byte
}

var batches = sync.Pool{New: func() any { return new(protectedBatch) }}

func (d *Disk) readTuples(p []byte, lba uint64) Sense {
	if _, err := d.store.ReadAt(p, d.tupleOffset(lba)); err != nil {
		return d.readError(err, lba*d.blockSize())
	}
	invert(p)
	return Sense{}
}

// writeTuples inverts p on its way.
func (d *Disk) writeTuples(p []byte, lba uint64) Sense {
	invert(p)
	if _, err := d.store.WriteAt(p, d.tupleOffset(lba)); err != nil {
		return d.writeError(err, lba*d.blockSize())
	}
	return Sense{}
}

func invert(b []byte) {
	for i := 0; i+8 <= len(b); i += 8 {
		binary.NativeEndian.PutUint64(b[i:], ^binary.NativeEndian.Uint64(b[i:]))
	}
}

// eachProtected reads n blocks at lba with their tuples, checks them, and calls
// do, which may be nil, for each.
func (d *Disk) eachProtected(p checks, lba, n uint64, do func(block []byte, t tuple, i uint64) Sense) Sense {
	b := batches.Get().(*protectedBatch)
	defer batches.Put(b)
	for done := uint64(0); done < n; {
		count := min(n-done, scratchSize/d.blockSize())
		data, tuples := b.data[:count*d.blockSize()], b.tuples[:count*tupleSize]
		if k, err := d.store.ReadAt(data, int64((lba+done)*d.blockSize())); err != nil {
			return d.readError(err, (lba+done)*d.blockSize()+uint64(k))
		}
		if s := d.readTuples(tuples, lba+done); s.Key != NoSense {
			return s
		}
		for range count {
			block, t := data[:d.blockSize()], parseTuple(tuples)
			if s := p.check(block, t, lba+done, done); s.Key != NoSense {
				return s
			}
			if do != nil {
				if s := do(block, t, done); s.Key != NoSense {
					return s
				}
			}
			data, tuples, done = data[d.blockSize():], tuples[tupleSize:], done+1
		}
	}
	return Sense{}
}

// readProtected is readBlocks for a medium with protection information.
func (d *Disk) readProtected(c *Command, p checks, lba, n uint64) Sense {
	out := cursor{list: c.DataIn}
	s := d.eachProtected(p, lba, n, func(block []byte, t tuple, _ uint64) Sense {
		out.write(block)
		if p.transfer {
			var b [tupleSize]byte
			t.put(b[:])
			out.write(b[:])
		}
		return Sense{}
	})
	if s.Key == NoSense {
		c.InLen = n * p.size(d.blockSize())
	}
	return s
}

// checkTuples checks n blocks for lba that lie with their protection information
// after the first skip bytes of data.
func (d *Disk) checkTuples(data [][]byte, skip uint64, p checks, lba, n uint64) Sense {
	b := batches.Get().(*protectedBatch)
	defer batches.Put(b)
	in, block := cursor{list: data}, b.data[:d.blockSize()]
	in.skip(skip)
	for i := range n {
		in.read(block)
		in.read(b.tuples[:tupleSize])
		if s := p.check(block, parseTuple(b.tuples[:]), lba+i, i); s.Key != NoSense {
			return s
		}
	}
	return Sense{}
}

// writeWithTuples writes n blocks at lba that come with their protection
// information after the first skip bytes of data, as many as there are whole
// ones. What fails a check isn't written, nor is what follows it.
func (d *Disk) writeWithTuples(data [][]byte, skip uint64, p checks, lba, n uint64) Sense {
	b := batches.Get().(*protectedBatch)
	defer batches.Put(b)
	in := cursor{list: data}
	in.skip(skip)
	n = min(n, (total(data)-skip)/p.size(d.blockSize()))
	for done := uint64(0); done < n; {
		var bad Sense
		count := uint64(0)
		for most := min(n-done, scratchSize/d.blockSize()); count < most; count++ {
			block, t := b.data[count*d.blockSize():][:d.blockSize()], b.tuples[count*tupleSize:][:tupleSize]
			in.read(block)
			in.read(t)
			i := done + count
			if bad = p.check(block, parseTuple(t), lba+i, i); bad.Key != NoSense {
				break
			}
		}
		at := lba + done
		if k, err := d.store.WriteAt(b.data[:count*d.blockSize()], int64(at*d.blockSize())); err != nil {
			return d.writeError(err, at*d.blockSize()+uint64(k))
		}
		if s := d.writeTuples(b.tuples[:count*tupleSize], at); s.Key != NoSense {
			return s
		}
		if bad.Key != NoSense {
			return bad
		}
		d.written(at, count)
		done += count
	}
	return Sense{}
}

// written makes n blocks at lba, which have new content, good and no longer
// anchored.
func (d *Disk) written(lba, n uint64) {
	d.bad.Remove(lba, n)
	d.anchored.Remove(lba, n)
}

// seal gives n blocks at lba, which were written without, the protection
// information that the standard wants then (SBC-4 table 143), if the medium has
// any. What was written is no longer bad.
func (d *Disk) seal(lba, n uint64) Sense {
	d.written(lba, n)
	kind := d.protectionType()
	if kind == 0 {
		return Sense{}
	}
	b := batches.Get().(*protectedBatch)
	defer batches.Put(b)
	for n > 0 {
		count := min(n, scratchSize/d.blockSize())
		data := b.data[:count*d.blockSize()]
		if k, err := d.store.ReadAt(data, int64(lba*d.blockSize())); err != nil {
			return d.count.reading.note(d.readError(err, lba*d.blockSize()+uint64(k)))
		}
		for i := range count {
			t := tuple{guard(data[i*d.blockSize():][:d.blockSize()]), 0, uint32(lba + i)}
			if kind != 1 {
				t.app, t.ref = unchecked, 1<<32-1
			}
			t.put(b.tuples[i*tupleSize:])
		}
		if s := d.writeTuples(b.tuples[:count*tupleSize], lba); s.Key != NoSense {
			return s
		}
		lba, n = lba+count, n-count
	}
	return Sense{}
}

// sealAs gives n blocks at lba the protection information of a WRITE SAME: that
// of its block, with a reference tag that counts where it is one that does.
func (d *Disk) sealAs(t tuple, kind byte, lba, n uint64) Sense {
	d.written(lba, n)
	b := batches.Get().(*protectedBatch)
	defer batches.Put(b)
	for n > 0 {
		count := min(n, uint64(len(b.tuples))/tupleSize)
		for i := range count {
			t.put(b.tuples[i*tupleSize:])
			if kind != 3 {
				t.ref++
			}
		}
		if s := d.writeTuples(b.tuples[:count*tupleSize], lba); s.Key != NoSense {
			return s
		}
		lba, n = lba+count, n-count
	}
	return Sense{}
}

// unseal makes the protection information of n blocks at lba all ones, as that
// of unmapped blocks is.
func (d *Disk) unseal(lba, n uint64) error {
	d.written(lba, n)
	if !d.protectable() {
		return nil
	}
	off, size := d.tupleOffset(lba), int64(n*tupleSize)
	if d.sparse != nil {
		return d.sparse.Unmap(off, size)
	}
	return d.zero(off, size)
}

// lockWrite keeps others from n blocks at lba as a write needs it: blocks and
// protection information have to change as one, and without the latter no write
// has to wait.
func (d *Disk) lockWrite(lba, n uint64) {
	if d.protectable() {
		d.locks.lock(lba, n)
	} else {
		d.locks.share(lba, n)
	}
	d.changing(lba, n)
}

func (d *Disk) unlockWrite(lba, n uint64) {
	if d.protectable() {
		d.locks.unlock(lba, n)
	} else {
		d.locks.unshare(lba, n)
	}
}
