// Package pdu holds the iSCSI protocol data units: a type for each, with the
// fields named as in RFC 7143 section 11.
//
// A type's Decode reads the 48-byte basic header segment and says what is wrong
// with its form; Encode writes one. Neither allocates, and neither touches the
// additional header segments, digests and data segment, which follow the header
// on the wire in this order; [Header] tells their lengths.
package pdu

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	// BHSLen is the length of the basic header segment.
	BHSLen = 48

	// MaxDataSegmentLength is the most that DataSegmentLength can say.
	MaxDataSegmentLength = 1<<24 - 1

	// MaxAHSLength is the most that TotalAHSLength can say, in bytes.
	MaxAHSLength = 255 * 4

	// NoTag is the reserved value of InitiatorTaskTag and TargetTransferTag.
	NoTag uint32 = 0xffffffff
)

// Opcode is an iSCSI operation code (RFC 7143 11.2.1.2), without the I bit.
type Opcode uint8

const (
	OpNOPOut           Opcode = 0x00
	OpSCSICommand      Opcode = 0x01
	OpTaskMgmtRequest  Opcode = 0x02
	OpLoginRequest     Opcode = 0x03
	OpTextRequest      Opcode = 0x04
	OpDataOut          Opcode = 0x05
	OpLogoutRequest    Opcode = 0x06
	OpSNACKRequest     Opcode = 0x10
	OpNOPIn            Opcode = 0x20
	OpSCSIResponse     Opcode = 0x21
	OpTaskMgmtResponse Opcode = 0x22
	OpLoginResponse    Opcode = 0x23
	OpTextResponse     Opcode = 0x24
	OpDataIn           Opcode = 0x25
	OpLogoutResponse   Opcode = 0x26
	OpR2T              Opcode = 0x31
	OpAsyncMessage     Opcode = 0x32
	OpReject           Opcode = 0x3f
)

var opcodeNames = map[Opcode]string{
	OpNOPOut: "NOP-Out", OpSCSICommand: "SCSI Command", OpTaskMgmtRequest: "Task Management Function Request",
	OpLoginRequest: "Login Request", OpTextRequest: "Text Request", OpDataOut: "SCSI Data-Out",
	OpLogoutRequest: "Logout Request", OpSNACKRequest: "SNACK Request",
	OpNOPIn: "NOP-In", OpSCSIResponse: "SCSI Response", OpTaskMgmtResponse: "Task Management Function Response",
	OpLoginResponse: "Login Response", OpTextResponse: "Text Response", OpDataIn: "SCSI Data-In",
	OpLogoutResponse: "Logout Response", OpR2T: "Ready To Transfer", OpAsyncMessage: "Asynchronous Message",
	OpReject: "Reject",
}

func (o Opcode) String() string {
	if s, ok := opcodeNames[o]; ok {
		return s
	}
	return fmt.Sprintf("opcode 0x%02x", uint8(o))
}

var (
	// ErrShort says that there are fewer than BHSLen bytes.
	ErrShort = errors.New("pdu: shorter than a basic header segment")

	// ErrOpcode says that the header is of another kind of PDU.
	ErrOpcode = errors.New("pdu: another opcode")

	// ErrField says that a field has a value which its PDU forbids.
	ErrField = errors.New("pdu: invalid field")
)

// Header is what all PDUs have in common, enough to read the rest of one.
type Header struct {
	Opcode    Opcode
	Immediate bool

	// Final is the first bit of byte 1: F, or T in the login PDUs.
	Final bool

	// TotalAHSLength is in bytes here: a multiple of 4, at most MaxAHSLength.
	TotalAHSLength int

	// DataSegmentLength is in bytes, padding not included.
	DataSegmentLength int
}

// Decode reads the fields from the first 8 bytes of a basic header segment.
func (h *Header) Decode(b []byte) error {
	if len(b) < BHSLen {
		return ErrShort
	}
	h.Opcode = Opcode(b[0] & 0x3f)
	h.Immediate = b[0]&0x40 != 0
	h.Final = b[1]&0x80 != 0
	h.TotalAHSLength = int(b[4]) * 4
	h.DataSegmentLength = int(b[5])<<16 | int(b[6])<<8 | int(b[7])
	return nil
}

// DataSegmentLength reads that field of an encoded header.
func DataSegmentLength(bhs []byte) int { return int(bhs[5])<<16 | int(bhs[6])<<8 | int(bhs[7]) }

// Pad says how many bytes of padding follow n bytes of data.
func Pad(n int) int { return -n & 3 }

// LUN is the logical unit number field as SAM-5 4.7 lays it out.
type LUN [8]byte

// start checks the length and the opcode of a header that is to be decoded.
func start(b []byte, op Opcode) error {
	if len(b) < BHSLen {
		return ErrShort
	}
	if Opcode(b[0]&0x3f) != op {
		return ErrOpcode
	}
	return nil
}

// begin clears the header that is to be encoded and sets its common fields.
func begin(b []byte, op Opcode, immediate bool, flags byte, dataLen int) {
	_ = b[BHSLen-1]
	clear(b[:BHSLen])
	b[0] = byte(op)
	if immediate {
		b[0] |= 0x40
	}
	b[1] = flags
	b[5], b[6], b[7] = byte(dataLen>>16), byte(dataLen>>8), byte(dataLen)
}

func flag(on bool, bit byte) byte {
	if on {
		return bit
	}
	return 0
}

func u16(b []byte) uint16       { return binary.BigEndian.Uint16(b) }
func u32(b []byte) uint32       { return binary.BigEndian.Uint32(b) }
func put16(b []byte, v uint16)  { binary.BigEndian.PutUint16(b, v) }
func put32(b []byte, v uint32)  { binary.BigEndian.PutUint32(b, v) }
func immediate(b []byte) bool   { return b[0]&0x40 != 0 }
func final(b []byte) bool       { return b[1]&0x80 != 0 }
func lunAt(b []byte) (l LUN)    { return LUN(b[8:16]) }
func isid(b []byte) (i [6]byte) { return [6]byte(b[8:14]) }
