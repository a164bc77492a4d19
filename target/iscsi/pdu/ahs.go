package pdu

// AHS is one additional header segment (RFC 7143 11.2.2).
type AHS struct {
	Type AHSType

	// Specific is the byte after the type, Data what follows it: neither the
	// length, the type nor the padding is in them.
	Specific byte
	Data     []byte
}

// AHSType says what an additional header segment holds.
type AHSType uint8

const (
	AHSExtendedCDB            AHSType = 1
	AHSBidiReadExpectedLength AHSType = 2
)

// NextAHS takes the first additional header segment off b, which it shares
// memory with.
func NextAHS(b []byte) (a AHS, rest []byte, err error) {
	if len(b) < 4 {
		return AHS{}, nil, ErrShort
	}
	// AHSLength counts the specific byte and the data (11.2.2.1).
	n := int(u16(b))
	if n < 1 || 3+n > len(b) {
		return AHS{}, nil, ErrField
	}
	a = AHS{AHSType(b[2]), b[3], b[4 : 3+n]}
	return a, b[min(3+n+Pad(3+n), len(b)):], nil
}

// AppendAHS appends a, padded, to b.
func AppendAHS(b []byte, a AHS) []byte {
	n := 1 + len(a.Data)
	b = append(b, byte(n>>8), byte(n), byte(a.Type), a.Specific)
	b = append(b, a.Data...)
	return append(b, make([]byte, Pad(3+n))...)
}
