package sat

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"

	"lunlab/ata"
	"lunlab/lun"
)

// identity is what IDENTIFY DEVICE data says, as far as it stays the same.
type identity struct {
	data [512]byte

	serial, model, firmware string
	wwn                     uint64 // 0: none

	blocks, size   uint64 // size in bytes
	exponent       uint8  // 2^exponent logical blocks make a physical one
	aligned        uint16 // the first logical block that begins a physical one
	depth          int    // of the queue, 0 without NCQ
	sendTrim       bool   // TRIM can be queued
	trim, zeroed   bool   // TRIM, and that blocks read as zeros after it
	trimBlocks     int    // of 512 bytes that it takes
	rotation       uint16
	formFactor     byte
	smart          bool
	senseReporting bool
	sanitize       bool
	trusted        bool
	solidState     bool // it tells how much of its life is used
}

func (id *identity) word(n int) uint16 { return binary.LittleEndian.Uint16(id.data[2*n:]) }

func (id *identity) text(at, n int) string {
	var b strings.Builder
	for i := range n / 2 {
		w := id.word(at + i)
		b.WriteByte(byte(w >> 8))
		b.WriteByte(byte(w))
	}
	return b.String()
}

// identify asks the drive what it is.
func (u *Unit) identify() error {
	id := new(identity)
	if s := u.fetch(nil, ata.Taskfile{Command: identifyDevice}, id.data[:]); s.Key != lun.NoSense {
		return errors.New("sat: the drive doesn't answer IDENTIFY DEVICE")
	}
	id.serial, id.firmware, id.model = id.text(10, 20), id.text(23, 8), id.text(27, 40)
	if id.word(87)&0xc100 == 0x4100 {
		for i := range 4 {
			id.wwn = id.wwn<<16 | uint64(id.word(108+i))
		}
	}
	for i := range 4 {
		id.blocks |= uint64(id.word(100+i)) << (16 * i)
	}
	id.size = 512
	if w := id.word(106); w&0xc000 == 0x4000 {
		if w&0x1000 != 0 {
			id.size = 2 * (uint64(id.word(117)) | uint64(id.word(118))<<16)
		}
		if w&0x2000 != 0 {
			id.exponent = uint8(w & 0x0f)
			if o := id.word(209); o&0xc000 == 0x4000 {
				id.aligned = (1<<id.exponent - o&0x3fff) & (1<<id.exponent - 1)
			}
		}
	}
	if id.blocks == 0 || id.size < 512 {
		return errors.New("sat: the drive has no 48-bit addresses or no sectors")
	}
	if id.word(76)&0x100 != 0 {
		id.depth = int(id.word(75)&0x1f) + 1
	}
	id.trim = id.word(169)&1 == 1
	id.zeroed = id.trim && id.word(69)&0x4020 == 0x4020
	id.trimBlocks = max(int(id.word(105)), 1)
	id.rotation, id.formFactor = id.word(217), byte(id.word(168)&0x0f)
	id.smart = id.word(82)&1 == 1
	id.senseReporting = id.word(119)&0xc040 == 0x4040
	id.sanitize = id.word(59)&0x1000 != 0
	id.trusted = id.word(48)&0xc001 == 0x4001
	if id.trim && id.depth > 0 && id.word(77)&0x40 != 0 {
		var b [512]byte
		if s := u.fetch(nil, ata.Taskfile{Command: readLogExt, Count: 1, LBA: 0x13}, b[:]); s.Key == lun.NoSense {
			id.sendTrim = b[0]&1 == 1 && b[4]&1 == 1
		}
	}
	id.solidState = u.hasSolidState()
	u.id.Store(id)
	return nil
}

// hasSolidState tells whether the drive has Solid State Device Statistics, as the list of
// its statistics pages says.
func (u *Unit) hasSolidState() bool {
	var b [512]byte
	if s := u.fetch(nil, ata.Taskfile{Command: readLogExt, Count: 1, LBA: logStatistics}, b[:]); s.Key != lun.NoSense {
		return false
	}
	return bytes.IndexByte(b[9:][:min(int(b[8]), 255)], solidStateStats) >= 0
}
