package sim

import (
	"fmt"
	"slices"
	"strings"

	"lunlab/queue"
)

// Invariant is something that must hold in each run, whatever the rules.
type Invariant struct {
	Name string // short: for tables and JSON
	Says string
	// fatal: what follows from its breach says nothing more.
	fatal bool
}

// MarshalText gives the name: what an invariant is in JSON.
func (i Invariant) MarshalText() ([]byte, error) { return []byte(i.Name), nil }

var (
	DepthHeld    = Invariant{"depth", "no more commands of a device are at the driver than queue_depth says; after it was lowered, of those begun since", false}
	BusyHeeded   = Invariant{"busy", "a device that answered BUSY gets no command until another of its commands has ended well, or it has been idle", false}
	TokenHeld    = Invariant{"token", "a budget token is of one command, and put by who holds it", true}
	TagHeld      = Invariant{"tag", "a request tag is of one request", true}
	SlotHeld     = Invariant{"slot", "an NCQ command slot (ata_queued_cmd) is of one command", true}
	NCQTag       = Invariant{"ncq-tag", "an NCQ tag is below 32", true}
	NCQAlone     = Invariant{"ncq-alone", "a command that isn't NCQ is at an ATA device alone", true}
	EndedOnce    = Invariant{"ended", "a request ends once", true}
	FreedOnce    = Invariant{"freed", "memory is freed once", true}
	UseAfterFree = Invariant{"use-after-free", "memory that was freed, or never there, isn't used", true}
	NoStall      = Invariant{"stall", "something will dispatch each request that waits", true}
	Counts       = Invariant{"counts", "at rest no token or tag is out, and the counters agree", true}
)

// Invariants returns all, in the order of their tables.
func Invariants() []Invariant {
	return []Invariant{DepthHeld, BusyHeeded, TokenHeld, TagHeld, SlotHeld, NCQTag, NCQAlone, EndedOnce, FreedOnce, UseAfterFree, NoStall, Counts}
}

// Violation is a breach of an invariant.
type Violation struct {
	Invariant Invariant `json:"invariant"`
	// Of says what it is about, where the same invariant can be broken in
	// different ways: "as attached", "written" (of a depth), "budget token".
	Of   string `json:"of"`
	What string `json:"what"`
	// Step and At (virtual nanoseconds) say when.
	Step int   `json:"step"`
	At   int64 `json:"at_ns"`
}

// same says whether both are of one kind.
func (v Violation) same(o Violation) bool { return v.Invariant == o.Invariant && v.Of == o.Of }

func (m *model) violate(i Invariant, of, format string, args ...any) {
	v := Violation{Invariant: i, Of: of, What: fmt.Sprintf(format, args...), Step: m.steps, At: int64(m.now)}
	if slices.ContainsFunc(m.violations, v.same) {
		return
	}
	m.violations = append(m.violations, v)
	m.tracef("BROKEN", "%s: %s", i.Name, v.What)
	if i.fatal || m.only != nil && m.only.same(v) {
		m.over = true
	}
}

func tokenName(token int) string {
	if token == queue.NoToken {
		return "no token"
	}
	return fmt.Sprintf("token %d", token)
}

// checkArrival is done for each command that comes to the driver.
func (m *model) checkArrival(rq *request) {
	s := rq.q.sdev
	if rq.gen == s.gen && s.newInFlight > s.heldDepth {
		m.violate(DepthHeld, s.depthFrom, "%s: %d commands in flight at queue_depth %d (%s)", s.name, s.newInFlight, s.heldDepth, s.depthFrom)
	}
	if s.deviceBlocked > 0 && s.blockedGen > 0 && rq.blocked == s.blockedGen {
		m.violate(BusyHeeded, "BUSY", "%s: command %d is sent while device_blocked is %d", s.name, rq.id, s.deviceBlocked)
	}
}

// idle is called when no task can go on before time passes: it says whether
// none ever will. What is at the driver ends or times out well within
// stallTime, so a run in which nothing comes of anything for that long is stuck,
// however busy it is with trying again.
func (m *model) idle() bool {
	outstanding := len(m.live) > 0 || m.scanning || !m.planned
	if outstanding && (m.first() == nil || m.now-m.lastProgress > stallTime) {
		m.violate(NoStall, m.stalled(), "nothing will dispatch what waits: %s", m.describe())
		return true
	}
	return false
}

// stalled says in what a run is stuck.
func (m *model) stalled() string {
	switch {
	case m.recovery:
		return "error handling"
	case m.scanning:
		return "scan"
	}
	return "requests"
}

// describe says who waits.
func (m *model) describe() string {
	var parts []string
	if m.scanning {
		parts = append(parts, "a scan or removal waits")
	}
	if m.recovery {
		parts = append(parts, fmt.Sprintf("the host is in recovery with %d failed", m.hostFailed))
	}
	for _, s := range m.devices {
		if s == nil {
			continue
		}
		waiting := 0
		for _, rq := range m.live {
			if rq.q == s.q {
				waiting++
			}
		}
		mapped := "no map"
		if s.budget.mapped() {
			mapped = fmt.Sprintf("a map of depth %d", s.budget.Depth)
		}
		parts = append(parts, fmt.Sprintf("%s has %d requests, %d of them at the driver, queue_depth %d and %s", s.name, waiting, len(s.flight), s.queueDepth, mapped))
	}
	return strings.Join(parts, "; ")
}

// checkRest is done when nothing is under way.
func (m *model) checkRest() {
	bad := func(format string, args ...any) { m.violate(Counts, "at rest", format, args...) }
	for _, g := range m.tags {
		if err := g.check(m.live); err != nil {
			bad("%v", err)
		}
	}
	if m.hostFailed != 0 || m.recovery || m.inFlight != 0 {
		bad("at rest %d commands are failed and %d in flight", m.hostFailed, m.inFlight)
	}
	for _, s := range m.devices {
		if s != nil {
			m.checkDevice(s)
		}
	}
}

// checkDevice is done when the device is at rest.
func (m *model) checkDevice(s *scsiDevice) {
	bad := func(format string, args ...any) {
		m.violate(Counts, "at rest", s.name+": "+format, args...)
	}
	if err := s.budget.Check(nil); err != nil {
		bad("%s: %v", s.budget.name, err)
	}
	if n := len(s.tokens); n != 0 {
		bad("%d tokens are out", n)
	}
	if s.iorequests != s.iodone {
		bad("iorequest_cnt %d, iodone_cnt %d", s.iorequests, s.iodone)
	}
	if s.q.usage != 0 || len(s.flight) != 0 || s.newInFlight != 0 {
		bad("%d requests and %d commands", s.q.usage, len(s.flight))
	}
	for _, h := range s.q.hctxs {
		if n := *h.nrActive(); n != 0 {
			bad("%d active requests in hardware queue %d", n, h.index)
		}
	}
}
