package lun

var mediumOps = []op{
	{name: "START STOP UNIT", usage: "1b 01 00 0f f7 00", class: settled, run: (*Disk).startStop, seconds: flushing},
	{name: "PREVENT ALLOW MEDIUM REMOVAL", usage: "1e 00 00 00 01 00", run: (*Disk).prevent, when: removable},
	{name: "READ CAPACITY(10)", usage: "25 00 00000000 0000 00 00", class: medium, moves: readCapacity10Length, run: (*Disk).readCapacity10},
	{name: "READ CAPACITY(16)", usage: "9e 10 0000000000000000 ffffffff 00 00", class: medium, moves: allocates(10, 4), run: (*Disk).readCapacity16},
}

func removable(d *Disk) bool { return d.opt.Removable }

// Bits of Disk.state. READ and WRITE look no further while it is 0.
const (
	stopped        uint32 = 1 << iota // by START STOP UNIT
	ejected                           // the medium isn't there
	formatting                        // FORMAT UNIT is running
	sanitizing                        // SANITIZE is running
	formatFailed                      // FORMAT UNIT failed, and nothing is left to read
	sanitizeFailed                    // SANITIZE failed
	sanitizeStuck                     // and only another one can end that
	warning                           // of an exception; see warn
	resting                           // power conditions come and go; see condition.go
)

// notReady is the sense data for a state that keeps from the medium.
func (d *Disk) notReady(state uint32) Sense {
	switch {
	case state&(formatting|sanitizing) != 0:
		j := d.job.Load()
		return Sense{Key: NotReady, Code: j.code, Specific: j.progress(d.opt.EraseTime)}
	case state&sanitizeFailed != 0:
		return Sense{Key: MediumError, Code: ASCSanitizeFailed}
	case state&formatFailed != 0:
		return Sense{Key: MediumError, Code: ASCFormatFailed}
	case state&ejected != 0:
		return Sense{Key: NotReady, Code: ASCMediumNotPresent}
	case state&stopped != 0:
		return Sense{Key: NotReady, Code: ASCNotReadyInitializingRequired}
	}
	return Sense{}
}

// admit returns why a command can't run in a state that isn't 0.
func (d *Disk) admit(state uint32, e *entry, cdb []byte) Sense {
	if state&sanitizing != 0 {
		if !duringSanitize(e, cdb) {
			return d.notReady(sanitizing)
		}
		state &^= sanitizing
	}
	switch {
	case e.class&medium != 0:
		return d.notReady(state)
	case e.class&loaded != 0:
		return d.notReady(state &^ (formatFailed | sanitizeFailed))
	case e.class&settled != 0:
		return d.notReady(state & (formatting | sanitizing))
	}
	return Sense{}
}

func (d *Disk) testUnitReady(*nexus, *Command) Sense { return Sense{} }

// requestSense answers with the pending unit attention or else with the state
// of the unit (SPC-5 6.39).
func (d *Disk) requestSense(n *nexus, c *Command) Sense {
	state := d.state.Load()
	s := d.notReady(state)
	if s.Key == NoSense && state&resting != 0 {
		_, s.Code = d.power.now()
	}
	if s == (Sense{}) {
		d.mu.Lock()
		if code, report := d.exception(); report == reportOnRequest {
			s.Code = code
		}
		d.mu.Unlock()
	}
	if a := d.takeAttention(n); a.Key != NoSense {
		s = a
	}
	var buf [MaxSense]byte
	b := buf[:0]
	if c.CDB[1]&1 == 1 {
		b = s.AppendDescriptor(b)
	} else {
		b = s.AppendFixed(b)
	}
	c.Reply(b, uint64(c.CDB[4]))
	return Sense{}
}

// startStop is SBC-4 5.31.
func (d *Disk) startStop(n *nexus, c *Command) Sense {
	power, start, eject := c.CDB[4]>>4, c.CDB[4]&1 == 1, c.CDB[4]&2 != 0
	// To start what is started is allowed to all; the rest isn't.
	if (power != 0 || !start) && n.denied(writes) {
		c.Status = ReservationConflict
		return Sense{}
	}
	if power != 0 {
		return d.powerCondition(power, c.CDB[3])
	}
	if c.CDB[3] != 0 {
		return InvalidField(3, 3)
	}
	flush := c.CDB[4]&4 == 0
	if flush && !start {
		if s := d.flush(); s.Key != NoSense {
			return s
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	state := d.state.Load()
	switch {
	case eject && !d.opt.Removable:
		return InvalidField(4, 1)
	case eject && start:
		if state&ejected != 0 {
			d.attendOthers(n, ASCMediumMayHaveChanged)
		}
		state = d.started(state &^ ejected)
	case eject && d.prevented():
		return Sense{Key: IllegalRequest, Code: ASCMediumRemovalPrevented}
	case eject:
		state |= ejected
	case start:
		if state&ejected != 0 {
			return d.notReady(state)
		}
		state = d.started(state)
	default:
		if state&stopped == 0 {
			d.count.stops.Add(1)
		}
		state |= stopped
	}
	d.state.Store(state)
	return Sense{}
}

// started returns the state of a medium that was stopped, or not, once it turns.
func (d *Disk) started(state uint32) uint32 {
	if state&stopped != 0 {
		d.count.loads.Add(1)
	}
	d.power.enter(activeCondition, false)
	return state &^ stopped
}

// prevented tells whether a nexus keeps the medium in. Disk.mu is held.
func (d *Disk) prevented() bool {
	for _, n := range *d.nexuses.Load() {
		if n.prevents {
			return true
		}
	}
	return false
}

func (d *Disk) prevent(n *nexus, c *Command) Sense {
	on := c.CDB[4]&1 == 1
	if on && n.denied(writes) {
		c.Status = ReservationConflict
		return Sense{}
	}
	d.mu.Lock()
	n.prevents = on
	d.mu.Unlock()
	return Sense{}
}

// Eject takes the medium out as a user's hand does: even where an initiator
// prevents it. [Disk.Load] puts it back.
func (d *Disk) Eject() { d.setMedium(false) }

// Load puts the medium in and tells every nexus that it may have changed.
func (d *Disk) Load() { d.setMedium(true) }

func (d *Disk) setMedium(in bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	state := d.state.Load()
	switch {
	case !in:
		state |= ejected
	case state&ejected != 0:
		state = d.started(state &^ ejected)
		d.attendOthers(nil, ASCMediumMayHaveChanged)
	}
	d.state.Store(state)
}

func readCapacity10Length(*Disk, []byte) (out, in uint64) { return 0, 8 }

func (d *Disk) readCapacity10(_ *nexus, c *Command) Sense {
	var b [8]byte
	put32(b[:], uint32(min(d.Blocks()-1, 1<<32-1)))
	put32(b[4:], uint32(d.blockSize()))
	c.Reply(b[:], uint64(len(b)))
	return Sense{}
}

func (d *Disk) readCapacity16(_ *nexus, c *Command) Sense {
	b := d.capacityData()
	c.Reply(b[:], uint64(be32(c.CDB[10:])))
	return Sense{}
}

// capacityData is the parameter data of READ CAPACITY(16) (SBC-4 5.21.2).
func (d *Disk) capacityData() (b [32]byte) {
	put64(b[:], d.Blocks()-1)
	put32(b[8:], uint32(d.blockSize()))
	if kind := d.protectionType(); kind > 0 {
		b[12] = (kind-1)<<1 | 1 // P_TYPE, PROT_EN
	}
	if hostManaged(d) {
		b[12] |= 0x10 // RC_BASIS: the last block of all zones
	}
	b[13] = d.geometry().exponent
	put16(b[14:], d.geometry().aligned)
	if d.sparse != nil {
		b[14] |= 0x80 // LBPME
		if !d.opt.Unzeroed {
			b[14] |= 0x40 // LBPRZ
		}
	}
	return b
}
