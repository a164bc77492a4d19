package iscsi

import (
	"encoding/binary"
	"hash/crc32"

	"lunlab/target/iscsi/pdu"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// digestLen is the length of a header or data digest (RFC 7143 13.1).
const digestLen = 4

// digests says which digests a connection's PDUs carry.
type digests struct{ header, data bool }

// wireLen is the length on the wire of a PDU without additional header segments
// and with n bytes of data.
func (d digests) wireLen(n int) int {
	l := d.headerLen() + n + pdu.Pad(n)
	if d.data && n > 0 {
		l += digestLen
	}
	return l
}

// headerLen is how far the data is from the start of a PDU without additional
// header segments.
func (d digests) headerLen() int {
	if d.header {
		return pdu.BHSLen + digestLen
	}
	return pdu.BHSLen
}

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// The digest goes out with its least significant byte first (RFC 7143 13.1,
// appendix A.4's examples).
func putDigest(b []byte, v uint32) { binary.LittleEndian.PutUint32(b, v) }
func getDigest(b []byte) uint32    { return binary.LittleEndian.Uint32(b) }

// seal pads the n bytes of data at b[0:] with zeros and puts the data digest
// behind them, if there is one. It returns the length of the three.
func (d digests) seal(b []byte, n int) int {
	l := n + pdu.Pad(n)
	clear(b[n:l])
	if d.data && n > 0 {
		putDigest(b[l:], checksum(b[:l]))
		l += digestLen
	}
	return l
}
