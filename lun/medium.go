package lun

// What MODE SELECT's block descriptor and FORMAT UNIT say of the medium: block
// length, capacity and protection. It is saved, with the options that it was
// chosen under, as other options ask for another medium.

// savedMedium is a medium that isn't as the options have it.
type savedMedium struct {
	BlockSize  uint64 `json:"blockSize"`
	Limit      uint64 `json:"limit,omitempty"` // the most blocks, 0 for all that there is room for
	Protection uint32 `json:"protection,omitempty"`

	// Of the options.
	FromBlockSize   int   `json:"fromBlockSize"`
	FromProtection  uint8 `json:"fromProtection,omitempty"`
	FromProtectable bool  `json:"fromProtectable,omitempty"`
}

// medium returns what is to be saved, nil if all is as the options say. Disk.mu is
// held.
func (d *Disk) medium() *savedMedium {
	g, o := d.geometry(), &d.opt
	m := &savedMedium{g.blockSize, g.limit, d.protectedAs.Load(), o.BlockSize, o.Protection, o.Protectable}
	if m.BlockSize == uint64(o.BlockSize) && m.Limit == 0 && m.Protection == uint32(o.Protection) {
		return nil
	}
	return m
}

// recallMedium takes up what was saved, if the options are still the same and the
// store has room for it. The disk isn't in use yet.
func (d *Disk) recallMedium(m *savedMedium) {
	o := &d.opt
	if m == nil || zoned(d) || m.FromBlockSize != o.BlockSize || m.FromProtection != o.Protection || m.FromProtectable != o.Protectable {
		return
	}
	if !blockSizes[m.BlockSize] || m.Protection > 3 || m.Protection > 0 && !d.protectable() {
		return
	}
	if g, err := d.newGeometry(d.store.Size(), m.BlockSize, m.Limit); err == nil {
		d.shape.Store(g)
		d.protectedAs.Store(m.Protection)
	}
}

// blockSizes are the block lengths that a medium can be formatted with, in bytes.
var blockSizes = map[uint64]bool{512: true, 4096: true}

// descriptor is the block descriptor of MODE SELECT (SBC-4 6.5.2): what it asks
// for, and where its fields lie in the parameter list.
type descriptor struct {
	blocks, length     uint64
	most               uint64 // in blocks, for "as many as there is room for"
	blocksAt, lengthAt int
}

// parseDescriptor reads the block descriptor, if there is one of size bytes at at.
func parseDescriptor(list []byte, at, size int, long bool) (x *descriptor, s Sense) {
	if size == 0 {
		return nil, Sense{}
	}
	want := 8
	if long {
		want = 16
	}
	if size != want {
		return nil, InvalidParameter(at-1, 7)
	}
	if len(list) < at+size {
		return nil, Sense{Key: IllegalRequest, Code: ASCParameterListLengthError}
	}
	x = &descriptor{blocksAt: at, lengthAt: at + size - 3}
	if long {
		x.blocks, x.length, x.most = be64(list[at:]), uint64(be32(list[at+12:])), 1<<64-1
	} else {
		x.blocks, x.length, x.most = uint64(be32(list[at:])), uint64(be24(list[at+5:])), 1<<32-1
	}
	return x, Sense{}
}

// asks returns the geometry that a descriptor asks for, which is the current one
// if it asks for nothing else. Disk.mu is held.
func (d *Disk) asks(x *descriptor) (*geometry, Sense) {
	now := d.geometry()
	if x == nil {
		return now, Sense{}
	}
	if x.length != now.blockSize && (!blockSizes[x.length] || zoned(d)) {
		return nil, InvalidParameter(x.lengthAt, 7)
	}
	limit := x.blocks
	switch {
	case x.blocks == 0 && x.length == now.blockSize:
		return now, Sense{}
	case x.blocks == x.most:
		limit = 0
	case zoned(d) && x.blocks != now.blocks:
		return nil, InvalidParameter(x.blocksAt, 7)
	}
	if zoned(d) {
		return now, Sense{}
	}
	g, err := d.newGeometry(d.store.Size(), x.length, limit)
	if err != nil {
		return nil, InvalidParameter(x.lengthAt, 7)
	}
	if limit > g.most {
		return nil, InvalidParameter(x.blocksAt, 7)
	}
	if limit == g.most {
		g.limit = 0
	}
	return g, Sense{}
}

// choose makes a geometry that MODE SELECT asked for hold: at once if the blocks
// stay as long as they are, else with the next FORMAT UNIT. It returns whether
// that is a change. Disk.mu is held.
func (d *Disk) choose(g *geometry) bool {
	was := d.described()
	switch now := d.geometry(); {
	case g.blockSize != now.blockSize:
		d.pending = g
	case g != now:
		d.shape.Store(g)
		d.pending = nil
	default:
		d.pending = nil
	}
	return was.blockSize != g.blockSize || was.blocks != g.blocks
}

// described is the geometry that MODE SENSE tells of: that of the last MODE
// SELECT, whether it holds yet or not. Disk.mu is held.
func (d *Disk) described() *geometry {
	if d.pending != nil {
		return d.pending
	}
	return d.geometry()
}
