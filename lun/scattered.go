package lun

// WRITE SCATTERED (SBC-4 4.35): one command, many places. The data-out holds a
// header, a descriptor for each range, and from LOGICAL BLOCK DATA OFFSET on the
// blocks of all ranges.

var scatteredOps = []op{
	{name: "WRITE SCATTERED(16)", usage: "9f 12 18 00 ffff 0000 ffff ffffffff 3f 00", class: writes | medium | protect, moves: movesScattered, run: (*Disk).writeScattered, when: notZoned},
	{name: "WRITE SCATTERED(32)", usage: "7f 00 00000000 3f 18 0011 18 00 ffff 0000 ffff 00000000000000000000 ffffffff", class: writes | medium | protect | type2, moves: movesScattered, run: (*Disk).writeScattered, when: both(notZoned, (*Disk).protectable)},
}

const (
	maxScattered   = 256 // ranges
	scatterHeader  = 32
	scatteredRange = 32
)

// scattered is the CDB of a WRITE SCATTERED.
type scattered struct {
	p      checks
	offset uint64 // of the data, in blocks
	ranges uint64
	blocks uint64 // BUFFER TRANSFER LENGTH: all of the data-out
}

func (d *Disk) parseScattered(cdb []byte) (x scattered, s Sense) {
	if x.p, s = d.protection(cdb); s.Key != NoSense {
		return x, s
	}
	offsetAt, rangesAt, blocksAt := 4, 8, 10
	if cdb[0] == variable {
		offsetAt, rangesAt, blocksAt = 12, 16, 28
	}
	x.offset, x.ranges, x.blocks = uint64(be16(cdb[offsetAt:])), uint64(be16(cdb[rangesAt:])), uint64(be32(cdb[blocksAt:]))
	switch size := x.p.size(d.blockSize()); {
	case x.ranges > maxScattered:
		return x, InvalidField(rangesAt, 7)
	case x.blocks > uint64(d.geometry().maxTransfer):
		return x, InvalidField(blocksAt, 7)
	case x.ranges == 0 || x.blocks == 0:
	case x.offset*size < scatterHeader+x.ranges*scatteredRange:
		return x, InvalidField(offsetAt, 7)
	case x.offset > x.blocks:
		return x, scatteredMismatch()
	}
	return x, Sense{}
}

// scatteredMismatch is the sense data for ranges that aren't as many blocks as there is
// data.
func scatteredMismatch() Sense {
	return Sense{Key: AbortedCommand, Code: ASCParameterListLengthError}
}

func movesScattered(d *Disk, cdb []byte) (out, in uint64) {
	x, s := d.parseScattered(cdb)
	if s.Key != NoSense || x.ranges == 0 {
		return 0, 0
	}
	return x.blocks * x.p.size(d.blockSize()), 0
}

// writeScattered is SBC-4 5.55 and 5.56. All ranges are looked at before the
// first is written.
func (d *Disk) writeScattered(_ *nexus, c *Command) Sense {
	x, s := d.parseScattered(c.CDB)
	if s.Key != NoSense {
		return s
	}
	if s := d.writeProtected(); s.Key != NoSense || x.ranges == 0 || x.blocks == 0 {
		return s
	}
	size := x.p.size(d.blockSize())
	if total(c.DataOut) < x.blocks*size {
		return Sense{Key: IllegalRequest, Code: ASCParameterListLengthError}
	}
	list := c.Gather(scatterHeader + x.ranges*scatteredRange)[scatterHeader:]
	if s := d.checkScattered(&x, list); s.Key != NoSense {
		return s
	}
	c.OutLen = x.blocks * size
	at := x.offset
	for ; len(list) > 0; list = list[scatteredRange:] {
		lba, n := be64(list), uint64(be32(list[8:]))
		if n == 0 {
			continue
		}
		p := x.p
		if c.CDB[0] == variable {
			p.expectedRef, p.appTag, p.appMask = be32(list[12:]), be16(list[16:]), be16(list[18:])
		}
		d.lockWrite(lba, n)
		s := d.overtaken(c.erasures)
		if s.Key == NoSense {
			s = d.put(c.DataOut, at*size, p, lba, n)
		}
		d.unlockWrite(lba, n)
		if s.Key != NoSense {
			return s
		}
		at += n
	}
	d.count.wrote(c, x.blocks, x.blocks-x.offset)
	return d.settleAll(flags(c.CDB))
}

func (d *Disk) checkScattered(x *scattered, list []byte) Sense {
	sum := uint64(0)
	for i := uint64(0); i < x.ranges; i++ {
		lba, n := be64(list[i*scatteredRange:]), uint64(be32(list[i*scatteredRange+8:]))
		if n > uint64(d.geometry().maxTransfer) {
			return InvalidParameter(int(scatterHeader+i*scatteredRange+8), 7)
		}
		if s := d.beyond(lba, n); s.Key != NoSense {
			return s
		}
		sum += n
	}
	if sum != x.blocks-x.offset {
		return scatteredMismatch()
	}
	return Sense{}
}
