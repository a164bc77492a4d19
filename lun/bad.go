package lun

// Blocks that can't be read: an initiator can make some, with WRITE LONG, to see
// what it does about them.

var badOps = []op{
	{name: "WRITE LONG(10)", usage: "3f e0 ffffffff 00 0000 00", class: writes | medium, run: (*Disk).writeLong, when: notZoned},
	{name: "WRITE LONG(16)", usage: "9f f1 ffffffffffffffff 0000 0000 00 00", class: writes | medium, run: (*Disk).writeLong, when: notZoned},
	{name: "REASSIGN BLOCKS", usage: "07 03 00 00 00 00", class: writes | medium, moves: reassignLength, run: (*Disk).reassign, when: notZoned},
}

// maxBad bounds how many blocks can be bad at once, and maxReassign how many
// REASSIGN BLOCKS takes.
const (
	maxBad      = 1 << 16
	maxReassign = 1024
)

// spoiled returns the sense data for a read of n blocks at lba if one is bad.
func (d *Disk) spoiled(lba, n uint64) Sense {
	first, _, ok := d.bad.First(lba, n)
	if !ok {
		return Sense{}
	}
	return Sense{Key: MediumError, Code: ASCMarkedBad, Info: first, HasInfo: true}
}

// writeLong makes a block, or with PBLOCK all of a physical one, a pseudo
// unrecovered error (SBC-4 5.46). That is all that is left of the command: a
// block of this disk has no check bytes that could be written.
func (d *Disk) writeLong(_ *nexus, c *Command) Sense {
	lba := uint64(be32(c.CDB[2:]))
	if c.CDB[0] == 0x9f {
		lba = be64(c.CDB[2:])
	}
	if s := d.beyond(lba, 1); s.Key != NoSense {
		return s
	}
	if c.CDB[1]&0x40 == 0 { // WR_UNCOR
		return InvalidField(1, 6)
	}
	if s := d.writeProtected(); s.Key != NoSense {
		return s
	}
	n := uint64(1)
	if c.CDB[1]&0x20 != 0 { // PBLOCK
		unit := uint64(1) << d.geometry().exponent
		lba &^= unit - 1
		n = min(unit, d.Blocks()-lba)
	}
	d.lockWrite(lba, n)
	defer d.unlockWrite(lba, n)
	if s := d.overtaken(c.erasures); s.Key != NoSense {
		return s
	}
	if !d.bad.Add(lba, n, maxBad) {
		return Sense{Key: HardwareError, Code: ASCInternalTargetFailure}
	}
	return Sense{}
}

func reassignLength(*Disk, []byte) (out, in uint64) { return 4 + 8*maxReassign, 0 }

// reassign makes blocks good (SBC-4 5.24). They hold what they held before.
func (d *Disk) reassign(_ *nexus, c *Command) Sense {
	short := Sense{Key: IllegalRequest, Code: ASCParameterListLengthError}
	list := c.Gather(4 + 8*maxReassign)
	if len(list) < 4 {
		return short
	}
	size, width := int(be16(list[2:])), 4
	if c.CDB[1]&1 == 1 { // LONGLIST
		size = int(be32(list))
	}
	if c.CDB[1]&2 == 2 { // LONGLBA
		width = 8
	}
	if size%width != 0 || size > len(list)-4 {
		return short
	}
	if s := d.writeProtected(); s.Key != NoSense {
		return s
	}
	list = list[4 : 4+size]
	c.OutLen = uint64(4 + size)
	for at := 0; at < len(list); at += width {
		if s := d.beyond(number(list, at, width), 1); s.Key != NoSense {
			return s
		}
	}
	for at := 0; at < len(list); at += width {
		d.bad.Remove(number(list, at, width), 1)
	}
	return Sense{}
}
