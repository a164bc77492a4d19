package lun

import (
	"fmt"
	"strconv"
	"strings"
)

// Protocol identifiers (SPC-5 7.6.1).
const (
	protocolISCSI = 0x5
	protocolSAS   = 0x6
	protocolNone  = 0xf
)

// Of an iSCSI TransportID (SPC-5 7.6.4.6): format 00b names a node, which is all of
// its ports, and 01b a port.
const (
	iscsiPortFormat = 0x40
	iscsiSeparator  = ",i,0x"
	maxISCSIName    = 223 // RFC 7143 4.2.7.2
	isidDigits      = 12
)

// parseTransportID reads the TransportID that b begins with (SPC-5 7.6.4) and returns
// its length. id is what two TransportIDs of the same initiator port have in common. A
// length of 0 says that it is malformed.
func parseTransportID(b []byte) (id string, size int) {
	switch {
	case len(b) < 24:
		return "", 0
	case b[0]&0x0f == protocolISCSI:
		return parseISCSITransportID(b)
	case b[0]&0xf0 != 0:
		return "", 0
	}
	return string(b[:24]), 24
}

func parseISCSITransportID(b []byte) (id string, size int) {
	format, size := b[0]&0xf0, 4+int(be16(b[2:]))
	if format&^iscsiPortFormat != 0 || b[1] != 0 || size < 24 || size%4 != 0 || size > len(b) {
		return "", 0
	}
	text, _, terminated := strings.Cut(string(b[4:size]), "\x00")
	name, isid, port := strings.Cut(text, iscsiSeparator)
	if !terminated || port != (format == iscsiPortFormat) || name == "" || len(name) > maxISCSIName {
		return "", 0
	}
	name = strings.ToLower(name)
	if port {
		n, err := strconv.ParseUint(isid, 16, 4*isidDigits)
		if err != nil || len(isid) > isidDigits {
			return "", 0
		}
		name = fmt.Sprintf("%s%s%0*x", name, iscsiSeparator, isidDigits, n)
	}
	return iscsiTransportID(format, name), size
}

// iscsiTransportID is the shortest one with that text.
func iscsiTransportID(format byte, text string) string {
	n := max(20, (len(text)+4)&^3) // a zero ends it
	b := make([]byte, 4+n)
	b[0] = format | protocolISCSI
	put16(b[2:], uint16(n))
	copy(b[4:], text)
	return string(b)
}

// initiatorID is how registrations know the initiator port with a TransportID.
func initiatorID(transportID []byte) string {
	if id, size := parseTransportID(transportID); size == len(transportID) && size > 0 {
		return id
	}
	return string(transportID)
}

// iscsiNode is the TransportID of the iSCSI node that a port is one of, "" if it isn't
// an iSCSI port.
func iscsiNode(port string) string {
	if len(port) < 24 || port[0] != iscsiPortFormat|protocolISCSI {
		return ""
	}
	name, _, _ := strings.Cut(port[4:], iscsiSeparator)
	return iscsiTransportID(0, name)
}

// namesNode tells whether a TransportID is that of an iSCSI node.
func namesNode(id string) bool { return id[0] == protocolISCSI }
