package lun

import "fmt"

// geometry is how the medium is divided into blocks. It is replaced, never
// changed: by Grow, by MODE SELECT, which can make the capacity another, and by
// FORMAT UNIT, which holds the locks of all blocks then, between the states that
// keep commands from the medium. A command that has to see the same block length
// twice locks its blocks and looks whether it was overtaken.
type geometry struct {
	blockSize, blocks uint64
	most              uint64 // as many blocks as there is room for; protection information lies behind them
	limit             uint64 // the most that there are to be, 0 for no limit
	exponent          uint8  // 2^exponent logical blocks make a physical one
	aligned           uint16 // the first logical block that begins a physical one
	maxTransfer       uint32 // the most blocks that a command may transfer
}

func (d *Disk) geometry() *geometry { return d.shape.Load() }

func (d *Disk) blockSize() uint64 { return d.geometry().blockSize }

// Blocks returns the capacity in logical blocks. FORMAT UNIT and MODE SELECT may
// change it, and [Disk.Grow].
func (d *Disk) Blocks() uint64 { return d.geometry().blocks }

// newGeometry divides a store of size bytes into as many blocks of blockSize
// bytes as there is room for, but for no more than limit if that isn't 0. The physical blocks and the longest transfer are
// as long as the options say, whatever the logical ones are.
func (d *Disk) newGeometry(size int64, blockSize, limit uint64) (*geometry, error) {
	room, o := uint64(max(size, 0)), &d.opt
	g := &geometry{blockSize: blockSize, most: room / blockSize, limit: limit}
	from := uint64(o.BlockSize)
	for g.exponent = 0; g.blockSize<<g.exponent < from<<o.PhysicalExponent; g.exponent++ {
	}
	if off := uint64(o.LowestAligned) * from; off%blockSize == 0 {
		g.aligned = uint16(off / blockSize % (1 << 14))
	}
	g.maxTransfer = uint32(max(uint64(o.MaxTransfer)*from/blockSize, 1))
	if d.protectable() {
		// Whole physical blocks of them: the sum is odd anyway.
		g.most = room / (blockSize + tupleSize) &^ (1<<g.exponent - 1)
	}
	if g.blocks = g.most; limit > 0 {
		g.blocks = min(limit, g.most)
	}
	if g.blocks == 0 {
		return nil, fmt.Errorf("a store of %d bytes has no room for a block of %d", size, blockSize)
	}
	return g, nil
}
