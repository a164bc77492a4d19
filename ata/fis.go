package ata

import (
	"encoding/binary"
	"fmt"
)

// Types of the frame information structures that commands take (SATA 3.5 10.5).
const (
	fisRegisterH2D   = 0x27
	fisRegisterD2H   = 0x34
	fisPIOSetup      = 0x5f
	fisSetDeviceBits = 0xa1
)

// FISLength is the length of the Register FISes, host to device and device to host,
// and of the PIO Setup FIS, in bytes.
const FISLength = 20

// Taskfile is what a Register - Host to Device FIS carries: a command, or with
// nothing but Control a change of SRST.
type Taskfile struct {
	Command byte
	Feature uint16
	Count   uint16
	LBA     uint64 // 48 bits
	Device  byte
	ICC     byte
	Control byte
	Aux     uint32
}

// SRST is the bit of Control that resets the device while it is set.
const SRST = 0x04

// deviceLBA is the bit of Device that says that LBA is an LBA.
const deviceLBA = 0x40

// Parse reads a Register - Host to Device FIS. command tells whether it carries a
// command (its C bit), else it is about Control.
func (t *Taskfile) Parse(fis []byte) (command bool, err error) {
	if len(fis) < FISLength {
		return false, fmt.Errorf("ata: a Register FIS of %d bytes is shorter than %d", len(fis), FISLength)
	}
	if fis[0] != fisRegisterH2D {
		return false, fmt.Errorf("ata: FIS type %#02x is not that of a Register FIS from a host (%#02x)", fis[0], fisRegisterH2D)
	}
	*t = Taskfile{
		Command: fis[2],
		Feature: uint16(fis[3]) | uint16(fis[11])<<8,
		Count:   uint16(fis[12]) | uint16(fis[13])<<8,
		LBA:     lba48(fis),
		Device:  fis[7],
		ICC:     fis[14],
		Control: fis[15],
		Aux:     binary.LittleEndian.Uint32(fis[16:]),
	}
	return fis[1]&0x80 != 0, nil
}

// lba48 reads the LBA fields of a Register FIS.
func lba48(fis []byte) uint64 {
	return uint64(fis[4]) | uint64(fis[5])<<8 | uint64(fis[6])<<16 |
		uint64(fis[8])<<24 | uint64(fis[9])<<32 | uint64(fis[10])<<40
}

func putLBA48(fis []byte, lba uint64) {
	fis[4], fis[5], fis[6] = byte(lba), byte(lba>>8), byte(lba>>16)
	fis[8], fis[9], fis[10] = byte(lba>>24), byte(lba>>32), byte(lba>>40)
}

// AppendFIS appends the FIS that carries t as a command.
func (t *Taskfile) AppendFIS(b []byte) []byte {
	f := [FISLength]byte{
		0: fisRegisterH2D, 1: 0x80, 2: t.Command, 3: byte(t.Feature), 7: t.Device, 11: byte(t.Feature >> 8),
		12: byte(t.Count), 13: byte(t.Count >> 8), 14: t.ICC, 15: t.Control,
	}
	putLBA48(f[:], t.LBA)
	binary.LittleEndian.PutUint32(f[16:], t.Aux)
	return append(b, f[:]...)
}

// Tag is the NCQ tag of a queued command, 0 to 31.
func (t *Taskfile) Tag() int { return int(t.Count >> 3 & 31) }

// lba28 is the address of a command that has but 28 bits for it.
func (t *Taskfile) lba28() uint64 { return t.LBA&0xffffff | uint64(t.Device&0x0f)<<24 }

// Registers are what a device answers with.
type Registers struct {
	Status byte
	Error  byte
	Count  uint16
	LBA    uint64 // 48 bits
	Device byte
}

// Bits of Status (ACS-4 6.2).
const (
	StatusERR   = 0x01 // Error says what was wrong
	StatusSense = 0x02 // there is sense data
	StatusDRQ   = 0x08
	StatusDF    = 0x20 // device fault
	StatusDRDY  = 0x40
	StatusBSY   = 0x80

	// statusSeek is bit 4, which was seek complete and is now always set by
	// devices that aren't in the middle of a command.
	statusSeek = 0x10
)

// Bits of Error (ACS-4 6.3).
const (
	ErrorABRT = 0x04 // command aborted
	ErrorIDNF = 0x10 // ID not found
	ErrorUNC  = 0x40 // uncorrectable
	ErrorICRC = 0x80 // interface CRC
)

// Ending says by which FIS a command ended.
type Ending uint8

const (
	// NoAnswer is for a command that was taken down by the error of another one or by
	// a reset. There is no FIS for it.
	NoAnswer Ending = iota

	// RegisterFIS is a Register - Device to Host FIS.
	RegisterFIS

	// PIOSetupFIS is for data that comes by PIO: the status after the last data is in
	// the last PIO Setup FIS.
	PIOSetupFIS

	// DeviceBitsFIS is a Set Device Bits FIS, for a queued command.
	DeviceBitsFIS
)

// AppendFIS appends the FIS that the task ended with, nothing for [NoAnswer]. It
// asks for an interrupt.
//
// The Set Device Bits FIS of an error has no bit set in ACT: which command it was, the
// NCQ Command Error log tells.
func (t *Task) AppendFIS(b []byte) []byte {
	r := &t.Answer
	switch t.Ending {
	case RegisterFIS:
		f := r.fis(fisRegisterD2H)
		f[1] = 0x40
		return append(b, f[:]...)
	case PIOSetupFIS:
		f := r.fis(fisPIOSetup)
		f[1] = 0x60 // I, D
		// What it was before the data, and what it is after.
		f[2], f[15] = r.Status|StatusDRQ, r.Status
		binary.LittleEndian.PutUint16(f[16:], uint16(lastBlock(t.Moved, t.drq)))
		return append(b, f[:]...)
	case DeviceBitsFIS:
		f := [8]byte{fisSetDeviceBits, 0x40, r.Status & 0x77, r.Error}
		if r.Status&StatusERR == 0 {
			binary.LittleEndian.PutUint32(f[4:], 1<<t.Tag())
		}
		return append(b, f[:]...)
	}
	return b
}

// lastBlock is how many of n bytes come with the last PIO Setup FIS, of DRQ data blocks of
// size bytes.
func lastBlock(n, size uint64) uint64 {
	if n == 0 {
		return 0
	}
	return (n-1)%size + 1
}

// fis puts the registers in the places that all Register FISes have.
func (r *Registers) fis(kind byte) (f [FISLength]byte) {
	f[0], f[2], f[3], f[7] = kind, r.Status, r.Error, r.Device
	putLBA48(f[:], r.LBA)
	f[12], f[13] = byte(r.Count), byte(r.Count>>8)
	return f
}
