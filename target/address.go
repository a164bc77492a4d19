package target

import "encoding/binary"

// Address is a logical unit number in its eight bytes (SAM-5 4.7).
type Address [8]byte

// ReportLUNsWellKnown is the address of the REPORT LUNS well known logical unit
// (SAM-5 4.7.7.5.2, SPC-5 8.2).
var ReportLUNsWellKnown = Address{0xc1, 0x01}

// MaxNumber is the highest logical unit number that an Address made by
// [NumberAddress] can hold: 14 bits of flat space addressing.
const MaxNumber = 1<<14 - 1

// NumberAddress is the address of logical unit n, at most [MaxNumber]: in the
// peripheral device addressing method below 256, else in flat space (SAM-5
// 4.7.7.2, 4.7.7.3), as initiators expect of single level units.
func NumberAddress(n uint16) (a Address) {
	if n < 256 {
		a[1] = byte(n)
		return a
	}
	binary.BigEndian.PutUint16(a[:], 0x4000|n&MaxNumber)
	return a
}

// Number is the logical unit number that a addresses, if it is of one level and
// addresses by number.
func (a Address) Number() (n uint16, ok bool) {
	if a[2]|a[3]|a[4]|a[5]|a[6]|a[7] != 0 {
		return 0, false
	}
	switch a[0] >> 6 {
	case 0:
		// Another bus would be another level.
		return uint16(a[1]), a[0] == 0
	case 1:
		return binary.BigEndian.Uint16(a[:]) & MaxNumber, true
	}
	return 0, false
}
