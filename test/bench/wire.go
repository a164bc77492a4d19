package main

import (
	"encoding/binary"
	"io"
)

// pdu reads a PDU. The header is in c.header afterwards; data of Data-In is
// passed over, other data returned.
func (c *client) pdu() (op, flags byte, data []byte, err error) {
	if _, err := io.ReadFull(c.r, c.header[:]); err != nil {
		return 0, 0, nil, err
	}
	op, flags = c.header[0]&0x3f, c.header[1]
	n := int(c.header[5])<<16 | int(c.header[6])<<8 | int(c.header[7])
	padded := n + -n&3
	if op == 0x25 {
		_, err = c.r.Discard(padded)
		return op, flags, nil, err
	}
	if padded > 0 {
		data = make([]byte, padded)
		if _, err := io.ReadFull(c.r, data); err != nil {
			return 0, 0, nil, err
		}
	}
	return op, flags, data[:n], nil
}

// status is the status of a Login Response.
func (c *client) status() uint16 { return binary.BigEndian.Uint16(c.header[36:]) }
