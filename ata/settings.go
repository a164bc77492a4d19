package ata

// settings are what SET FEATURES and SET MULTIPLE MODE set. A power cycle puts them
// back, and a reset where nothing preserves them.
type settings struct {
	writeCache   bool
	lookAhead    bool
	smart        bool // kept over power cycles
	senseData    bool
	preservation bool // software settings preservation
	reverting    bool // SRST puts them back
	transfer     byte // transfer mode: its type in bits 7 to 3, its number below
	apm          byte // advanced power management level, 0 for off
	multiple     byte // sectors that READ and WRITE MULTIPLE move at once, 0 for none
}

// usualAPM is the level at first: the most performance.
const usualAPM = 0xfe

func (d *Drive) usualSettings() settings {
	return settings{
		writeCache: !d.opt.WriteThrough, lookAhead: true, smart: d.settings.smart, preservation: true,
		transfer: 8<<3 | 6, apm: usualAPM, multiple: maxMultiple,
	}
}

// powerOn is how the drive is when power comes.
func (d *Drive) powerOn() {
	d.count.powerCycles.Add(1)
	d.settings = d.usualSettings()
	d.accessible.frozen, d.accessible.set = false, false
	d.security.powerOn()
	d.sanitized.powerOn()
	d.halted, d.sense = false, failure{}
	d.power = power{}
	d.power.powerOn(d)
}

// Reset is how a host resets a drive.
type Reset uint8

const (
	// SoftReset is SRST in a Register FIS that carries no command.
	SoftReset Reset = iota

	// HardReset is COMRESET.
	HardReset
)

// Reset takes down all tasks and resets the drive. It returns when no task is left,
// with what the drive says then: its signature.
func (d *Drive) Reset(kind Reset) Registers {
	d.stopAll()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count.resets[kind].Add(1)
	if kind == HardReset {
		d.count.phyResets.Add(1)
	}
	s := &d.settings
	if kind == HardReset && !s.preservation || kind == SoftReset && s.reverting {
		*s = d.usualSettings()
	}
	if kind == HardReset && !s.preservation {
		d.security.powerOn()
	}
	d.halted, d.sense = false, failure{}
	if d.power.mode == sleeping {
		d.power.mode = standby
	}
	d.resets--
	return signature
}

// stopAll takes down all tasks and waits until they have ended. No other is taken in
// until who calls it counts resets down.
func (d *Drive) stopAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.resets++
	if d.running > 0 {
		d.count.interrupting.Add(1)
	}
	d.clear()
	for d.running > 0 {
		d.quiet.Wait()
	}
}

// PowerCycle takes the drive's power and gives it back. lose, if not nil, is called in
// between, to have the store lose what its cache holds.
func (d *Drive) PowerCycle(lose func() error) (err error) {
	d.stopAll()
	d.stopSelfTest()
	if lose != nil {
		err = lose()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.powerOn()
	d.resets--
	return err
}

// signature is what a device that can be used says after a reset (ACS-4 table 231).
var signature = Registers{Status: StatusDRDY | statusSeek, Error: diagnosticPassed, Count: 1, LBA: 1}

const diagnosticPassed = 0x01

func (d *Drive) diagnostic(t *Task) failure {
	d.mu.Lock()
	defer d.mu.Unlock()
	t.Answer = signature
	return failure{}
}

// nop is ACS-4 7.20: it is there to be aborted.
func (d *Drive) nop(*Task) failure { return failure{err: ErrorABRT} }

func (d *Drive) setMultiple(t *Task) failure {
	n := byte(t.Count)
	if n > maxMultiple || n&(n-1) != 0 {
		return badField
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settings.multiple = n
	return failure{}
}

func (d *Drive) setFeatures(t *Task) failure { return d.setFeature(byte(t.Feature), byte(t.Count)) }

const disableWriteCache = 0x82

// setFeature is SET FEATURES (ACS-4 7.45).
func (d *Drive) setFeature(sub, count byte) failure {
	if sub == disableWriteCache {
		if f := d.flush(); f.failed() {
			return f
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.settings
	switch sub {
	case 0x02:
		s.writeCache = true
	case disableWriteCache:
		s.writeCache = false
	case 0x03:
		switch kind, mode := count>>3, count&7; {
		case kind == 0 && mode <= 1, kind == 1 && mode <= 4: // PIO, which isn't shown
		case kind == 4 && mode <= 2, kind == 8 && mode <= 6:
			s.transfer = count
		default:
			return badField
		}
	case 0x05:
		if count == 0 || count == 0xff {
			return badField
		}
		s.apm = count
	case 0x85:
		s.apm = 0
	case 0x10, 0x90:
		if count != 0x06 { // software settings preservation
			return badField
		}
		s.preservation = sub == 0x10
	case 0x55:
		s.lookAhead = false
	case 0xaa:
		s.lookAhead = true
	case 0x66:
		s.reverting = false
	case 0xcc:
		s.reverting = true
	case 0xc3:
		s.senseData = count&1 == 1
	default:
		return badField
	}
	return failure{}
}

// requestSenseDataExt is the command that leaves sense data as it is.
const requestSenseDataExt = 0x0b

// requestSense is REQUEST SENSE DATA EXT (ACS-4 7.34): the sense data of the command
// before.
func (d *Drive) requestSense(t *Task) failure {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.settings.senseData {
		return badField
	}
	f := d.sense
	t.Answer.LBA = uint64(f.key)<<16 | uint64(f.code)
	if f.key != 0 {
		t.Answer.Status |= StatusSense
	}
	return failure{}
}

func (d *Drive) readBuffer(t *Task) failure {
	d.mu.Lock()
	b := d.buffer
	d.mu.Unlock()
	t.reply(b[:])
	return failure{}
}

func (d *Drive) writeBuffer(t *Task) failure {
	b, f := t.gather(wordBlock)
	if f.failed() {
		return f
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	copy(d.buffer[:], b)
	return failure{}
}
