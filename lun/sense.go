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

	// Copy is what a COPY ABORTED tells of the segment that failed, nil for nothing.
	Copy *CopyFailure
}

// CopyFailure is how a third-party copy ended early (SPC-5 6.4.3.3).
type CopyFailure struct {
	Segment uint16 // the number of the segment descriptor, from 0

	// Sense is what the source, or the destination, ended a command with. A Key of
	// NoSense says that it is neither which is at fault.
	Sense       Sense
	Destination bool
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
	if s.Copy == nil {
		return append(b, f[:]...)
	}
	binary.BigEndian.PutUint16(f[10:], s.Copy.Segment)
	if s.Copy.Sense.Key == NoSense {
		return append(b, f[:]...)
	}
	// Where the status and sense data of one of the disks begin.
	f[8+s.Copy.disk()] = byte(len(f))
	f[7] += 1 + byte(len(f))
	b = append(append(b, f[:]...), byte(CheckCondition))
	return s.Copy.Sense.AppendFixed(b)
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
	if s.Copy != nil {
		b = s.Copy.appendDescriptors(b)
	}
	b[start+7] = byte(len(b) - start - 8)
	return b
}

// disk is 0 for the source and 1 for the destination.
func (f *CopyFailure) disk() int {
	if f.Destination {
		return 1
	}
	return 0
}

// appendDescriptors appends the command specific information and, if one of the
// disks is at fault, the forwarded sense data (SPC-5 4.4.2.3, 4.4.2.7).
func (f *CopyFailure) appendDescriptors(b []byte) []byte {
	b = append(b, 0x01, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, f.Segment)
	if f.Sense.Key == NoSense {
		return b
	}
	at := len(b)
	b = append(b, 0x0c, 0, byte(1+f.disk()), byte(CheckCondition)) // of CSCD 1, the source, or 2
	b = f.Sense.AppendDescriptor(b)
	b[at+1] = byte(len(b) - at - 2)
	return b
}
