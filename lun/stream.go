package lun

// Permanent streams (SBC-5 4.34): an initiator says by the GROUP NUMBER of a
// WRITE which data will live for about as long as which other. Linux 6.12 and
// later do so for files with a write hint. The group statistics log pages tell
// what came.

var streamOps = []op{
	{name: "GET STREAM STATUS", usage: "9e 16 0000 ffff 00000000 ffffffff 00 00", class: reads | medium, moves: allocates(10, 4), run: (*Disk).streamStatus, when: streams},
}

func streams(d *Disk) bool { return d.opt.Streams > 0 }

const (
	// maxStreams is how many streams there can be: one for each group number.
	maxStreams = 64

	hintsSubpage    = 0x05
	hintsDescriptor = 16
	hintsHeader     = 12 // reserved bytes before the first descriptor
)

// hintsPage is the I/O advice hints grouping mode page (SBC-5 6.5.7): the groups
// that are streams have ST_ENBLE set.
func hintsPage(n uint8) *modePage {
	v := make([]byte, hintsHeader+maxStreams*hintsDescriptor)
	for i := range int(n) {
		v[hintsHeader+i*hintsDescriptor] = 0x04 // ST_ENBLE
	}
	return &modePage{
		code: controlPage, sub: hintsSubpage, initial: v,
		current: append([]byte(nil), v...), saved: append([]byte(nil), v...), changeable: make([]byte, len(v)),
	}
}

// streamStatus is SBC-5 5.14. All streams are permanent, and so always open.
func (d *Disk) streamStatus(_ *nexus, c *Command) Sense {
	first, n := be16(c.CDB[4:]), uint16(d.opt.Streams)
	if first >= n {
		return InvalidField(4, 7)
	}
	b := make([]byte, 8, 8+8*maxStreams)
	for id := first; id < n; id++ {
		b = append(b, 0x80, 0, byte(id>>8), byte(id), 0, 0, 0, 0) // PERM; a lifetime like any other
	}
	put32(b, uint32(len(b)-8))
	put16(b[6:], n)
	c.Reply(b, uint64(be32(c.CDB[10:])))
	return Sense{}
}

// limitsExtension is the block limits extension VPD page (SBC-5 6.6.5).
func (d *Disk) limitsExtension() []byte {
	b := make([]byte, 60)
	if streams(d) {
		b[1] = 1 // RSCS: reduced stream control
		put16(b[2:], uint16(d.opt.Streams))
	}
	if notZoned(d) {
		most := d.geometry().maxTransfer
		put32(b[12:], most) // of a range of WRITE SCATTERED
		put16(b[18:], maxScattered)
		put32(b[20:], most)
	}
	return b
}
