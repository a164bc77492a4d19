package ata

import "time"

// Power modes (ACS-4 4.15), as CHECK POWER MODE tells of them.
type powerMode byte

const (
	active   powerMode = 0xff // or idle, which come to the same
	idling   powerMode = 0x80
	standby  powerMode = 0x00
	sleeping powerMode = 0x01 // which no command lives to tell of
)

// power is the state of the power management. What the standby timer comes to is
// worked out when somebody asks.
type power struct {
	on    time.Time // power came
	mode  powerMode
	timer time.Duration // standby timer, 0 for off
	since time.Time     // the last command that needs the medium ended
	ready time.Time     // when the medium turns fast enough
}

func (p *power) powerOn(d *Drive) {
	p.mode, p.on = active, time.Now()
	p.since = p.on
	p.ready = p.on.Add(d.opt.SpinUp)
	d.count.starts.Add(1)
}

// now returns the mode that the drive is in. mu is held.
func (d *Drive) powerNow() powerMode {
	p := &d.power
	if p.timer > 0 && (p.mode == active || p.mode == idling) && d.tags == 0 && time.Since(p.since) >= p.timer {
		p.mode = standby
	}
	return p.mode
}

// spinUp makes the drive active for a command that needs the medium, and returns when
// it will be there. mu is held.
func (d *Drive) spinUp() (ready time.Time) {
	p := &d.power
	if d.powerNow() == standby {
		p.ready = time.Now().Add(d.opt.SpinUp)
		d.count.starts.Add(1)
	}
	p.mode, p.since = active, time.Now()
	return p.ready
}

// standbyTimer is the time that a count stands for (ACS-4 table 51). ok is false for
// those that are reserved.
func standbyTimer(count byte) (period time.Duration, ok bool) {
	switch n := time.Duration(count); {
	case count <= 240:
		return n * 5 * time.Second, true
	case count <= 251:
		return (n - 240) * 30 * time.Minute, true
	case count == 252:
		return 21 * time.Minute, true
	case count == 253:
		return 8 * time.Hour, true
	case count == 255:
		return 21*time.Minute + 15*time.Second, true
	}
	return 0, false
}

// standby and idle set the timer, and with that the mode.
func (d *Drive) standby(t *Task) failure { return d.enter(t, standby, true) }
func (d *Drive) idle(t *Task) failure    { return d.enter(t, idling, true) }

func (d *Drive) standbyImmediate(t *Task) failure { return d.enter(t, standby, false) }
func (d *Drive) sleep(t *Task) failure            { return d.enter(t, sleeping, false) }

// unloadLBA and unloadDone are what IDLE IMMEDIATE with UNLOAD has in its LBA and
// answers there.
const (
	unloadLBA  = 0x554e4c
	unloadDone = 0xc4
)

func (d *Drive) idleImmediate(t *Task) failure {
	unload := t.Feature&0xff == 0x44
	if unload && t.LBA&0xffffff != unloadLBA {
		return badField
	}
	if f := d.enter(t, idling, false); f.failed() {
		return f
	}
	if unload {
		t.Answer.LBA = t.LBA&0xffff00 | unloadDone
	}
	return failure{}
}

// enter changes the power mode. What isn't on the medium yet goes there before it
// stops.
func (d *Drive) enter(t *Task, mode powerMode, timed bool) failure {
	if mode != idling {
		if f := d.flush(); f.failed() {
			return f
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if timed {
		period, ok := standbyTimer(byte(t.Count))
		if !ok {
			return badField
		}
		d.power.timer = period
	}
	was := d.powerNow()
	switch {
	case mode == idling && was == standby:
		d.power.ready = time.Now().Add(d.opt.SpinUp)
		d.count.starts.Add(1)
	case mode != idling && was != standby:
		d.count.stops.Add(1)
	}
	d.power.mode, d.power.since = mode, time.Now()
	return failure{}
}

func (d *Drive) checkPower(t *Task) failure {
	d.mu.Lock()
	defer d.mu.Unlock()
	t.Answer.Count = uint16(d.powerNow())
	return failure{}
}
