package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// OpKind is something that a plan begins.
type OpKind string

const (
	OpScan    OpKind = "scan"    // scan the LUN of a slot
	OpRemove  OpKind = "remove"  // delete its device
	OpSubmit  OpKind = "submit"  // N reads or writes from a CPU, or from all
	OpFlush   OpKind = "flush"   // N commands that an ATA drive can't queue
	OpDepth   OpKind = "depth"   // write N to queue_depth
	OpHold    OpKind = "hold"    // the target keeps commands until nothing else happens
	OpBusy    OpKind = "busy"    // the target answers the next N with BUSY
	OpFull    OpKind = "full"    // for a second the target takes N at once, and answers others TASK SET FULL
	OpRefuse  OpKind = "refuse"  // the driver refuses the next N: host busy
	OpLose    OpKind = "lose"    // the target loses the next N, and aborts them when told to
	OpDeafen  OpKind = "deafen"  // the target loses the next N, and aborts none
	OpQuiesce OpKind = "quiesce" // the queue is quiesced for 10 ms
	OpFreeze  OpKind = "freeze"  // the queue is frozen, and thawed when it is empty
	OpSettle  OpKind = "settle"  // wait until all that was begun has ended
)

// OpKinds returns all.
func OpKinds() []OpKind {
	return []OpKind{OpScan, OpRemove, OpSubmit, OpFlush, OpDepth, OpHold, OpBusy, OpFull, OpRefuse, OpLose, OpDeafen, OpQuiesce, OpFreeze, OpSettle}
}

// Op is one step of a plan. It is begun, and not waited for: only OpSettle
// waits.
type Op struct {
	Kind OpKind `json:"op"`
	Slot int    `json:"slot"`
	CPU  int    `json:"cpu"` // AllCPUs: N on each
	N    int    `json:"n,omitempty"`
}

// AllCPUs is each CPU that a hardware queue has.
const AllCPUs = -1

func (o Op) String() string {
	s := string(o.Kind)
	if o.Kind == OpSettle {
		return s
	}
	s += fmt.Sprintf(" sd%c", 'a'+o.Slot)
	if o.N > 0 {
		s += fmt.Sprintf(" %d", o.N)
	}
	switch {
	case o.Kind != OpSubmit && o.Kind != OpFlush:
	case o.CPU == AllCPUs:
		s += " on each CPU"
	default:
		s += fmt.Sprintf(" on CPU %d", o.CPU)
	}
	return s
}

// Plan is what a run does to its host. After its last step all devices are
// deleted.
type Plan []Op

// fullTime is how long OpFull lasts: as long as it takes to lower a depth.
const fullTime = time.Second

// mostSubmitted bounds what one plan submits.
const mostSubmitted = 12000

// newPlan makes up a plan for a host. Each plan has only some kinds of steps,
// so that one kind doesn't hide what the others would find.
func newPlan(h Host, rng *rand.Rand) Plan {
	l := h.Limits
	cpus := max(l.Queues(), minCPUs)
	devices := 1 + rng.IntN(3)
	kinds := []OpKind{OpSubmit, OpSubmit}
	for _, k := range []OpKind{OpRemove, OpFlush, OpDepth, OpDepth, OpHold, OpHold, OpBusy, OpFull, OpRefuse, OpLose, OpDeafen, OpQuiesce, OpFreeze, OpSettle} {
		if rng.IntN(3) == 0 {
			kinds = append(kinds, k)
		}
	}
	var p Plan
	for i := range devices {
		p = append(p, Op{Kind: OpScan, Slot: i})
	}
	if rng.IntN(2) == 0 {
		p = append(p, Op{Kind: OpSettle})
	}
	pick := func(n ...int) int { return n[rng.IntN(len(n))] }
	left := mostSubmitted
	flood := rng.IntN(4) == 0
	depth := min(max(l.HostCmdPerLUN(), l.ConfiguredDepth, 1), l.DeviceMax())
	most := min(l.CanQueue, 2*depth) + 1
	switch {
	case slices.Contains(kinds, OpFull):
		most = min(most, 20) // each would be sent again and again
	case flood: // at once more than the depth, before anything else
		p = append(p, Op{Kind: OpSettle}, Op{Kind: OpHold}, Op{Kind: OpSubmit, N: most})
		left -= most
	case rng.IntN(3) > 0:
		most = min(most, 40) // most faults need no more, and the run is short
	}
	for range 4 + rng.IntN(20) {
		o := Op{Kind: kinds[rng.IntN(len(kinds))], Slot: rng.IntN(devices)}
		switch o.Kind {
		case OpSubmit:
			o.N = pick(1, 3, 3, 10, 10, 40, 40, depth+1, most)
			o.CPU = pick(AllCPUs, rng.IntN(cpus), rng.IntN(cpus))
			if o.CPU == AllCPUs {
				o.N = o.N/cpus + 1
			}
			o.N = min(o.N, left, most)
			if left -= o.N * max(1, -o.CPU*cpus); o.N <= 0 {
				continue
			}
		case OpFlush:
			o.N, o.CPU = pick(1, 2, 5), rng.IntN(cpus)
		case OpDepth:
			o.N = pick(1, 2, 8, l.DeviceMax(), 1+rng.IntN(l.DeviceMax()))
			o.N = min(o.N, l.CanQueue)
		case OpBusy, OpRefuse, OpLose, OpDeafen:
			o.N = pick(1, 2, 5)
		case OpFull:
			o.N = pick(1, 2, 8)
		}
		p = append(p, o)
		if o.Kind == OpRemove && rng.IntN(2) == 0 {
			p = append(p, Op{Kind: OpScan, Slot: o.Slot})
		}
	}
	return p
}

// do carries the plan out.
func (m *model) do(t *task, p Plan) {
	for _, o := range p {
		m.progress()
		m.begin(t, o)
		t.step()
	}
	m.settle(t)
	m.checkRest()
	m.observe()
	for slot := range m.devices {
		m.remove(t, slot)
	}
	m.planned = true
}

// settle waits until nothing is under way.
func (m *model) settle(t *task) {
	t.until(func() bool {
		alone := len(m.ready) == 0 || len(m.ready) == 1 && t.awake
		return alone && len(m.live) == 0 && !m.scanning && m.begun == 0 && !m.recovery
	})
}

// start runs part of a plan beside it.
func (m *model) start(name string, cpu int, f func(*task)) {
	m.begun++
	m.spawn(name, cpu, func(t *task) {
		f(t)
		m.begun--
		m.progress()
	})
}

func (m *model) begin(t *task, o Op) {
	m.tracef("plan", "%s", o)
	l := &m.luns[o.Slot]
	s := m.devices[o.Slot]
	switch o.Kind {
	case OpScan:
		m.start("scan", 0, func(t *task) { m.scan(t, o.Slot) })
	case OpRemove:
		m.start("remove", 0, func(t *task) { m.remove(t, o.Slot) })
	case OpSettle:
		m.settle(t)
	case OpHold:
		m.hold(o.Slot)
	case OpBusy:
		l.busy += o.N
	case OpFull:
		l.fullAbove, l.fullUntil = o.N, m.now+fullTime
	case OpRefuse:
		m.refuses += o.N
	case OpLose:
		l.dropped += o.N
	case OpDeafen:
		l.dropped += o.N
		l.abortFail = true
	}
	if s == nil || !s.attached {
		return
	}
	switch o.Kind {
	case OpSubmit, OpFlush:
		op := opRW
		if o.Kind == OpFlush {
			op = opFlush
		}
		first, last := o.CPU, o.CPU
		if o.CPU == AllCPUs {
			first, last = 0, m.cpus-1
		}
		for cpu := first; cpu <= last; cpu++ {
			m.start(fmt.Sprintf("%s submit %d", s.name, cpu), cpu, func(t *task) {
				for range o.N {
					s.q.submit(t, op)
				}
			})
		}
	case OpDepth:
		m.start("write", 0, func(t *task) {
			if m.devices[o.Slot] == s && s.state == sdevRunning {
				s.writing++
				s.stats.Wrote = s.writeDepth(t, o.N)
				s.writing--
			}
		})
	case OpQuiesce:
		m.start("quiesce", 0, func(t *task) {
			s.q.quiesce()
			t.delay(10 * time.Millisecond)
			s.q.unquiesce(t)
		})
	case OpFreeze:
		m.start("freeze", 0, func(t *task) {
			s.q.freeze(t)
			t.step()
			s.q.unfreeze()
		})
	}
}
