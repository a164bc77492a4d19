package lun

// What the unit says of the port that a nexus came by (SPC-5 7.5.15, 7.5.16,
// 7.3.17): the protocol, and for SAS what SPL-4 wants there. Nothing of it can
// be changed.

// portPages returns the Protocol Specific Logical Unit and Port mode pages.
func (n *nexus) portPages() []*modePage {
	protocol := n.protocol()
	if protocol == protocolNone {
		return nil
	}
	size := 6
	unit, port := make([]byte, size), make([]byte, size)
	if protocol == protocolSAS {
		port = make([]byte, 14)
		put16(port[2:], 2000) // I_T NEXUS LOSS TIME, ms
	}
	unit[0], port[0] = protocol, protocol
	return []*modePage{fixedPage(0x18, unit), fixedPage(0x19, port)}
}

// fixedPage is a page that can't be changed.
func fixedPage(code byte, value []byte) *modePage {
	return &modePage{code: code, current: value, changeable: make([]byte, len(value)), initial: value, saved: value}
}

// portLog is the Protocol Specific Port log page: of SAS, a port without phys.
func (n *nexus) portLog() []logParameter {
	v := make([]byte, 4)
	v[0] = n.protocol()
	return []logParameter{binaryList(n.id.TargetPort, v...)}
}
