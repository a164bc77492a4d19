package isns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// function is an iSNS function ID (RFC 4171 4.1.3). A response has the first bit
// set.
type function uint16

const (
	fnDevAttrReg function = 0x0001
	fnDevAttrQry function = 0x0002
	fnDevDereg   function = 0x0004
	fnSCNReg     function = 0x0005
	fnSCN        function = 0x0008
	fnESI        function = 0x000d

	fnResponse function = 0x8000
)

// Flags of a header (RFC 4171 5.1.4).
const (
	flagClient  = 0x8000
	flagReplace = 0x1000
	flagLast    = 0x0800
	flagFirst   = 0x0400
)

// tag names an attribute (RFC 4171 6.1).
type tag uint32

const (
	tagDelimiter    tag = 0
	tagEntity       tag = 1
	tagProtocol     tag = 2
	tagPeriod       tag = 6
	tagPortalIP     tag = 16
	tagPortalPort   tag = 17
	tagESIInterval  tag = 19
	tagESIPort      tag = 20
	tagSCNPort      tag = 23
	tagName         tag = 32
	tagNodeType     tag = 33
	tagAlias        tag = 34
	tagSCNBitmap    tag = 35
	tagPGName       tag = 48
	tagPGPortalIP   tag = 49
	tagPGPortalPort tag = 50
	tagPGTag        tag = 51
)

const (
	protocolISCSI  = 2 // of tagProtocol
	nodeTypeTarget = 1 // of tagNodeType

	// scnSelf asks for news of the target itself, that it was removed or added
	// (RFC 4171 6.4.4).
	scnSelf = 0x40 | 0x10 | 0x08
)

// status is the first word of a response (RFC 4171 5.4).
type status uint32

const (
	statusOK       status = 0
	statusFormat   status = 2
	statusNoESI    status = 22
	statusNoMethod status = 15 // message not supported
)

var statusNames = map[status]string{
	1: "unknown error", 2: "message format error", 3: "invalid registration", 5: "invalid query", 6: "source unknown",
	7: "source absent", 8: "source unauthorized", 9: "no such entry", 10: "version not supported", 11: "internal error",
	12: "busy", 13: "option not understood", 14: "invalid update", 15: "message not supported", 16: "SCN event rejected",
	17: "SCN registration rejected", 18: "attribute not implemented", 22: "ESI not available", 23: "invalid deregistration",
	24: "registration feature not supported",
}

func (s status) Error() string {
	if n, ok := statusNames[s]; ok {
		return "the iSNS server says: " + n
	}
	return fmt.Sprintf("the iSNS server answers with status %d", uint32(s))
}

const (
	headerLen = 12

	// maxPayload bounds a message, all its PDUs together.
	maxPayload = 1 << 20
)

var errMessage = errors.New("malformed iSNS message")

// message is an iSNSP message: a header and what its PDUs carry (RFC 4171 5.1).
type message struct {
	function function
	flags    uint16
	xid      uint16
	payload  []byte
}

// encode makes the message one PDU. The payload has to be below 64 KiB.
func (m *message) encode() []byte {
	b := make([]byte, headerLen, headerLen+len(m.payload))
	binary.BigEndian.PutUint16(b, 1)
	binary.BigEndian.PutUint16(b[2:], uint16(m.function))
	binary.BigEndian.PutUint16(b[4:], uint16(len(m.payload)))
	binary.BigEndian.PutUint16(b[6:], m.flags|flagFirst|flagLast)
	binary.BigEndian.PutUint16(b[8:], m.xid)
	return append(b, m.payload...)
}

// readMessage reads one message, whose PDUs come one after the other.
func readMessage(r io.Reader) (m message, err error) {
	for sequence := uint16(0); ; sequence++ {
		var h [headerLen]byte
		if _, err := io.ReadFull(r, h[:]); err != nil {
			return m, err
		}
		f, flags, xid := function(binary.BigEndian.Uint16(h[2:])), binary.BigEndian.Uint16(h[6:]), binary.BigEndian.Uint16(h[8:])
		n := int(binary.BigEndian.Uint16(h[4:]))
		if sequence == 0 {
			m.function, m.flags, m.xid = f, flags, xid
		}
		if binary.BigEndian.Uint16(h[:]) != 1 || binary.BigEndian.Uint16(h[10:]) != sequence ||
			(flags&flagFirst != 0) != (sequence == 0) || f != m.function || xid != m.xid || len(m.payload)+n > maxPayload || n%4 != 0 {
			return m, errMessage
		}
		m.payload = append(m.payload, make([]byte, n)...)
		if _, err := io.ReadFull(r, m.payload[len(m.payload)-n:]); err != nil {
			return m, err
		}
		if flags&flagLast != 0 {
			return m, nil
		}
	}
}

// attribute is a tag and its value; padding is part of the value.
type attribute struct {
	tag   tag
	value []byte
}

func number(t tag, v uint32) attribute { return attribute{t, binary.BigEndian.AppendUint32(nil, v)} }

// text is a string with its end, padded.
func text(t tag, s string) attribute {
	b := append([]byte(s), 0)
	return attribute{t, append(b, make([]byte, -len(b)&3)...)}
}

func (a attribute) number() uint32 {
	if len(a.value) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(a.value)
}

func (a attribute) size() int { return 8 + len(a.value) }

func appendAttributes(b []byte, list ...attribute) []byte {
	for _, a := range list {
		b = binary.BigEndian.AppendUint32(b, uint32(a.tag))
		b = binary.BigEndian.AppendUint32(b, uint32(len(a.value)))
		b = append(b, a.value...)
	}
	return b
}

// parseAttributes takes a payload apart. The values share memory with it.
func parseAttributes(b []byte) (list []attribute, err error) {
	for len(b) > 0 {
		if len(b) < 8 {
			return nil, errMessage
		}
		n := binary.BigEndian.Uint32(b[4:])
		if n%4 != 0 || uint64(n) > uint64(len(b)-8) {
			return nil, errMessage
		}
		list = append(list, attribute{tag(binary.BigEndian.Uint32(b)), b[8 : 8+n]})
		b = b[8+n:]
	}
	return list, nil
}

// parseResponse is parseAttributes for a response. The error may be a status.
func parseResponse(b []byte) ([]attribute, error) {
	if len(b) < 4 {
		return nil, errMessage
	}
	if s := status(binary.BigEndian.Uint32(b)); s != statusOK {
		return nil, s
	}
	return parseAttributes(b[4:])
}
