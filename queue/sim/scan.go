package sim

import "fmt"

// scan is the scan of one LUN: scsi_probe_and_add_lun, and what sd does first.
func (m *model) scan(t *task, slot int) {
	t.until(func() bool { return !m.scanning })
	if m.devices[slot] != nil {
		return
	}
	m.scanning = true
	s := &scsiDevice{
		m: m, slot: slot, name: fmt.Sprintf("sd%c", 'a'+slot),
		target: &scsiTarget{canQueue: m.host.TargetCanQueue},
		tokens: make(map[int]*request),
		flight: make(map[*request]bool),
		ramp:   ramp{lastFull: longAgo, lastRampUp: longAgo},
	}
	s.stats = newStats()
	s.depthFrom = "never set"
	m.devices[slot] = s
	if m.host.ATA != NoATA {
		s.port = &ataPort{m: m, s: s}
	}
	// scsi_alloc_sdev
	s.q = m.newQueue(s)
	depth := max(m.limits.HostCmdPerLUN(), 1)
	s.lookAtMap(t, depth)
	s.changeDepth(t, depth, "as attached")
	s.q.execute(t, opInquiry)
	// scsi_add_lun
	if m.limits.Configures {
		if m.limits.ConfiguredDepth > 0 {
			s.changeDepth(t, m.limits.ConfiguredDepth, "as attached")
		}
		s.lookAtMap(t, s.queueDepth)
	}
	s.q.execute(t, opInquiry) // VPD pages
	s.maxQueueDepth = s.queueDepth
	s.state = sdevRunning
	// sd
	s.q.execute(t, opRW)
	s.attached = true
	m.tracef(t.name, "%s: attached", s.name)
	m.scanning = false
}

// remove is __scsi_remove_device, and the device's release.
func (m *model) remove(t *task, slot int) {
	t.until(func() bool { return !m.scanning })
	s := m.devices[slot]
	if s == nil {
		return
	}
	m.scanning = true
	m.tracef(t.name, "%s: deleted", s.name)
	s.state = sdevCancel
	t.until(func() bool { return s.writing == 0 }) // device_del
	t.step()
	s.q.dying = true // del_gendisk: it waits for the requests there are
	s.q.freeze(t)
	s.state = sdevDel
	// blk_mq_destroy_queue
	for _, h := range s.q.hctxs {
		h.tagIdle()
	}
	m.devices[slot] = nil
	m.queues--
	m.unstarve(s)
	// scsi_device_dev_release
	m.freeMap(&s.budget)
	m.checkDevice(s)
	m.scanning = false
}
