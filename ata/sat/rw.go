package sat

import (
	"bytes"
	"encoding/binary"
	"slices"

	"lunlab/ata"
	"lunlab/lun"
)

const (
	// maxTransfer is the most that a command moves, in bytes.
	maxTransfer = 8 << 20

	// maxSame is the most blocks that WRITE SAME writes, maxUnmap that UNMAP frees, and
	// maxUnmapDescriptors how many ranges that takes.
	maxSame             = 1<<16 - 1
	maxUnmap            = 1 << 20
	maxUnmapDescriptors = 256

	// maxTrim is the most blocks that one range of TRIM has.
	maxTrim = 1<<16 - 1

	// maxCount is the most blocks that an ATA command moves.
	maxCount = 1 << 16
)

// extent returns the LOGICAL BLOCK ADDRESS and the TRANSFER LENGTH, and where in the CDB
// the latter is.
func extent(cdb []byte) (lba, n uint64, at int) {
	switch cdb[0] >> 5 {
	case 0:
		if n = uint64(cdb[4]); n == 0 {
			n = 256
		}
		return number(cdb[1:4]) & 0x1fffff, n, 4
	case 1, 2:
		return uint64(be32(cdb[2:])), uint64(be16(cdb[7:])), 7
	case 5:
		return uint64(be32(cdb[2:])), uint64(be32(cdb[6:])), 6
	}
	return be64(cdb[2:]), uint64(be32(cdb[10:])), 10
}

func fua(cdb []byte) bool { return cdb[0]>>5 != 0 && cdb[1]&0x08 != 0 }

// beyond returns LBA OUT OF RANGE if the blocks aren't all there.
func (id *identity) beyond(lba, n uint64) lun.Sense {
	if lba >= id.blocks || n > id.blocks-lba {
		return lun.Sense{Key: lun.IllegalRequest, Code: lun.ASCLBAOutOfRange}
	}
	return lun.Sense{}
}

// mostBlocks is the most blocks that a command transfers.
func (id *identity) mostBlocks() uint64 { return min(maxTransfer/id.size, maxCount) }

// outside returns what is wrong with the extent of a command that transfers it.
func (id *identity) outside(cdb []byte) lun.Sense {
	lba, n, at := extent(cdb)
	if s := id.beyond(lba, n); s.Key != lun.NoSense {
		return s
	}
	if n > id.mostBlocks() {
		return lun.InvalidField(at, 7)
	}
	return lun.Sense{}
}

func movesIn(u *Unit, cdb []byte) (out, in uint64) {
	id := u.id.Load()
	if id.outside(cdb).Key != lun.NoSense {
		return 0, 0
	}
	_, n, _ := extent(cdb)
	return 0, n * id.size
}

func movesOut(u *Unit, cdb []byte) (out, in uint64) {
	_, out = movesIn(u, cdb)
	return out, 0
}

// transfer is the command that moves n blocks at lba: queued where the drive can.
func (id *identity) transfer(queued, plain byte, lba, n uint64, fua bool) ata.Taskfile {
	t := ata.Taskfile{Command: plain, Count: uint16(n), LBA: lba, Device: deviceLBA}
	if id.depth > 0 {
		t.Command, t.Feature, t.Count = queued, uint16(n), 0
		if fua {
			t.Device |= deviceFUA
		}
	}
	return t
}

func (u *Unit) read(_ *nexus, c *lun.Command) lun.Sense {
	id := u.id.Load()
	if s := id.outside(c.CDB); s.Key != lun.NoSense {
		return s
	}
	lba, n, _ := extent(c.CDB)
	if n == 0 {
		return lun.Sense{}
	}
	if fua(c.CDB) && id.depth == 0 {
		// What comes back has to be on the medium.
		if s := u.simple(c, ata.Taskfile{Command: flushCacheExt}); s.Key != lun.NoSense {
			return s
		}
	}
	w := u.take(c, id.transfer(readFPDMAQueued, readDMAExt, lba, n, fua(c.CDB)))
	w.prioritize(c, id)
	w.DataIn = c.DataIn
	s := u.run(c, w)
	if s.Key == lun.NoSense {
		c.InLen = n * id.size
	}
	return s
}

// prioritize puts the command's priority into a queued task: there is but a high one.
func (w *work) prioritize(c *lun.Command, id *identity) {
	if id.depth > 0 && id.word(76)&0x1000 != 0 && (c.Attr == lun.HeadOfQueue || c.Priority > 0 && c.Priority < 8) {
		w.Count |= 0x8000
	}
}

func (u *Unit) write(_ *nexus, c *lun.Command) lun.Sense {
	id := u.id.Load()
	if s := id.outside(c.CDB); s.Key != lun.NoSense {
		return s
	}
	lba, n, _ := extent(c.CDB)
	c.OutLen = n * id.size
	return u.writeBlocks(c, id, lba, n, fua(c.CDB))
}

// writeBlocks writes n blocks at lba. Of data that is short the whole blocks are written:
// the initiator learns about the rest from the residual count.
func (u *Unit) writeBlocks(c *lun.Command, id *identity, lba, n uint64, fua bool) lun.Sense {
	have := uint64(0)
	for _, b := range c.DataOut {
		have += uint64(len(b))
	}
	if n = min(n, have/id.size); n == 0 {
		return lun.Sense{}
	}
	plain := byte(writeDMAExt)
	if fua {
		plain = writeDMAFUAExt
	}
	w := u.take(c, id.transfer(writeFPDMAQueued, plain, lba, n, fua))
	w.prioritize(c, id)
	w.DataOut = c.DataOut
	return u.run(c, w)
}

// bytchk returns BYTCHK, which has to be 00b or 01b.
func bytchk(cdb []byte) (compare bool, s lun.Sense) {
	switch cdb[1] >> 1 & 3 {
	case 0:
		return false, s
	case 1:
		return true, s
	}
	return false, lun.InvalidField(1, 2)
}

func movesVerify(u *Unit, cdb []byte) (out, in uint64) {
	if compare, s := bytchk(cdb); !compare || s.Key != lun.NoSense {
		return 0, 0
	}
	return movesOut(u, cdb)
}

func (u *Unit) verify(_ *nexus, c *lun.Command) lun.Sense {
	id := u.id.Load()
	lba, n, at := extent(c.CDB)
	compare, s := bytchk(c.CDB)
	if s.Key == lun.NoSense {
		s = id.beyond(lba, n)
	}
	if s.Key != lun.NoSense || n == 0 {
		return s
	}
	if !compare {
		return u.verifyBlocks(c, lba, n)
	}
	if n > id.mostBlocks() {
		return lun.InvalidField(at, 7)
	}
	return u.compare(c, id, lba, n)
}

func (u *Unit) verifyBlocks(c *lun.Command, lba, n uint64) lun.Sense {
	for n > 0 {
		part := min(n, maxCount)
		t := ata.Taskfile{Command: readVerifyExt, Count: uint16(part), LBA: lba, Device: deviceLBA}
		if s := u.simple(c, t); s.Key != lun.NoSense {
			return s
		}
		lba, n = lba+part, n-part
	}
	return lun.Sense{}
}

// compare reads n blocks at lba and compares them with the data-out.
func (u *Unit) compare(c *lun.Command, id *identity, lba, n uint64) lun.Sense {
	want := c.Gather(n * id.size)
	if uint64(len(want)) < n*id.size {
		return lun.Sense{Key: lun.IllegalRequest, Code: lun.ASCInvalidFieldInCDB}
	}
	got := make([]byte, n*id.size)
	t := id.transfer(readFPDMAQueued, readDMAExt, lba, n, false)
	if s := u.fetch(c, t, got); s.Key != lun.NoSense {
		return s
	}
	c.OutLen = n * id.size
	if bytes.Equal(got, want) {
		return lun.Sense{}
	}
	at := 0
	for got[at] == want[at] {
		at++
	}
	return lun.Sense{Key: lun.Miscompare, Code: lun.ASCMiscompareDuringVerify, Info: uint64(at), HasInfo: true}
}

// writeVerify writes, and then verifies what is on the medium.
func (u *Unit) writeVerify(_ *nexus, c *lun.Command) lun.Sense {
	id := u.id.Load()
	lba, n, _ := extent(c.CDB)
	compare, s := bytchk(c.CDB)
	if s.Key == lun.NoSense {
		s = id.outside(c.CDB)
	}
	if s.Key != lun.NoSense || n == 0 {
		return s
	}
	if s := u.writeBlocks(c, id, lba, n, true); s.Key != lun.NoSense {
		return s
	}
	if compare {
		s = u.compare(c, id, lba, n)
	} else {
		s = u.verifyBlocks(c, lba, n)
	}
	if s.Key == lun.NoSense {
		c.OutLen = n * id.size
	}
	return s
}

func (u *Unit) synchronize(_ *nexus, c *lun.Command) lun.Sense {
	lba, n, _ := extent(c.CDB)
	if s := u.id.Load().beyond(lba, n); s.Key != lun.NoSense {
		return s
	}
	return u.simple(c, ata.Taskfile{Command: flushCacheExt})
}

// blockRange is n blocks at lba.
type blockRange struct{ lba, n uint64 }

func (u *Unit) unmap(_ *nexus, c *lun.Command) lun.Sense {
	size := uint64(be16(c.CDB[7:]))
	if size == 0 {
		return lun.Sense{}
	}
	list := c.Gather(size)
	if len(list) < 8 || uint64(len(list)) < size {
		return lun.Sense{Key: lun.IllegalRequest, Code: lun.ASCParameterListLengthError}
	}
	// Descriptors that are cut off are left out.
	count := min(int(be16(list[2:])), len(list)-8) / 16
	if count > maxUnmapDescriptors {
		return lun.InvalidParameter(2, 7)
	}
	id, sum := u.id.Load(), uint64(0)
	var ranges []blockRange
	for i := range count {
		d := list[8+16*i:]
		lba, n := be64(d), uint64(be32(d[8:]))
		if s := id.beyond(lba, n); s.Key != lun.NoSense && (n > 0 || lba > id.blocks) {
			return s
		}
		if sum += n; sum > maxUnmap {
			return lun.InvalidParameter(8+16*i+8, 7)
		}
		ranges = append(ranges, blockRange{lba, n})
	}
	s := u.trim(c, id, ranges)
	if s.Key == lun.NoSense {
		c.OutLen = size
	}
	return s
}

// trim has the drive unmap ranges, by as few commands as there have to be.
func (u *Unit) trim(c *lun.Command, id *identity, ranges []blockRange) lun.Sense {
	var entries []byte
	for _, r := range ranges {
		for r.n > 0 {
			n := min(r.n, maxTrim)
			entries = binary.LittleEndian.AppendUint64(entries, r.lba|n<<48)
			r.lba, r.n = r.lba+n, r.n-n
		}
	}
	for part := range slices.Chunk(entries, id.trimBlocks*512) {
		blocks := uint16((len(part) + 511) / 512)
		b := make([]byte, int(blocks)*512)
		copy(b, part)
		t := ata.Taskfile{Command: dataSetManagement, Feature: 1, Count: blocks, Device: deviceLBA}
		if id.sendTrim {
			t = ata.Taskfile{Command: sendFPDMAQueued, Feature: blocks, Aux: 1, Device: deviceLBA}
		}
		if s := u.send(c, t, b); s.Key != lun.NoSense {
			return s
		}
	}
	return lun.Sense{}
}

// noDataOut is NDOB of WRITE SAME(16): all zeros instead of a block.
func noDataOut(cdb []byte) bool { return cdb[0] == 0x93 && cdb[1]&1 != 0 }

// sameExtent is extent for WRITE SAME, whose length of 0 is to the end of the medium.
func (id *identity) sameExtent(cdb []byte) (lba, n uint64, s lun.Sense) {
	lba, n, at := extent(cdb)
	if s := id.beyond(lba, n); s.Key != lun.NoSense {
		return 0, 0, s
	}
	if n == 0 {
		n = id.blocks - lba
	}
	if n > maxSame {
		return 0, 0, lun.InvalidField(at, 7)
	}
	return lba, n, lun.Sense{}
}

func movesSame(u *Unit, cdb []byte) (out, in uint64) {
	id := u.id.Load()
	if _, _, s := id.sameExtent(cdb); s.Key != lun.NoSense || noDataOut(cdb) {
		return 0, 0
	}
	// One block more than it takes shows an initiator that sends too much.
	return 2 * id.size, 0
}

// samePiece is how much WRITE SAME writes by one command, in bytes.
const samePiece = 1 << 20

func (u *Unit) writeSame(_ *nexus, c *lun.Command) lun.Sense {
	id := u.id.Load()
	lba, n, s := id.sameExtent(c.CDB)
	if s.Key != lun.NoSense {
		return s
	}
	block := make([]byte, id.size)
	if !noDataOut(c.CDB) {
		have := uint64(0)
		for _, b := range c.DataOut {
			have += uint64(len(b))
		}
		if have != id.size {
			return lun.Sense{Key: lun.IllegalRequest, Code: lun.ASCInvalidFieldInCDB}
		}
		block = c.Gather(id.size)
		c.OutLen = id.size
	}
	unmap := c.CDB[0] == 0x93 && c.CDB[1]&0x08 != 0
	if unmap && !slices.ContainsFunc(block, func(b byte) bool { return b != 0 }) {
		return u.trim(c, id, []blockRange{{lba, n}})
	}
	b := bytes.Repeat(block, int(min(n, samePiece/id.size)))
	for n > 0 {
		part := min(n, samePiece/id.size)
		t := id.transfer(writeFPDMAQueued, writeDMAExt, lba, part, false)
		if s := u.send(c, t, b[:part*id.size]); s.Key != lun.NoSense {
			return s
		}
		lba, n = lba+part, n-part
	}
	return lun.Sense{}
}
