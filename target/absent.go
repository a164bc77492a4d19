package target

import (
	"encoding/binary"

	"lunlab/lun"
)

// Additional sense codes that the target itself answers with.
const (
	codeInvalidFieldInCDB = 0x2400
	codeInvalidOpcode     = 0x2000
	codeLUNNotSupported   = 0x2500
	codeInvalidMessage    = 0x4900
)

// fieldPointer says that byte i of the CDB is in error (SPC-5 4.4.2.4.2).
func fieldPointer(i uint16) [3]byte { return [3]byte{0xc0, byte(i >> 8), byte(i)} }

const (
	opTestUnitReady = 0x00
	opRequestSense  = 0x03
	opInquiry       = 0x12
)

// standardInquiryLen is the least that standard INQUIRY data may be (SPC-5 6.6.2).
const standardInquiryLen = 36

// absentUnit is what an address without a logical unit answers.
type absentUnit struct{}

func (absentUnit) Blocking() bool               { return false }
func (absentUnit) Notify(*lun.Nexus, lun.Event) {}

func (absentUnit) DataLength(cdb []byte) (out, in uint64) { return 0, lowDataIn(cdb) }

// lowDataIn is the room that INQUIRY and REQUEST SENSE ask for.
func lowDataIn(cdb []byte) uint64 {
	switch {
	case len(cdb) >= 6 && cdb[0] == opInquiry:
		return min(uint64(binary.BigEndian.Uint16(cdb[3:])), standardInquiryLen)
	case len(cdb) >= 6 && cdb[0] == opRequestSense:
		return min(uint64(cdb[4]), lun.MaxSense)
	}
	return 0
}

func (absentUnit) Execute(c *lun.Command) {
	notSupported := lun.Sense{Key: lun.IllegalRequest, Code: codeLUNNotSupported}
	switch {
	case len(c.CDB) >= 6 && c.CDB[0] == opInquiry && c.CDB[1]&1 == 0 && c.CDB[2] == 0:
		// "not capable of supporting a peripheral device", of unknown type.
		answer(c, inquiryData(0x7f), uint32(binary.BigEndian.Uint16(c.CDB[3:])))
	case len(c.CDB) >= 6 && c.CDB[0] == opRequestSense:
		answer(c, notSupported.AppendFixed(nil), uint32(c.CDB[4]))
	default:
		c.Fail(notSupported)
	}
}

// wellKnownUnit is the REPORT LUNS well known logical unit (SPC-5 8.2). The
// command that it is there for, every nexus answers itself.
type wellKnownUnit struct{}

func (wellKnownUnit) Blocking() bool               { return false }
func (wellKnownUnit) Notify(*lun.Nexus, lun.Event) {}

func (wellKnownUnit) DataLength(cdb []byte) (out, in uint64) { return 0, lowDataIn(cdb) }

func (wellKnownUnit) Execute(c *lun.Command) {
	switch {
	case len(c.CDB) >= 6 && c.CDB[0] == opInquiry && c.CDB[1]&1 == 0 && c.CDB[2] == 0:
		answer(c, inquiryData(0x1e), uint32(binary.BigEndian.Uint16(c.CDB[3:])))
	case len(c.CDB) >= 6 && c.CDB[0] == opInquiry:
		c.Fail(lun.Sense{Key: lun.IllegalRequest, Code: codeInvalidFieldInCDB, Specific: fieldPointer(2)})
	case len(c.CDB) >= 6 && c.CDB[0] == opRequestSense:
		answer(c, lun.Sense{}.AppendFixed(nil), uint32(c.CDB[4]))
	case len(c.CDB) >= 6 && c.CDB[0] == opTestUnitReady:
		c.Status = lun.Good
	default:
		c.Fail(lun.Sense{Key: lun.IllegalRequest, Code: codeInvalidOpcode, Specific: fieldPointer(0)})
	}
}

// inquiryData is standard INQUIRY data with the given peripheral qualifier and
// device type.
func inquiryData(peripheral byte) []byte {
	b := make([]byte, standardInquiryLen)
	b[0] = peripheral
	b[2] = 0x07 // SPC-5
	b[3] = 0x12 // HISUP, response data format 2
	b[4] = byte(len(b) - 5)
	b[7] = 0x02 // CMDQUE
	copy(b[8:], "LUNLAB  ")
	copy(b[16:], "NO LOGICAL UNIT ")
	if peripheral == 0x1e {
		copy(b[16:], "WELL KNOWN LU   ")
	}
	copy(b[32:], "1   ")
	return b
}
