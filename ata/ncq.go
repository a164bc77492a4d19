package ata

import (
	"encoding/binary"

	"lunlab/lun"
)

// ncqError is what the NCQ Command Error log tells of (ACS-4 9.14).
type ncqError struct {
	notQueued bool // it was a command that isn't queued
	tag       int
	task      Taskfile
	failure   failure
}

// readsErrorLog tells whether a command reads the NCQ Command Error log, which has the
// drive take commands again.
func readsErrorLog(t *Taskfile) bool {
	return (t.Command == readLogExt || t.Command == readLogDMAExt) && byte(t.LBA) == logNCQError
}

// page is the log's only one. The sense data is there as autosense has it.
func (e *ncqError) page() (b [wordBlock]byte) {
	f := &e.failure
	b[0] = byte(e.tag)
	if e.notQueued {
		b[0] = 0x80 // NQ
	}
	if f.failed() {
		b[2] = StatusDRDY | statusSeek
		if f.err != 0 {
			b[2] |= StatusERR
		}
		if f.fault {
			b[2] |= StatusDF
		}
		if f.key != lun.NoSense {
			b[2] |= StatusSense
		}
	}
	lba := e.task.LBA
	if f.has {
		lba = f.lba
	}
	var fis [FISLength]byte
	putLBA48(fis[:], lba)
	b[3], b[7] = f.err, e.task.Device
	copy(b[4:7], fis[4:7])
	copy(b[8:11], fis[8:11])
	binary.LittleEndian.PutUint16(b[12:], e.task.Count)
	b[14], b[15], b[16] = byte(f.key), byte(f.code>>8), byte(f.code)
	b[511] = checksum(b[:511])
	return b
}

// subcommand is that of NCQ NON-DATA, SEND and RECEIVE FPDMA QUEUED.
func (t *Taskfile) subcommand() byte { return byte(t.Count>>8) & 0x1f }

// Subcommands of SEND FPDMA QUEUED (64h).
const (
	sendTrim     = 0x0
	sendWriteLog = 0x2
)

// receiveReadLog is that of RECEIVE FPDMA QUEUED (65h).
const receiveReadLog = 0x1

func sendLength(d *Drive, t *Taskfile) uint64 {
	switch t.subcommand() {
	case sendTrim:
		return trimBlocks(uint64(t.Feature), t.Aux)
	case sendWriteLog:
		return d.logLength(t, uint64(t.Feature))
	}
	return 0
}

func (d *Drive) sendQueued(t *Task) failure {
	switch t.subcommand() {
	case sendTrim:
		return d.trimRanges(t, trimBlocks(uint64(t.Feature), t.Aux))
	case sendWriteLog:
		return d.writeLogPages(t, uint64(t.Feature))
	}
	return badField
}

func receiveLength(d *Drive, t *Taskfile) uint64 {
	if t.subcommand() != receiveReadLog {
		return 0
	}
	return d.logLength(t, uint64(t.Feature))
}

func (d *Drive) receiveQueued(t *Task) failure {
	if t.subcommand() != receiveReadLog {
		return badField
	}
	return d.readLogPages(t, uint64(t.Feature))
}

// sendReceiveLog is the NCQ Send and Receive log (13h).
func (d *Drive) sendReceiveLog() (b [wordBlock]byte) {
	if queuesTrim(d) {
		b[0] = 1<<sendTrim | 1<<sendWriteLog
		b[4] = 1  // TRIM
		b[12] = 1 // WRITE LOG DMA EXT
	}
	b[8] = 1 // READ LOG DMA EXT
	return b
}
