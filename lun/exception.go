package lun

// Informational exceptions (SPC-5 7.5.14): there are none but for the test that
// an initiator may ask for, a false prediction of failure.

const (
	exceptionPage  = 0x1c
	exceptionFlags = 0 // DEXCPT is bit 3, TEST bit 2
	exceptionMRIE  = 1

	dexcpt = 0x08
	test   = 0x04
)

// Ways of reporting (MRIE) that there are here.
const (
	reportNothing   = 0x0
	reportAttention = 0x2
	reportAllowed   = 0x3 // as a recovered error, if PER allows that
	reportRecovered = 0x4
	reportNoSense   = 0x5
	reportOnRequest = 0x6
)

func newExceptionPage() *modePage {
	p := newModePage(exceptionPage, 0, "08000000000000000000", "0c0f0000000000000000")
	p.refuse = func(v []byte) (at int, bit uint8, bad bool) {
		if v[exceptionFlags]&(dexcpt|test) == dexcpt|test {
			return exceptionFlags, 2, true
		}
		switch v[exceptionMRIE] {
		case reportNothing, reportAttention, reportAllowed, reportRecovered, reportNoSense, reportOnRequest:
			return 0, 0, false
		}
		return exceptionMRIE, 3, true
	}
	return p
}

// exception returns the additional sense code of the exception that there is,
// and how it is reported. Disk.mu is held.
func (d *Disk) exception() (code uint16, report byte) {
	v := d.page(exceptionPage, 0).current
	if v[exceptionFlags]&test == 0 {
		return 0, reportNothing
	}
	return ASCFailurePredictionFalse, v[exceptionMRIE]
}

// reportException has the exception that an initiator now asks for reported, once.
// Disk.mu is held.
func (d *Disk) reportException() {
	state := d.state.Load() &^ warning
	switch code, report := d.exception(); report {
	case reportAttention:
		d.attendOthers(nil, code)
	case reportAllowed, reportRecovered, reportNoSense:
		state |= warning
	}
	d.state.Store(state)
}

// warn reports the exception with the sense data of a command that was done, the
// first one that comes, if that is how it is to be reported.
func (d *Disk) warn(c *Command) {
	d.mu.Lock()
	defer d.mu.Unlock()
	state := d.state.Load()
	code, report := d.exception()
	if state&warning == 0 || report == reportAllowed && d.page(recoveryPage, 0).current[0]&per == 0 {
		return
	}
	d.state.Store(state &^ warning)
	switch report {
	case reportAllowed, reportRecovered:
		d.tell(c, Sense{Key: RecoveredError, Code: code})
	case reportNoSense:
		d.tell(c, Sense{Key: NoSense, Code: code})
	}
}

// exceptionLog is the Informational Exceptions page (SPC-5 7.3.11).
func (d *Disk) exceptionLog() []logParameter {
	d.mu.Lock()
	code, _ := d.exception()
	d.mu.Unlock()
	return []logParameter{binaryList(0, byte(code>>8), byte(code), noTemperature)}
}
