package lun

import "fmt"

// PERSISTENT RESERVE IN (SPC-5 6.16).

// prInOp makes a service action that answers with what answer returns. Disk.mu is
// held when that is called.
func prInOp(name string, action byte, answer func(*Disk) []byte) op {
	return op{
		name: name, usage: fmt.Sprintf("5e %02x 0000000000 ffff 00", action),
		class: exclusive | standbyAccess, moves: allocates(7, 2),
		run: func(d *Disk, _ *nexus, c *Command) Sense {
			d.mu.Lock()
			b := answer(d)
			d.mu.Unlock()
			c.Reply(b, uint64(be16(c.CDB[7:])))
			return Sense{}
		},
	}
}

func (d *Disk) readKeys() []byte {
	r := &d.reserve
	b := make([]byte, 8, 8+8*len(r.list))
	put32(b, r.generation)
	put32(b[4:], uint32(8*len(r.list)))
	for _, g := range r.list {
		b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)
		put64(b[len(b)-8:], g.key)
	}
	return b
}

func (d *Disk) readReservation() []byte {
	r := &d.reserve
	b := make([]byte, 8, 24)
	put32(b, r.generation)
	if r.kind != 0 {
		b = b[:24]
		put32(b[4:], 16)
		if r.holder != nil {
			put64(b[8:], r.holder.key)
		}
		b[21] = r.kind // scope 0: the logical unit
	}
	return b
}

func (d *Disk) reportCapabilities() []byte {
	b := []byte{
		0, 8,
		0x0c,       // SIP_C, ATP_C
		0x80,       // TMV
		0xea, 0x01, // every type
		0, 0,
	}
	if d.opt.Memory != nil {
		b[2] |= 1 // PTPL_C
		if d.reserve.persists {
			b[3] |= 1 // PTPL_A
		}
	}
	return b
}

func (d *Disk) readFullStatus() []byte {
	r := &d.reserve
	b := make([]byte, 8, 1024)
	put32(b, r.generation)
	for _, g := range r.list {
		at := len(b)
		b = append(b, make([]byte, 24)...)
		desc := b[at:]
		put64(desc, g.key)
		if g.allPorts {
			desc[12] |= 2
		} else {
			put16(desc[18:], g.who.port)
		}
		if r.holds(g) {
			desc[12] |= 1
			desc[13] = r.kind
		}
		id := g.who.initiator
		put32(desc[20:], uint32(len(id)))
		b = append(b, id...)
	}
	put32(b[4:], uint32(len(b)-8))
	return b
}
