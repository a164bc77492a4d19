package sat

import (
	"encoding/binary"
	"time"

	"lunlab/ata"
	"lunlab/lun"
)

// testUnitReady knows of START STOP UNIT already; what is left is SANITIZE.
func (u *Unit) testUnitReady(_ *nexus, c *lun.Command) lun.Sense {
	return u.sanitizing(c)
}

// sanitizing is the sense data for a SANITIZE that is in progress, if there may be one.
func (u *Unit) sanitizing(c *lun.Command) lun.Sense {
	if !u.sanitize.Load() {
		return lun.Sense{}
	}
	w := u.take(c, ata.Taskfile{Command: sanitizeDevice})
	defer u.put(w)
	u.do(w)
	switch {
	case w.failed():
		return w.translate()
	case w.Answer.Count&0x4000 == 0:
		u.sanitize.Store(false)
		return lun.Sense{}
	}
	part := uint16(w.Answer.LBA)
	return lun.Sense{Key: lun.NotReady, Code: lun.ASCNotReadySanitizeInProgress, Specific: [3]byte{0x80, byte(part >> 8), byte(part)}}
}

// ascLowPower is LOW POWER CONDITION ON.
const ascLowPower = 0x5e00

// requestSenseData answers with the pending unit attention or else with the state of
// the drive.
func (u *Unit) requestSenseData(x *nexus, c *lun.Command) lun.Sense {
	var s lun.Sense
	if code, ok := u.takeAttention(x, c.Nexus); ok {
		s = lun.Sense{Key: lun.UnitAttention, Code: code}
	} else if u.stopped.Load() {
		s = lun.Sense{Key: lun.NotReady, Code: lun.ASCNotReadyInitializingRequired}
	} else if s = u.sanitizing(c); s.Key == lun.NoSense {
		s = u.powerSense(c)
	}
	var buf [lun.MaxSense]byte
	b := buf[:0]
	if c.CDB[1]&1 == 1 {
		b = s.AppendDescriptor(b)
	} else {
		b = s.AppendFixed(b)
	}
	c.Reply(b, uint64(c.CDB[4]))
	return lun.Sense{}
}

func (u *Unit) powerSense(c *lun.Command) lun.Sense {
	w := u.take(c, ata.Taskfile{Command: checkPowerMode})
	defer u.put(w)
	u.do(w)
	if !w.failed() && w.Answer.Count&0xff == 0 {
		return lun.Sense{Code: ascLowPower}
	}
	if u.id.Load().smart {
		return lun.Sense{Code: u.exception(c)}
	}
	return lun.Sense{}
}

// startStop is START STOP UNIT (SAT-5 9.11).
func (u *Unit) startStop(_ *nexus, c *lun.Command) lun.Sense {
	power, start, eject, flush := c.CDB[4]>>4, c.CDB[4]&1 == 1, c.CDB[4]&2 != 0, c.CDB[4]&4 == 0
	if c.CDB[3] != 0 {
		return lun.InvalidField(3, 3)
	}
	var last ata.Taskfile
	stopped := false
	switch power {
	case 0x0:
		if eject {
			return lun.InvalidField(4, 1)
		}
		last = ata.Taskfile{Command: readVerifyExt, Count: 1, Device: deviceLBA}
		if !start {
			last, stopped = ata.Taskfile{Command: standbyImmediate}, true
		}
		flush = flush && !start
	case 0x1: // ACTIVE
		last, flush = ata.Taskfile{Command: readVerifyExt, Count: 1, Device: deviceLBA}, false
	case 0x2: // IDLE
		last = ata.Taskfile{Command: idleImmediate}
	case 0x3: // STANDBY
		last = ata.Taskfile{Command: standbyImmediate}
	default:
		return lun.InvalidField(4, 7)
	}
	if flush {
		if s := u.simple(c, ata.Taskfile{Command: flushCacheExt}); s.Key != lun.NoSense {
			return s
		}
	}
	s := u.simple(c, last)
	if s.Key == lun.NoSense {
		u.stopped.Store(stopped)
	}
	return s
}

func securityLength(u *Unit, cdb []byte) (out, in uint64) {
	n := uint64(be32(cdb[6:]))
	if cdb[4]&0x80 != 0 { // INC_512
		n *= 512
	}
	if n > 0xffff*512 {
		return 0, 0
	}
	return 0, n
}

// securityIn is SECURITY PROTOCOL IN (SAT-5 9.13), whose length counts bytes or blocks.
func (u *Unit) securityIn(_ *nexus, c *lun.Command) lun.Sense {
	_, n := securityLength(u, c.CDB)
	blocks := (min(n, c.Room()) + 511) / 512
	if be32(c.CDB[6:]) != 0 && n == 0 {
		return lun.InvalidField(6, 7)
	}
	if blocks == 0 {
		return lun.Sense{}
	}
	b := make([]byte, blocks*512)
	t := ata.Taskfile{
		Command: trustedReceive, Feature: uint16(c.CDB[1]), Count: uint16(blocks & 0xff),
		LBA: blocks>>8 | uint64(be16(c.CDB[2:]))<<8,
	}
	s := u.fetch(c, t, b)
	if s.Key == lun.AbortedCommand || s.Key == lun.IllegalRequest {
		return lun.InvalidField(1, 7)
	}
	if s.Key == lun.NoSense {
		c.Reply(b, n)
	}
	return s
}

// sanitizeUnit is SANITIZE (SAT-5 9.12).
func (u *Unit) sanitizeUnit(_ *nexus, c *lun.Command) lun.Sense {
	t := ata.Taskfile{Command: sanitizeDevice}
	switch c.CDB[1] & 0x1f {
	case 0x01:
		n := uint64(be16(c.CDB[7:]))
		list := c.Gather(n)
		if n != 8 || len(list) < 8 {
			return lun.InvalidField(7, 7) // the pattern has 4 bytes
		}
		count := list[0] & 0x1f
		if list[0]&0x60 != 0 || count == 0 || count > 16 || be16(list[2:]) != 4 {
			return lun.InvalidParameter(0, 7)
		}
		c.OutLen = n
		t.Feature, t.Count = 0x0014, uint16(count&0x0f)|uint16(list[0]&0x80)
		t.LBA = 0x4f57<<32 | uint64(binary.LittleEndian.Uint32(list[4:])) // the first byte is to come first
	case 0x02:
		t.Feature, t.LBA = 0x0012, 0x426b4572
	case 0x1f:
		t.Count = 1 // CLEAR SANITIZE OPERATION FAILED
	}
	if c.CDB[1]&0x20 != 0 { // AUSE
		t.Count |= 0x10
	}
	s := u.simple(c, t)
	if s.Key != lun.NoSense || t.Feature == 0 {
		return s
	}
	u.sanitize.Store(true)
	if c.CDB[1]&0x80 != 0 { // IMMED
		return s
	}
	return u.awaitSanitize(c)
}

// awaitSanitize returns when a SANITIZE has ended.
func (u *Unit) awaitSanitize(c *lun.Command) lun.Sense {
	for {
		s := u.sanitizing(c)
		if s.Code != lun.ASCNotReadySanitizeInProgress {
			return s
		}
		select {
		case <-time.After(sanitizePoll):
		case <-c.Cancel:
			return aborted
		}
	}
}

// sanitizePoll is how often a SANITIZE is asked whether it has ended.
const sanitizePoll = 20 * time.Millisecond

// sendDiagnostic has the drive test itself (SAT-5 9.10).
func (u *Unit) sendDiagnostic(_ *nexus, c *lun.Command) lun.Sense {
	code := c.CDB[1] >> 5
	if c.CDB[1]&0x04 != 0 { // SELFTEST: the default one
		if code != 0 {
			return lun.InvalidField(1, 7)
		}
		code = 5
	}
	test, ok := map[byte]uint64{1: 0x01, 2: 0x02, 4: 0x7f, 5: 0x81, 6: 0x82}[code]
	if !ok {
		if code == 0 {
			return lun.Sense{}
		}
		return lun.InvalidField(1, 7)
	}
	s := u.simple(c, ata.Taskfile{Command: smart, Feature: 0xd4, LBA: 0xc24f00 | test})
	if s.Key == lun.MediumError {
		return lun.Sense{Key: lun.HardwareError, Code: lun.ASCSelfTestFailed}
	}
	return s
}
