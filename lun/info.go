package lun

import "time"

var infoOps = []op{
	{name: "REPORT IDENTIFYING INFORMATION", usage: "a3 05 0000 0000 ffffffff fe 00", moves: allocates(6, 4), run: (*Disk).reportIdentity},
	{name: "SET IDENTIFYING INFORMATION", usage: "a4 06 0000 0000 ffffffff fe 00", class: writes, moves: takes(6, 4), run: remember((*Disk).setIdentity)},
	{name: "REPORT TIMESTAMP", usage: "a3 0f 0000 0000 ffffffff 00 00", moves: allocates(6, 4), run: (*Disk).reportTimestamp},
	{name: "SET TIMESTAMP", usage: "a4 0f 0000 0000 ffffffff 00 00", class: writes, moves: takes(6, 4), run: (*Disk).setTimestamp},
	{name: "SECURITY PROTOCOL IN", usage: "a2 ff ffff 00 00 ffffffff 00 00", class: writes, moves: allocates(6, 4), run: (*Disk).securityIn},
}

// Kinds of identifying information, and how long each may be (SPC-5 6.32).
const (
	identityText  = 2
	maxIdentity   = 64
	maxText       = 256
	identityKinds = 0x7f
)

// identifying is what SET IDENTIFYING INFORMATION has set.
type identifying struct{ id, text []byte }

func (d *Disk) reportIdentity(_ *nexus, c *Command) Sense {
	var b []byte
	d.mu.Lock()
	switch c.CDB[10] >> 1 {
	case 0:
		b = append([]byte{0, 0, 0, byte(len(d.identity.id))}, d.identity.id...)
	case identityText:
		n := len(d.identity.text)
		b = append([]byte{0, 0, byte(n >> 8), byte(n)}, d.identity.text...)
	case identityKinds:
		b = []byte{0, 0, 0, 8, 0, 0, 0, maxIdentity, identityText << 1, 0, maxText >> 8, maxText & 0xff}
	}
	d.mu.Unlock()
	if b == nil {
		return InvalidField(10, 7)
	}
	c.Reply(b, uint64(be32(c.CDB[6:])))
	return Sense{}
}

func (d *Disk) setIdentity(n *nexus, c *Command) Sense {
	size, limit := be32(c.CDB[6:]), uint32(maxIdentity)
	kind := c.CDB[10] >> 1
	switch kind {
	case 0:
	case identityText:
		limit = maxText
	default:
		return InvalidField(10, 7)
	}
	if size > limit {
		return InvalidField(6, 7)
	}
	data := c.Gather(uint64(size))
	if uint32(len(data)) < size {
		return Sense{Key: IllegalRequest, Code: ASCParameterListLengthError}
	}
	if kind == identityText && size > 0 && data[size-1] != 0 {
		return InvalidParameter(int(size-1), 7) // it ends with a zero byte (UTF-8)
	}
	c.OutLen = uint64(size)
	d.mu.Lock()
	defer d.mu.Unlock()
	data = append([]byte(nil), data...)
	if kind == 0 {
		d.identity.id = data
	} else {
		d.identity.text = data
	}
	d.attendOthers(n, ASCIdentifierChanged)
	return Sense{}
}

// clock is the device clock (SPC-5 5.19): milliseconds since 1970 that were set
// at a time, or 0 at power on.
type clock struct {
	set bool
	ms  uint64
	at  time.Time
}

func (d *Disk) reportTimestamp(_ *nexus, c *Command) Sense {
	d.mu.Lock()
	now := d.clock.ms + uint64(time.Since(d.clock.at).Milliseconds())
	b := []byte{0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	if d.clock.set {
		b[2] = 2 // TIMESTAMP ORIGIN: by SET TIMESTAMP
	}
	d.mu.Unlock()
	put16(b[4:], uint16(now>>32))
	put32(b[6:], uint32(now))
	c.Reply(b, uint64(be32(c.CDB[6:])))
	return Sense{}
}

func (d *Disk) setTimestamp(n *nexus, c *Command) Sense {
	size := be32(c.CDB[6:])
	if size == 0 {
		return Sense{}
	}
	list := c.Gather(12)
	if size != 12 || len(list) < 12 {
		return Sense{Key: IllegalRequest, Code: ASCParameterListLengthError}
	}
	c.OutLen = 12
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clock = clock{true, uint64(be16(list[4:]))<<32 | uint64(be32(list[6:])), time.Now()}
	d.attendOthers(n, ASCTimestampChanged)
	return Sense{}
}

// securityIn answers protocol 00h, which says that there is no other (SPC-5
// 7.7.2).
func (d *Disk) securityIn(_ *nexus, c *Command) Sense {
	allocation := uint64(be32(c.CDB[6:]))
	if c.CDB[1] != 0 {
		return InvalidField(1, 7)
	}
	switch be16(c.CDB[2:]) {
	case 0: // supported security protocols: this one
		c.Reply([]byte{0, 0, 0, 0, 0, 0, 0, 1, 0}, allocation)
	case 1: // certificate data: none
		c.Reply([]byte{0, 0, 0, 0}, allocation)
	default:
		return InvalidField(2, 7)
	}
	return Sense{}
}
