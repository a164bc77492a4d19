package sim

import (
	"time"

	"lunlab/queue"
)

const (
	jiffy        = 4 * time.Millisecond // HZ 250
	rampUpPeriod = 120 * time.Second    // SCSI_DEFAULT_RAMP_UP_PERIOD
	longAgo      = -time.Hour
)

// ramp is a device's record of TASK SET FULL.
type ramp struct {
	lastFull      time.Duration
	lastFullDepth int
	lastFullCount int
	lastRampUp    time.Duration
}

// lookAtMap is scsi_realloc_sdev_budget_map.
func (s *scsiDevice) lookAtMap(t *task, depth int) {
	m := s.m
	action, reason := m.rules.MapAtLook(m.limits, depth, s.budget.mapped(), s.budget.Shift)
	m.tracef(t.name, "%s: budget map at depth %d: %s", s.name, depth, reason)
	switch action {
	case queue.MapFreed:
		s.q.freeze(t)
		m.freeMap(&s.budget)
		s.q.unfreeze()
	case queue.MapAllocated:
		s.stats.MinToken, s.stats.MaxToken = -1, -1
		depth = min(depth, m.limits.DeviceMax())
		old := s.budget
		if old.mapped() {
			s.q.freeze(t)
		}
		s.budget = m.initNode(s.name+"'s budget map", m.limits.DeviceMax(), queue.MapShift(depth))
		m.resize(&s.budget, depth)
		if old.mapped() {
			m.freeMap(&old)
			s.q.unfreeze()
		}
	}
}

// changeDepth is scsi_change_queue_depth: whether the kernel accepts. from says
// where the depth comes from.
func (s *scsiDevice) changeDepth(t *task, depth int, from string) bool {
	m := s.m
	if m.rules.DepthNeedsMap && !s.budget.mapped() {
		m.tracef(t.name, "%s: queue_depth %d refused without a map", s.name, depth)
		return false
	}
	depth = min(depth, m.limits.DeviceMax())
	s.changing++
	s.heldDepth = max(s.heldDepth, depth)
	if depth > 0 {
		s.queueDepth, s.depthFrom = depth, from
	}
	t.step()
	switch m.rules.MapAtChange(m.limits, depth, s.budget.mapped()) {
	case queue.MapFreed:
		m.freeMap(&s.budget)
	case queue.MapResized:
		m.resize(&s.budget, s.queueDepth)
	}
	if s.changing--; s.changing == 0 {
		if s.queueDepth < s.heldDepth {
			s.gen++
			s.newInFlight = 0
		}
		s.heldDepth = s.queueDepth
		s.stats.PeakAtDepth = 0
	}
	m.tracef(t.name, "%s: queue_depth is %d (%s)", s.name, s.queueDepth, from)
	return true
}

// writeDepth is a write to queue_depth in sysfs.
func (s *scsiDevice) writeDepth(t *task, depth int) bool {
	l := s.m.limits
	if depth < 1 || depth > l.CanQueue {
		return false
	}
	if l.ClampsDepth {
		depth = min(depth, l.HostCmdPerLUN())
	}
	if s.port != nil {
		if depth > maxATAQueue {
			return false
		}
		s.port.ncqOff = depth == 1
	}
	if !s.changeDepth(t, depth, "written") {
		return false
	}
	t.step()
	s.maxQueueDepth = s.queueDepth
	return true
}

// tracked says whether the kernel tracks TASK SET FULL for the device.
func (s *scsiDevice) tracked() bool {
	return s.m.host.Tracks && (s.budget.mapped() || !s.m.rules.TrackingNeedsMap)
}

// handleQueueFull is scsi_handle_queue_full. Each device has a target of its
// own here.
func (m *model) handleQueueFull(t *task, s *scsiDevice) {
	window := 16 * jiffy
	if !s.tracked() || m.now/window == s.lastFull/window && s.lastFull != longAgo {
		return
	}
	s.lastFull = m.now
	if depth := s.queueDepth - 1; s.lastFullDepth != depth {
		s.lastFullCount, s.lastFullDepth = 1, depth
	} else {
		s.lastFullCount++
	}
	if s.lastFullCount > 10 {
		s.changeDepth(t, s.lastFullDepth, "lowered by TASK SET FULL")
	}
}

// rampUp is scsi_handle_queue_ramp_up.
func (s *scsiDevice) rampUp(t *task) {
	now := s.m.now
	if !s.tracked() || s.queueDepth >= s.maxQueueDepth || now < s.lastRampUp+rampUpPeriod || now < s.lastFull+rampUpPeriod {
		return
	}
	s.lastRampUp = now
	s.changeDepth(t, s.queueDepth+1, "ramped up")
}
