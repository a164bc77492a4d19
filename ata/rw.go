package ata

import (
	"errors"
	"syscall"

	"lunlab/lun"
	"lunlab/lun/store"
)

// extent returns the first block and how many a command names, for those that have
// them in the usual places.
func (c *command) extent(t *Taskfile) (lba, n uint64) {
	switch {
	case c.protocol.Queued():
		lba, n = t.LBA, uint64(t.Feature)
	case c.class&ext != 0:
		lba, n = t.LBA, uint64(t.Count)
	default:
		lba, n = t.lba28(), uint64(t.Count&0xff)
		if n == 0 {
			n = 1 << 8
		}
	}
	if n == 0 {
		n = 1 << 16
	}
	return lba, n
}

// beyond returns what is wrong with n blocks at lba if they aren't all there.
func (d *Drive) beyond(lba, n uint64) failure {
	d.mu.Lock()
	end := d.accessible.blocks
	d.mu.Unlock()
	if lba >= end || n > end-lba {
		return notFound(max(lba, end))
	}
	return failure{}
}

func blocksLength(d *Drive, t *Taskfile) uint64 {
	lba, n := d.find(t).extent(t)
	if f := d.beyond(lba, n); f.failed() {
		return 0
	}
	return n * d.size
}

// fua is FUA in the Device field of a queued command.
const fua = 0x80

func (d *Drive) readQueued(t *Task) failure  { return d.readBlocks(t, t.Device&fua != 0) }
func (d *Drive) writeQueued(t *Task) failure { return d.writeBlocks(t, t.Device&fua != 0) }

func (d *Drive) read(t *Task) failure {
	t.drq = d.size
	return d.readBlocks(t, false)
}

func (d *Drive) write(t *Task) failure    { return d.writeBlocks(t, false) }
func (d *Drive) writeFUA(t *Task) failure { return d.writeBlocks(t, true) }

func (d *Drive) readMultiple(t *Task) failure {
	n := d.multiple()
	if n == 0 {
		return badField
	}
	t.drq = n * d.size
	return d.readBlocks(t, false)
}

func (d *Drive) writeMultiple(t *Task) failure {
	if d.multiple() == 0 {
		return badField
	}
	return d.writeBlocks(t, t.Command == writeMultipleFUA)
}

const writeMultipleFUA = 0xce

func (d *Drive) multiple() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return uint64(d.settings.multiple)
}

// readBlocks reads what a command names. durable is for FUA: what comes back has to be
// on the medium.
func (d *Drive) readBlocks(t *Task, durable bool) failure {
	lba, n := t.command.extent(&t.Taskfile)
	if f := d.beyond(lba, n); f.failed() {
		return f
	}
	if durable {
		if f := d.settle(lba, n); f.failed() {
			return f
		}
	}
	if f := d.readable(lba, n); f.failed() {
		return f
	}
	if done, err := lun.ReadStore(d.store, d.volatile, t.DataIn, lba*d.size, n*d.size); err != nil {
		return d.storeFailure(err, lba+done/d.size, false)
	}
	t.Moved = n * d.size
	d.count.reads.Add(1)
	d.count.blocksRead.Add(n)
	return failure{}
}

// readable returns what is wrong with n blocks at lba if one of them can't be read.
func (d *Drive) readable(lba, n uint64) failure {
	first, _, bad := d.bad.First(lba, n)
	if f, _, flagged := d.flagged.First(lba, n); flagged && (!bad || f < first) {
		x := uncorrectable(f, lun.ASCUnrecoveredReadError)
		x.unlogged = true
		return x
	}
	if bad {
		return uncorrectable(first, lun.ASCUnrecoveredReadError)
	}
	return failure{}
}

// heal makes n blocks at lba readable again.
func (d *Drive) heal(lba, n uint64) {
	d.bad.Remove(lba, n)
	d.flagged.Remove(lba, n)
}

func (d *Drive) writeBlocks(t *Task, durable bool) failure {
	lba, n := t.command.extent(&t.Taskfile)
	if f := d.beyond(lba, n); f.failed() {
		return f
	}
	t.Moved = n * d.size
	if total(t.DataOut) < t.Moved {
		return shortData
	}
	if done, err := lun.WriteStore(d.store.WriteAt, d.volatile, t.DataOut, 0, lba*d.size, n*d.size, d.size); err != nil {
		return d.storeFailure(err, lba+done/d.size, true)
	}
	return d.written(lba, n, durable)
}

// written does what is to be done when n blocks at lba were written: they can be read
// again, and are durable if that was asked for or there is no write cache.
func (d *Drive) written(lba, n uint64, durable bool) failure {
	d.heal(lba, n)
	d.count.writes.Add(1)
	d.count.blocksWritten.Add(n)
	if durable || !d.writeCache() {
		return d.settle(lba, n)
	}
	return failure{}
}

func (d *Drive) writeCache() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.settings.writeCache
}

// settle makes n blocks at lba durable.
func (d *Drive) settle(lba, n uint64) failure {
	if err := store.SyncRange(d.store, int64(lba*d.size), int64(n*d.size)); err != nil {
		return d.storeFailure(err, lba, true)
	}
	return failure{}
}

func (d *Drive) flushCache(*Task) failure { return d.flush() }

func (d *Drive) flush() failure {
	if err := d.store.Sync(); err != nil {
		return d.storeFailure(err, 0, true)
	}
	return failure{}
}

// readVerify reads and gives nothing.
func (d *Drive) readVerify(t *Task) failure {
	lba, n := t.command.extent(&t.Taskfile)
	if f := d.beyond(lba, n); f.failed() {
		return f
	}
	return d.verify(lba, n)
}

// verifyPiece is how much verify reads at once, in bytes.
const verifyPiece = 64 << 10

func (d *Drive) verify(lba, n uint64) failure {
	if f := d.readable(lba, n); f.failed() {
		return f
	}
	if d.volatile {
		return failure{} // memory that is there can be read
	}
	buf := make([]byte, min(n*d.size, verifyPiece))
	for done := uint64(0); done < n*d.size; {
		part := buf[:min(n*d.size-done, uint64(len(buf)))]
		if k, err := d.store.ReadAt(part, int64(lba*d.size+done)); err != nil {
			return d.storeFailure(err, lba+(done+uint64(k))/d.size, false)
		}
		done += uint64(len(part))
	}
	return failure{}
}

// maxBad bounds how many blocks can be bad at once.
const maxBad = 1 << 16

// writeUncorrectable is WRITE UNCORRECTABLE EXT (ACS-4 7.62): it makes blocks that can't be
// read, be they pseudo-uncorrectable, with errors that are logged, or flagged.
func (d *Drive) writeUncorrectable(t *Task) failure {
	to := &d.bad
	switch t.Feature & 0xff {
	case 0x55:
	case 0xaa:
		to = &d.flagged
	default:
		return badField
	}
	lba, n := t.command.extent(&t.Taskfile)
	if f := d.beyond(lba, n); f.failed() {
		return f
	}
	lba, n = d.physical(lba, n)
	d.heal(lba, n)
	if !to.Add(lba, n, maxBad) {
		return failure{err: ErrorABRT, key: lun.HardwareError, code: lun.ASCInternalTargetFailure}
	}
	return failure{}
}

// physical widens n blocks at lba to whole physical sectors.
func (d *Drive) physical(lba, n uint64) (first, count uint64) {
	unit := uint64(1) << d.opt.PhysicalExponent
	before := (unit - uint64(d.opt.LowestAligned)) % unit // of the first physical sector
	first = (lba+before)/unit*unit - min(before, (lba+before)/unit*unit)
	end := (lba+n+before+unit-1)/unit*unit - before
	return first, min(end, d.blocks) - first
}

// Spoil makes n blocks at lba unreadable until they are written, as a medium does that
// ages. It returns false if there would be too many of them.
func (d *Drive) Spoil(lba, n uint64) bool {
	if lba >= d.blocks || n == 0 || n > d.blocks-lba {
		return false
	}
	return d.bad.Add(lba, n, maxBad)
}

// storeFailure is how a command fails for which the store does. lba is the block that
// couldn't be accessed.
func (d *Drive) storeFailure(err error, lba uint64, writing bool) failure {
	switch {
	case errors.Is(err, syscall.EIO) && !writing:
		return uncorrectable(lba, lun.ASCUnrecoveredReadError)
	case errors.Is(err, syscall.EIO):
		return failure{fault: true, lba: lba, has: true, key: lun.MediumError, code: lun.ASCWriteError}
	case errors.Is(err, store.ErrNoRoomYet), errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return failure{err: ErrorABRT, lba: lba, has: true, key: lun.DataProtect, code: lun.ASCSpaceAllocationFailed}
	case errors.Is(err, syscall.EROFS):
		return failure{err: ErrorABRT, lba: lba, has: true, key: lun.DataProtect, code: lun.ASCWriteProtected}
	}
	f := broken
	f.lba, f.has = lba, true
	return f
}
