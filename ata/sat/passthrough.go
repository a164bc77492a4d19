package sat

import (
	"lunlab/ata"
	"lunlab/lun"
)

// Values of PROTOCOL in ATA PASS-THROUGH (SAT-5 table 150).
const (
	protocolHardReset   = 0
	protocolSoftReset   = 1
	protocolNonData     = 3
	protocolPIOIn       = 4
	protocolPIOOut      = 5
	protocolDMA         = 6
	protocolDiagnostic  = 8
	protocolUDMAIn      = 10
	protocolUDMAOut     = 11
	protocolNCQ         = 12
	protocolInformation = 15 // of the last command
)

// ascInformation is ATA PASS THROUGH INFORMATION AVAILABLE.
const ascInformation = 0x001d

// through is an ATA PASS-THROUGH command.
type through struct {
	task     ata.Taskfile
	protocol byte
	extend   bool
	flags    byte
	at       int // byte of the CDB with PROTOCOL; the one after it has the flags
}

// Flags.
const (
	checkCondition = 0x20 // CK_COND
	lengthType     = 0x10 // T_TYPE: blocks are logical sectors
	lengthBlocks   = 0x04 // BYT_BLOK
	directionIn    = 0x08 // T_DIR
)

// parseThrough reads the CDB, of 12, 16 or 32 bytes.
func parseThrough(cdb []byte) (p through) {
	p.at = 1
	t := &p.task
	switch cdb[0] {
	case 0xa1:
		t.Feature, t.Count = uint16(cdb[3]), uint16(cdb[4])
		t.LBA = uint64(cdb[5]) | uint64(cdb[6])<<8 | uint64(cdb[7])<<16
		t.Device, t.Command = cdb[8], cdb[9]
	case 0x85:
		t.Feature, t.Count = be16(cdb[3:]), be16(cdb[5:])
		t.LBA = uint64(cdb[8]) | uint64(cdb[10])<<8 | uint64(cdb[12])<<16
		t.LBA |= uint64(cdb[7])<<24 | uint64(cdb[9])<<32 | uint64(cdb[11])<<40
		t.Device, t.Command = cdb[13], cdb[14]
	default:
		p.at = 10
		t.LBA = number(cdb[14:20])
		t.Feature, t.Count = be16(cdb[20:]), be16(cdb[22:])
		t.Device, t.Command, t.ICC, t.Aux = cdb[24], cdb[25], cdb[27], be32(cdb[28:])
	}
	p.protocol, p.extend, p.flags = cdb[p.at]>>1&0x0f, cdb[p.at]&1 == 1, cdb[p.at+1]
	if !p.extend {
		// The fields of 8 bits are all that there are.
		t.Feature, t.Count, t.LBA = t.Feature&0xff, t.Count&0xff, t.LBA&0xffffff
	}
	return p
}

// length is how many bytes of data the command says that it moves, and false for as many
// as the transport has (T_LENGTH 11b).
func (p *through) length(id *identity) (n uint64, ok bool) {
	most := uint64(1 << 8)
	if p.extend {
		most = 1 << 16
	}
	switch p.flags & 3 {
	case 0:
		return 0, true
	case 1:
		n = uint64(p.task.Feature)
	case 2:
		n = uint64(p.task.Count)
	default:
		return 0, false
	}
	if p.flags&lengthBlocks == 0 {
		return n, true
	}
	if n == 0 {
		n = most
	}
	if p.flags&lengthType != 0 {
		return n * id.size, true
	}
	return n * 512, true
}

// moves tells which way the data goes, if there is any.
func (p *through) moves() (out, in bool) {
	switch p.protocol {
	case protocolPIOIn, protocolUDMAIn:
		in = true
	case protocolPIOOut, protocolUDMAOut:
		out = true
	case protocolDMA, protocolNCQ:
		in = p.flags&directionIn != 0
		out = !in
	}
	if p.flags&3 == 0 {
		return false, false
	}
	return out, in
}

// wants returns what PROTOCOL says in the drive's words.
func (p *through) wants() (list []ata.Protocol) {
	switch p.protocol {
	case protocolNonData:
		return []ata.Protocol{ata.NonData, ata.Diagnostic}
	case protocolPIOIn:
		return []ata.Protocol{ata.PIODataIn}
	case protocolPIOOut:
		return []ata.Protocol{ata.PIODataOut}
	case protocolDMA:
		return []ata.Protocol{ata.DMADataIn, ata.DMADataOut}
	case protocolUDMAIn:
		return []ata.Protocol{ata.DMADataIn}
	case protocolUDMAOut:
		return []ata.Protocol{ata.DMADataOut}
	case protocolNCQ:
		return []ata.Protocol{ata.FPDMADataIn, ata.FPDMADataOut}
	case protocolDiagnostic:
		return []ata.Protocol{ata.Diagnostic}
	}
	return nil
}

// movesThrough bounds the data by what the drive moves for the command.
func movesThrough(u *Unit, cdb []byte) (out, in uint64) {
	p := parseThrough(cdb)
	isOut, isIn := p.moves()
	driveOut, driveIn := u.drive.DataLength(&p.task)
	n, ok := p.length(u.id.Load())
	if !ok {
		n = max(driveOut, driveIn)
	}
	n = min(n, maxTransfer)
	switch {
	case isOut && driveIn == 0:
		return n, 0
	case isIn && driveOut == 0:
		return 0, n
	}
	return 0, 0
}

func (u *Unit) passThrough(x *nexus, c *lun.Command) lun.Sense {
	p := parseThrough(c.CDB)
	switch p.protocol {
	case protocolHardReset, protocolSoftReset:
		return u.resetThrough(c, p.protocol)
	case protocolInformation:
		u.mu.Lock()
		r := u.lastThrough
		u.mu.Unlock()
		information(c, lun.Sense{Key: lun.RecoveredError, Code: ascInformation}, &r, p.extend)
		return lun.Sense{}
	}
	if s := u.checkThrough(&p); s.Key != lun.NoSense {
		return s
	}
	out, in := movesThrough(u, c.CDB)
	driveOut, driveIn := u.drive.DataLength(&p.task)
	if driveOut > out || driveIn > in {
		// The data doesn't fit into what the CDB has room for.
		return lun.InvalidField(p.at+1, 1)
	}
	w := u.take(c, p.task)
	defer u.put(w)
	if driveOut > 0 {
		w.DataOut = c.DataOut
	}
	if driveIn > 0 {
		w.DataIn = c.DataIn
	}
	u.do(w)
	if w.cancelled {
		return aborted
	}
	u.afterThrough(x, w)
	switch {
	case w.Failed():
		information(c, w.translate(), &w.Answer, p.extend)
	case p.flags&checkCondition != 0:
		c.InLen, c.OutLen = min(w.Moved, in), min(w.Moved, out)
		information(c, lun.Sense{Key: lun.RecoveredError, Code: ascInformation}, &w.Answer, p.extend)
	default:
		c.InLen, c.OutLen = min(w.Moved, in), min(w.Moved, out)
	}
	return lun.Sense{}
}

// checkThrough returns what is wrong with the CDB: it has to describe the command as it
// is. A command that the drive doesn't have, it will refuse itself.
func (u *Unit) checkThrough(p *through) lun.Sense {
	wants := p.wants()
	if wants == nil {
		return lun.InvalidField(p.at, 4)
	}
	is, known := u.drive.Protocol(&p.task)
	if !known {
		return lun.Sense{}
	}
	for _, w := range wants {
		if w != is {
			continue
		}
		if out, in := p.moves(); is.Out() && in || is.In() && out {
			return lun.InvalidField(p.at+1, 3)
		}
		return lun.Sense{}
	}
	return lun.InvalidField(p.at, 4)
}

// afterThrough takes note of what a command has done behind the translation's back.
func (u *Unit) afterThrough(x *nexus, w *work) {
	u.mu.Lock()
	u.lastThrough = w.Answer
	u.mu.Unlock()
	switch w.Command {
	case sanitizeDevice:
		u.sanitize.Store(true)
	case configureMaxAddress:
		before := u.id.Load().blocks
		if err := u.identify(); err == nil && u.id.Load().blocks != before {
			u.attend(nil, x, lun.ASCCapacityDataHasChanged)
		}
	}
}

func (u *Unit) resetThrough(c *lun.Command, protocol byte) lun.Sense {
	slot, ok := u.slots.acquire(true, c.Cancel)
	if !ok {
		return aborted
	}
	defer u.slots.release(slot)
	if protocol == protocolHardReset {
		u.drive.Reset(ata.HardReset)
	} else {
		u.drive.Reset(ata.SoftReset)
	}
	return lun.Sense{}
}

// information ends a command with sense data that has an ATA Status Return descriptor
// (SAT-5 12.2.6). It is in the descriptor format whatever D_SENSE says: few initiators look
// for the registers anywhere else, and libata does so too.
func information(c *lun.Command, s lun.Sense, r *ata.Registers, extend bool) {
	in, out := c.InLen, c.OutLen
	c.FailDescriptor(s)
	c.InLen, c.OutLen = in, out
	d := [14]byte{
		0x09, 0x0c, 0, r.Error, byte(r.Count >> 8), byte(r.Count),
		byte(r.LBA >> 24), byte(r.LBA), byte(r.LBA >> 32), byte(r.LBA >> 8), byte(r.LBA >> 40), byte(r.LBA >> 16),
		r.Device, r.Status,
	}
	if extend {
		d[2] = 1
	} else {
		d[4], d[6], d[8], d[10] = 0, 0, 0, 0
	}
	c.Sense = append(c.Sense, d[:]...)
	c.Sense[7] += byte(len(d))
}
