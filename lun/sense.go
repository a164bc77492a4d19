package lun

import "encoding/binary"

// MaxSense is the most sense data that a command may return, in bytes
// (SPC-5 4.4.1).
const MaxSense = 252

// SenseKey is the first thing that sense data says (SPC-5 4.4.6).
type SenseKey uint8

const (
	NoSense        SenseKey = 0x0
	RecoveredError SenseKey = 0x1
	NotReady       SenseKey = 0x2
	MediumError    SenseKey = 0x3
	HardwareError  SenseKey = 0x4
	IllegalRequest SenseKey = 0x5
	UnitAttention  SenseKey = 0x6
	DataProtect    SenseKey = 0x7
	BlankCheck     SenseKey = 0x8
	CopyAborted    SenseKey = 0xa
	AbortedCommand SenseKey = 0xb
	Miscompare     SenseKey = 0xe
	Completed      SenseKey = 0xf
)

// Sense is sense data before it is put into one of its formats.
type Sense struct {
	Key SenseKey

	// Code is the additional sense code and its qualifier, ASC<<8 | ASCQ.
	Code uint16

	// Deferred marks sense for an earlier command.
	Deferred bool

	// Info is the INFORMATION field (an LBA, a residual), if HasInfo.
	Info    uint64
	HasInfo bool

	// Specific holds the three sense-key specific bytes (SPC-5 4.4.2.4): a
	// field pointer, progress or retry count. Its first bit (SKSV) says that
	// there are any.
	Specific [3]byte
}

// AppendFixed appends s to b in the fixed format (SPC-5 4.4.3). An Info that
// passes 32 bits is left out, as the format has no room for it.
func (s Sense) AppendFixed(b []byte) []byte {
	var f [18]byte
	f[0] = 0x70
	if s.Deferred {
		f[0] = 0x71
	}
	f[2] = byte(s.Key)
	if s.HasInfo && s.Info <= 0xffffffff {
		f[0] |= 0x80
		binary.BigEndian.PutUint32(f[3:], uint32(s.Info))
	}
	f[7] = byte(len(f) - 8)
	binary.BigEndian.PutUint16(f[12:], s.Code)
	copy(f[15:], s.Specific[:])
	return append(b, f[:]...)
}

// AppendDescriptor appends s to b in the descriptor format (SPC-5 4.4.2).
func (s Sense) AppendDescriptor(b []byte) []byte {
	start := len(b)
	code := byte(0x72)
	if s.Deferred {
		code = 0x73
	}
	b = append(b, code, byte(s.Key), byte(s.Code>>8), byte(s.Code), 0, 0, 0, 0)
	if s.HasInfo {
		b = append(b, 0x00, 0x0a, 0x80, 0)
		b = binary.BigEndian.AppendUint64(b, s.Info)
	}
	if s.Specific[0]&0x80 != 0 {
		b = append(b, 0x02, 0x06, 0, 0, s.Specific[0], s.Specific[1], s.Specific[2], 0)
	}
	b[start+7] = byte(len(b) - start - 8)
	return b
}
