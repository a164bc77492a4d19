// Package sim is an executable model of what Linux does between a request and a
// SCSI host's driver: request tags (in sbitmaps, for each hardware queue or
// host-wide), budget maps, dispatch, restarts and starved devices, BUSY and
// TASK SET FULL, changes of queue_depth, scan and removal, error handling, and
// libata's command slots. It runs under the rules of package queue, in virtual
// time, with a seeded scheduler that interleaves CPUs at the kernel's atomic
// steps, and checks the same invariants in each run.
//
// Functions and fields have the kernel's names. What is left out: I/O schedulers
// (each queue has "none"), plugging and merging, CPU hotplug, reserved tags, and
// the steps inside of error handling (a failed command is tried again).
package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"lunlab/queue"
)

// stallTime is how long nothing may come of anything while requests wait, before
// they count as stuck.
const stallTime = 5 * time.Second

// model is a host with its devices, in one run.
type model struct {
	machine
	rules  queue.Rules
	host   Host
	limits queue.Limits
	cpus   int
	// noFairShares: see [Case].
	noFairShares bool

	tags     []*tags
	queues   int
	live     []*request // that have a tag
	requests int

	devices []*scsiDevice // by slot
	luns    []lun

	hostBlocked int
	starvedList []*scsiDevice
	refuses     int // so many commands more the driver refuses

	recovery   bool
	hostFailed int
	ehList     []*request
	eh         *task
	ehWoken    bool

	scanning bool
	begun    int  // parts of the plan that go on
	planned  bool // the plan has nothing more to begin
	inFlight int

	lastProgress time.Duration
	observed     []DeviceStats
	violations   []Violation
	only         *Violation // stop at one like this
}

func newModel(r queue.Rules, h Host, seed uint64) *model {
	m := &model{
		rules: r, host: h, limits: h.Limits,
		cpus:    max(h.Limits.Queues(), minCPUs),
		devices: make([]*scsiDevice, MaxDevices),
		luns:    make([]lun, MaxDevices),
	}
	m.rng = rand.New(rand.NewPCG(seed, 1))
	sets := m.limits.Queues()
	if m.limits.HostTagset {
		sets = 1
	}
	for i := range sets {
		name := "the tag set"
		if sets > 1 {
			name = fmt.Sprintf("hardware queue %d's tags", i)
		}
		m.tags = append(m.tags, m.newTags(name, min(m.limits.CanQueue, queue.MaxTags)))
	}
	m.eh = m.spawn("error handler", 0, m.errorHandler)
	return m
}

// progress notes that something has come of the waiting.
func (m *model) progress() { m.lastProgress = m.now }
