package sim

import "time"

// abortDelay is how long after a time-out an abort is sent (HZ / 100).
const abortDelay = 10 * time.Millisecond

// timeOut is scsi_timeout.
func (m *model) timeOut(t *task, rq *request) {
	if rq.complete || rq.ended {
		return
	}
	s := rq.q.sdev
	m.progress()
	s.iotimeouts++
	m.tracef(t.name, "%s: command %d has timed out", s.name, rq.id)
	if s.port != nil { // ata_scsi_eh_timed_out
		own := s.port.deferred != nil && s.port.deferred.rq == rq
		s.port.requeueDeferred(t)
		if own || rq.complete {
			return
		}
	}
	rq.complete = true
	s.iodone++
	rq.result = resultTimeOut
	if !m.host.Aborts || rq.aborted {
		m.ehAdd(t, rq)
		return
	}
	rq.aborted = true
	t.delay(abortDelay)
	// scmd_eh_abort_handler
	if m.luns[s.slot].abortFail {
		m.ehAdd(t, rq)
		return
	}
	m.endFailed(t, rq)
}

// endFailed tries the command again, or ends it.
func (m *model) endFailed(t *task, rq *request) {
	m.leave(rq)
	if rq.qc != nil {
		rq.qc.complete(t)
	}
	if rq.retries++; rq.retries <= allowedTries {
		m.queueInsert(t, rq)
		return
	}
	m.finishCommand(t, rq)
}

// ehAdd is scsi_eh_scmd_add: the host goes into recovery.
func (m *model) ehAdd(t *task, rq *request) {
	m.recovery = true
	m.ehList = append(m.ehList, rq)
	m.tracef(t.name, "command %d goes to the error handler", rq.id)
	m.spawn("rcu", t.cpu, func(t *task) { // scsi_eh_inc_host_failed
		m.hostFailed++
		t.step()
		m.ehWakeup(m.hostBusy(t))
	})
}

// ehWakeup is scsi_eh_wakeup.
func (m *model) ehWakeup(busy int) {
	if busy == m.hostFailed {
		m.ehWoken = true
		m.eh.wake()
	}
}

// errorHandler is scsi_error_handler: it works when all commands that the host
// has are failed ones.
func (m *model) errorHandler(t *task) {
	for {
		m.ehWoken = false
		if m.hostFailed == 0 || m.hostFailed != m.hostBusy(t) {
			if !m.ehWoken {
				t.sleep()
			}
			continue
		}
		m.tracef(t.name, "error handler: %d commands", m.hostFailed)
		list := m.ehList
		m.ehList = nil
		for _, rq := range list {
			t.step()
			m.endFailed(t, rq)
		}
		m.hostFailed = 0
		t.step()
		m.recovery = false
		m.progress()
		// scsi_run_host_queues
		for _, s := range m.devices {
			if s != nil && s.state != sdevDel {
				m.runQueue(t, s)
			}
		}
	}
}
