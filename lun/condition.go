package lun

import (
	"iter"
	"slices"
	"sync"
	"time"
)

// Power conditions (SPC-5 5.12, SBC-4 4.20): the unit enters one when START STOP
// UNIT says so, or when it had nothing to do for the time that the Power
// Condition mode page sets, and leaves it with the next command that needs the
// medium to turn, or would if it did.

const powerPage = 0x1a

// condition is a power condition, the deeper the greater.
type condition byte

const (
	activeCondition condition = iota
	idleA
	idleB
	idleC
	standbyY
	standbyZ
	conditions
)

// timerPlace says where in the page a condition has its enable bit and its
// timer, in tenths of a second.
var timerPlace = [conditions]struct {
	enable int
	bit    byte
	timer  int
}{
	idleA:    {1, 0x02, 2},
	standbyZ: {1, 0x01, 6},
	idleB:    {1, 0x04, 10},
	idleC:    {1, 0x08, 14},
	standbyY: {0, 0x01, 18},
}

func newPowerPage() *modePage {
	return newModePage(powerPage, 0,
		"0000000000000000000000000000000000000000000000000000000000000000000000000000",
		"010fffffffffffffffffffffffffffffffffffffffff00000000000000000000000000000000")
}

// The additional sense codes of the conditions, by how they were entered.
var (
	byTimer   = [conditions]uint16{idleA: 0x5e01, idleB: 0x5e05, idleC: 0x5e07, standbyY: 0x5e09, standbyZ: 0x5e02}
	byCommand = [conditions]uint16{idleA: 0x5e03, idleB: 0x5e06, idleC: 0x5e08, standbyY: 0x5e0a, standbyZ: 0x5e04}
)

// powerState is what there is to know of power conditions. What the timers come
// to is worked out when somebody asks.
type powerState struct {
	mu     sync.Mutex
	timers [conditions]time.Duration // 0 is off
	manual bool                      // START STOP UNIT is in control: no timer counts
	forced condition                 // entered by START STOP UNIT
	busy   int                       // commands that need the medium
	since  time.Time                 // it had nothing to do

	entered [conditions]uint32 // how often each was
	last    condition          // the last that was counted
}

// setTimers takes the timers over from the page.
func (p *powerState) setTimers(page []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.timers
	for c := idleA; c < conditions; c++ {
		at := timerPlace[c]
		p.timers[c] = 0
		if page[at.enable]&at.bit != 0 {
			// A timer of 0 runs out at once.
			p.timers[c] = max(time.Duration(be32(page[at.timer:]))*(time.Second/10), 1)
		}
	}
	if p.timers != old {
		p.change(p.forced, old)
		p.since = time.Now()
	}
}

// counts tells whether the commands matter to the state: a timer runs, or a
// condition is to be left.
func (p *powerState) counts() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.timers != [conditions]time.Duration{} || p.forced != activeCondition
}

// now returns the condition that the unit is in, and the sense code for it.
func (p *powerState) now() (condition, uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy > 0 {
		return activeCondition, 0
	}
	if p.manual {
		return p.forced, byCommand[p.forced]
	}
	in := p.forced
	for c := range p.ranOut(p.timers) {
		in = c
	}
	return in, byTimer[in] // FORCE has its timer run out
}

// ranOut gives the conditions that timers have had the unit enter since it had
// nothing to do, in their order.
func (p *powerState) ranOut(timers [conditions]time.Duration) iter.Seq[condition] {
	return func(yield func(condition) bool) {
		idle := time.Since(p.since)
		for c := p.forced + 1; c < conditions && p.busy == 0 && !p.manual; c++ {
			// One whose timer is no shorter than that of a deeper one is passed over.
			over := slices.ContainsFunc(timers[c+1:], func(t time.Duration) bool { return t > 0 && t <= timers[c] })
			if t := timers[c]; t > 0 && idle >= t && !over && !yield(c) {
				return
			}
		}
	}
}

// change counts the conditions that timers have had the unit enter, and that to.
func (p *powerState) change(to condition, timers [conditions]time.Duration) {
	p.settle(timers)
	if to != p.last {
		p.entered[to]++
		p.last = to
	}
}

func (p *powerState) settle(timers [conditions]time.Duration) {
	for c := range p.ranOut(timers) {
		if c > p.last {
			p.entered[c]++
			p.last = c
		}
	}
}

func (p *powerState) enter(c condition, manual bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.change(c, p.timers)
	p.forced, p.manual, p.since = c, manual, time.Now()
}

// begin and end are around a command that needs the medium.
func (p *powerState) begin() {
	p.mu.Lock()
	p.change(activeCondition, p.timers)
	p.busy++
	p.forced = activeCondition
	p.mu.Unlock()
}

func (p *powerState) end() {
	p.mu.Lock()
	p.busy--
	p.since = time.Now()
	p.mu.Unlock()
}

// watchPower sets the state's bit for power conditions. Disk.mu is held, or the
// disk isn't in use yet.
func (d *Disk) watchPower() {
	state := d.state.Load() &^ resting
	if d.power.counts() {
		state |= resting
	}
	d.state.Store(state)
}

// awake runs a command that may have the unit leave a power condition.
func (e *entry) awake(d *Disk, n *nexus, c *Command) Sense {
	if e.class&medium == 0 || e.class&(reads|writes) == 0 {
		return e.run(d, n, c)
	}
	d.power.begin()
	defer d.power.end()
	return e.run(d, n, c)
}

// powerCondition takes the POWER CONDITION of START STOP UNIT (SBC-4 5.31): ACTIVE,
// IDLE and STANDBY leave the timers out until LU_CONTROL; the FORCE ones have a
// timer run out.
func (d *Disk) powerCondition(power, modifier byte) Sense {
	idles, standbys := [...]condition{idleA, idleB, idleC}, [...]condition{standbyZ, standbyY}
	to, most := activeCondition, 0
	switch power {
	case 0x1, 0x7: // ACTIVE, LU_CONTROL
	case 0x2, 0xa: // IDLE
		most = len(idles) - 1
		to = idles[min(int(modifier), most)]
	case 0x3, 0xb: // STANDBY
		most = len(standbys) - 1
		to = standbys[min(int(modifier), most)]
	default:
		return InvalidField(4, 7)
	}
	if int(modifier) > most {
		return InvalidField(3, 3)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	// It is started, as in all of them it is ready.
	d.state.Store(d.state.Load() &^ stopped)
	d.power.enter(to, power < 0x7)
	d.watchPower()
	return Sense{}
}

// powerConditions is the Power Condition VPD page (SPC-5 8Ah): all there are, which
// are left in no time that would be worth a number.
func powerConditions() []byte { return []byte{0x03, 0x07, 13: 0} }

// powerLog is the Power Condition Transitions page (SPC-5 1Ah).
func (d *Disk) powerLog() (list []logParameter) {
	p := &d.power
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settle(p.timers)
	for _, x := range []struct {
		code uint16
		c    condition
	}{{1, activeCondition}, {2, idleA}, {3, idleB}, {4, idleC}, {8, standbyZ}, {9, standbyY}} {
		v := binaryList(x.code, 0, 0, 0, 0)
		put32(v.value, p.entered[x.c])
		list = append(list, v)
	}
	return list
}
