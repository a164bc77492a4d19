package iscsi

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// maxNameLen is the most that an iSCSI name may have (RFC 7143 4.2.7.1).
const maxNameLen = 223

// CheckName tells what is wrong with an iSCSI name, of an initiator or a target
// (RFC 7143 4.2.7).
func CheckName(s string) error {
	if len(s) > maxNameLen {
		return fmt.Errorf("iSCSI name is %d bytes long, more than %d", len(s), maxNameLen)
	}
	for _, prefix := range []string{"iqn.", "eui.", "naa."} {
		if !strings.HasPrefix(s, prefix) {
			continue
		}
		if len(s) == len(prefix) {
			return fmt.Errorf("iSCSI name %q has nothing after %q", s, prefix)
		}
		for _, r := range s {
			// What stringprep leaves of ASCII (RFC 3722 6).
			if r < 0x80 && !(r == '.' || r == '-' || r == ':' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || r == '_') {
				return fmt.Errorf("iSCSI name %q has %q in it", s, r)
			}
		}
		return nil
	}
	return fmt.Errorf("iSCSI name %q doesn't begin with iqn, eui or naa and a dot", s)
}

// transportID is the TransportID of an initiator port (SPC-5 7.6.4.7, format 01b).
func transportID(initiator string, isid [6]byte) []byte {
	name := portName(initiator, isid)
	n := len(name) + 1
	n += -n & 3
	n = max(n, 20)
	b := make([]byte, 4+n)
	b[0] = 0x45 // format 01b, protocol identifier iSCSI
	binary.BigEndian.PutUint16(b[2:], uint16(n))
	copy(b[4:], name)
	return b
}

// portName is an initiator port's name (RFC 7143 4.4.2).
func portName(initiator string, isid [6]byte) string {
	return initiator + ",i," + isidString(isid)
}

func isidString(isid [6]byte) string { return fmt.Sprintf("0x%x", isid) }
