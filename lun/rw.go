package lun

import (
	"errors"
	"syscall"

	"lunlab/lun/store"
)

// FUA and FUA_NV (obsolete, but kept by initiators) in a CDB's flags.
const fuaBits = 0x0a

var blockOps = []op{
	{name: "READ(6)", usage: "08 1fffff ff 00", class: reads | medium, moves: movesIn, run: (*Disk).read},
	{name: "READ(10)", usage: "28 1a ffffffff 3f ffff 00", class: reads | medium | protect, moves: movesIn, run: (*Disk).read},
	{name: "READ(12)", usage: "a8 1a ffffffff ffffffff 3f 00", class: reads | medium | protect, moves: movesIn, run: (*Disk).read},
	{name: "READ(16)", usage: "88 1a ffffffffffffffff ffffffff 3f 00", class: reads | medium | protect, moves: movesIn, run: (*Disk).read},
	{name: "WRITE(6)", usage: "0a 1fffff ff 00", class: writes | medium, moves: movesOut, run: (*Disk).write},
	{name: "WRITE(10)", usage: "2a 1a ffffffff 3f ffff 00", class: writes | medium | protect, moves: movesOut, run: (*Disk).write},
	{name: "WRITE(12)", usage: "aa 1a ffffffff ffffffff 3f 00", class: writes | medium | protect, moves: movesOut, run: (*Disk).write},
	{name: "WRITE(16)", usage: "8a 1a ffffffffffffffff ffffffff 3f 00", class: writes | medium | protect, moves: movesOut, run: (*Disk).write},
	{name: "READ(32)", usage: "7f 00 00000000 3f 18 0009 18 00 ffffffffffffffff ffffffff ffff ffff ffffffff", class: reads | medium | protect | type2, moves: movesIn, run: (*Disk).read, when: (*Disk).protectable},
	{name: "WRITE(32)", usage: "7f 00 00000000 3f 18 000b 18 00 ffffffffffffffff ffffffff ffff ffff ffffffff", class: writes | medium | protect | type2, moves: movesOut, run: (*Disk).write, when: (*Disk).protectable},
	{name: "PRE-FETCH(10)", usage: "34 02 ffffffff 3f ffff 00", class: reads | medium, run: (*Disk).prefetch},
	{name: "PRE-FETCH(16)", usage: "90 02 ffffffffffffffff ffffffff 3f 00", class: reads | medium, run: (*Disk).prefetch},
	{name: "SYNCHRONIZE CACHE(10)", usage: "35 06 ffffffff 3f ffff 00", class: writes | medium, run: (*Disk).synchronize, seconds: flushing},
	{name: "SYNCHRONIZE CACHE(16)", usage: "91 06 ffffffffffffffff ffffffff 3f 00", class: writes | medium, run: (*Disk).synchronize, seconds: flushing},
}

// extent returns the LOGICAL BLOCK ADDRESS and the TRANSFER LENGTH, in the
// places that most CDBs of a length have them.
func extent(cdb []byte) (lba, n uint64) {
	switch cdb[0] >> 5 {
	case 0:
		if n = uint64(cdb[4]); n == 0 {
			n = 256 // SBC-4 5.11: an old way to say 256
		}
		return uint64(be24(cdb[1:]) & 0x1fffff), n
	case 1, 2:
		return uint64(be32(cdb[2:])), uint64(be16(cdb[7:]))
	case 5:
		return uint64(be32(cdb[2:])), uint64(be32(cdb[6:]))
	case 3:
		return be64(cdb[12:]), uint64(be32(cdb[28:]))
	}
	return be64(cdb[2:]), uint64(be32(cdb[10:]))
}

// lengthField is where extent finds the TRANSFER LENGTH.
func lengthField(cdb []byte) int {
	switch cdb[0] >> 5 {
	case 0:
		return 4
	case 1, 2:
		return 7
	case 5:
		return 6
	case 3:
		return 28
	}
	return 10
}

// flags returns the byte with FUA, DPO and BYTCHK. A 6-byte CDB has none.
func flags(cdb []byte) byte {
	switch cdb[0] >> 5 {
	case 0:
		return 0
	}
	return cdb[flagsByte(cdb)]
}

// flagsByte is where they are, with RDPROTECT and its like.
func flagsByte(cdb []byte) int {
	switch cdb[0] {
	case variable:
		return 10
	case 0x9f:
		return 2
	}
	return 1
}

func movesIn(d *Disk, cdb []byte) (out, in uint64) {
	lba, n := extent(cdb)
	p, s := d.protection(cdb)
	if s.Key != NoSense || d.outside(cdb, lba, n).Key != NoSense {
		return 0, 0
	}
	return 0, n * p.size(d.blockSize())
}

func movesOut(d *Disk, cdb []byte) (out, in uint64) {
	_, out = movesIn(d, cdb)
	return out, 0
}

// outside returns what is wrong with n blocks at lba as the extent of a command
// that transfers them.
func (d *Disk) outside(cdb []byte, lba, n uint64) Sense {
	if s := d.beyond(lba, n); s.Key != NoSense {
		return s
	}
	if n > uint64(d.geometry().maxTransfer) {
		return InvalidField(lengthField(cdb), 7)
	}
	return Sense{}
}

// beyond returns LBA OUT OF RANGE if the blocks aren't all there.
func (d *Disk) beyond(lba, n uint64) Sense {
	if lba >= d.Blocks() || n > d.Blocks()-lba {
		return Sense{Key: IllegalRequest, Code: ASCLBAOutOfRange}
	}
	return Sense{}
}

// writeProtected returns the sense data for a write that isn't allowed.
func (d *Disk) writeProtected() Sense {
	switch {
	case d.guarded, d.settings.Load().ReadOnly:
		return Sense{Key: DataProtect, Code: ASCWriteProtected}
	case d.softProtect.Load():
		return Sense{Key: DataProtect, Code: ASCSoftwareWriteProtected}
	}
	return Sense{}
}

func (d *Disk) read(_ *nexus, c *Command) Sense {
	lba, n := extent(c.CDB)
	p, s := d.protection(c.CDB)
	if s.Key != NoSense {
		return s
	}
	if s := d.outside(c.CDB, lba, n); s.Key != NoSense || n == 0 {
		return s
	}
	if flags(c.CDB)&fuaBits != 0 {
		// What comes back has to be on the medium (SBC-4 4.16).
		if s := d.flushBlocks(lba, n); s.Key != NoSense {
			return s
		}
	}
	d.locks.share(lba, n)
	defer d.locks.unshare(lba, n)
	if s := d.overtaken(c.erasures); s.Key != NoSense {
		return s
	}
	switch s = d.spoiled(lba, n); {
	case s.Key != NoSense:
	case p.kind != 0:
		s = d.readProtected(c, p, lba, n)
	default:
		s = d.readBlocks(c, lba, n)
	}
	if s.Key == NoSense {
		d.count.read(c, n)
	}
	return d.count.reading.note(s)
}

// readBlocks answers with n blocks at lba as far as there is room.
func (d *Disk) readBlocks(c *Command, lba, n uint64) Sense {
	at, size := lba*d.blockSize(), n*d.blockSize()
	if done, err := ReadStore(d.store, d.volatile, c.DataIn, at, size); err != nil {
		return d.readError(err, at+done)
	}
	c.InLen = size
	return Sense{}
}

func (d *Disk) write(_ *nexus, c *Command) Sense {
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
	durable := d.writeDurable != nil && d.wantsDurable(flags(c.CDB)) && !d.protectable() && notZoned(d)
	d.lockWrite(lba, n)
	if s = d.overtaken(c.erasures); s.Key == NoSense {
		if durable {
			s = d.writeBlocksBy(d.writeDurable, c.DataOut, 0, lba, n)
		} else {
			s = d.put(c.DataOut, 0, p, lba, n)
		}
	}
	d.unlockWrite(lba, n)
	if s.Key != NoSense {
		return s
	}
	c.OutLen = n * p.size(d.blockSize())
	d.count.wrote(c, n, n)
	if durable {
		return Sense{}
	}
	return d.settle(flags(c.CDB), lba, n)
}

// put writes n blocks at lba from the data after its first skip bytes, with the
// protection information that comes along or else of its own making.
func (d *Disk) put(data [][]byte, skip uint64, p checks, lba, n uint64) Sense {
	if d.zones != nil {
		// Half of what moves the write pointer is nothing.
		if total(data) < n*d.blockSize() {
			return Sense{Key: IllegalRequest, Code: ASCInvalidFieldInCDB}
		}
		return d.writeZone(lba, n, func() Sense { return d.writeBlocks(data, skip, lba, n) })
	}
	if p.transfer {
		return d.writeWithTuples(data, skip, p, lba, n)
	}
	if s := d.writeBlocks(data, skip, lba, n); s.Key != NoSense {
		return s
	}
	return d.seal(lba, min(n, (total(data)-skip)/d.blockSize()))
}

// exchange runs do while no other command gets at n blocks at lba, and makes
// them durable afterwards if the flags or the lack of a write cache want it so.
func (d *Disk) exchange(c *Command, lba, n uint64, do func() Sense) Sense {
	d.locks.lock(lba, n)
	d.changing(lba, n)
	s := d.overtaken(c.erasures)
	if s.Key == NoSense {
		s = do()
	}
	d.locks.unlock(lba, n)
	if s.Key != NoSense {
		return s
	}
	return d.settle(flags(c.CDB), lba, n)
}

// writeBlocks writes n blocks at lba from the data after its first skip bytes.
// Of data that is short the whole blocks are written: the initiator learns
// about the rest from the residual count.
//
// The store gets whole blocks however the data is scattered, so that a process
// that is killed leaves none half written.
func (d *Disk) writeBlocks(data [][]byte, skip, lba, n uint64) Sense {
	return d.writeBlocksBy(d.writeAt, data, skip, lba, n)
}

// writeBlocksBy is writeBlocks by one of the ways that the store has.
func (d *Disk) writeBlocksBy(write WriteFunc, data [][]byte, skip, lba, n uint64) Sense {
	at := lba * d.blockSize()
	if done, err := WriteStore(write, d.volatile, data, skip, at, n, d.blockSize()); err != nil {
		return d.writeError(err, at+done)
	}
	return Sense{}
}

// settle makes the n blocks at lba that were written durable if the flags or the
// lack of a write cache want it so.
func (d *Disk) settle(flags byte, lba, n uint64) Sense {
	if d.wantsDurable(flags) {
		return d.flushBlocks(lba, n)
	}
	return Sense{}
}

// settleAll is settle for blocks in many places.
func (d *Disk) settleAll(flags byte) Sense {
	if d.wantsDurable(flags) {
		return d.flush()
	}
	return Sense{}
}

// wantsDurable tells whether a write with these flags has to be durable before its
// status comes.
func (d *Disk) wantsDurable(flags byte) bool { return flags&fuaBits != 0 || !d.writeBack.Load() }

// flushBlocks makes n blocks at lba durable.
func (d *Disk) flushBlocks(lba, n uint64) Sense {
	r, ok := d.store.(store.RangeSyncer)
	if !ok {
		return d.flush()
	}
	err := r.SyncRange(int64(lba*d.blockSize()), int64(n*d.blockSize()))
	if err == nil && zoned(d) && d.zones.kept {
		first, last := lba/d.zones.size, (lba+max(n, 1)-1)/d.zones.size
		err = r.SyncRange(d.zoneEntry(first), int64((last-first+1)*zoneEntrySize))
	}
	if err == nil && d.protectable() {
		err = r.SyncRange(d.tupleOffset(lba), int64(n*tupleSize))
	}
	if err != nil {
		return writeSense(err)
	}
	return Sense{}
}

func (d *Disk) flush() Sense {
	if err := d.store.Sync(); err != nil {
		return writeSense(err)
	}
	return Sense{}
}

// readError is the sense data for a store that failed at a byte. The caller counts
// it, for what it read the blocks for.
func (d *Disk) readError(err error, at uint64) Sense {
	s := Sense{Key: HardwareError, Code: ASCInternalTargetFailure}
	if errors.Is(err, syscall.EIO) {
		s = Sense{Key: MediumError, Code: ASCUnrecoveredReadError}
	}
	s.Info, s.HasInfo = at/d.blockSize(), true
	return s
}

func (d *Disk) writeError(err error, at uint64) Sense {
	s := writeSense(err)
	s.Info, s.HasInfo = at/d.blockSize(), true
	return d.count.writing.note(s)
}

func writeSense(err error) Sense {
	switch {
	case errors.Is(err, store.ErrNoRoomYet): // SBC-4 4.7.3.6
		return Sense{Key: NotReady, Code: ASCNotReadySpaceAllocation}
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return Sense{Key: DataProtect, Code: ASCSpaceAllocationFailed}
	case errors.Is(err, syscall.EROFS):
		return Sense{Key: DataProtect, Code: ASCWriteProtected}
	case errors.Is(err, syscall.EIO):
		return Sense{Key: MediumError, Code: ASCWriteError}
	}
	return Sense{Key: HardwareError, Code: ASCInternalTargetFailure}
}

// prefetch has nothing to fetch ahead into, which SBC-4 5.14 answers with GOOD.
func (d *Disk) prefetch(_ *nexus, c *Command) Sense {
	lba, n := extent(c.CDB)
	return d.beyond(lba, n)
}

func (d *Disk) synchronize(_ *nexus, c *Command) Sense {
	lba, n := extent(c.CDB)
	if s := d.beyond(lba, n); s.Key != NoSense {
		return s
	}
	// With IMMED it is durable before the status too: that is allowed, and an
	// error has somewhere to go.
	return d.flush()
}
