package sim

import "lunlab/queue"

// maxATAQueue is ATA_MAX_QUEUE: a device has that many command slots.
const maxATAQueue = 32

// ataPort is struct ata_port with its one link and device.
//
// It keeps: an ata_queued_cmd is of one command at a time, its tag is below
// maxATAQueue, and a command that isn't queued (NCQ) is at the device alone.
type ataPort struct {
	m        *model
	s        *scsiDevice
	ncqOff   bool
	slots    [maxATAQueue]*queuedCmd // by tag
	sactive  uint32
	active   *queuedCmd // the one that isn't NCQ
	deferred *queuedCmd
}

// queuedCmd is struct ata_queued_cmd.
type queuedCmd struct {
	p   *ataPort
	rq  *request
	tag int
	ncq bool
}

// queueCommand is ata_scsi_queuecmd or ata_sas_queuecmd.
func (p *ataPort) queueCommand(t *task, rq *request) rejection {
	m := p.m
	if rq.op == opInquiry { // libata answers it
		m.spawn(p.s.name+" libata", t.cpu, func(t *task) { m.done(t, rq, resultGood) })
		return accepted
	}
	// ata_scsi_qc_new
	tag, what := rq.tag, "request tag"
	if m.host.ATA == SASHost && m.rules.LibataTag == queue.LibataBudgetToken {
		tag, what = rq.token, "budget token"
	}
	if tag < 0 || tag >= maxATAQueue {
		m.violate(NCQTag, what, "%s: libata is given %s %d as an NCQ tag, which must be below %d", p.s.name, what, tag, maxATAQueue)
		m.spawn(p.s.name+" libata", t.cpu, func(t *task) { m.done(t, rq, resultTaskSetFull) })
		return accepted
	}
	if other := p.slots[tag]; other != nil {
		m.violate(SlotHeld, what, "%s: requests %d (hardware queue %d) and %d (hardware queue %d) both have %s %d: they share an ata_queued_cmd",
			p.s.name, other.rq.id, other.rq.hctx.index, rq.id, rq.hctx.index, what, tag)
		return accepted
	}
	qc := &queuedCmd{p: p, rq: rq, tag: tag, ncq: rq.op == opRW && !p.ncqOff}
	// ata_scsi_qc_issue
	switch {
	case p.deferred != nil:
		return deviceBusy
	case p.mustWait(qc) && qc.ncq:
		return deviceBusy
	case p.mustWait(qc):
		p.slots[tag], rq.qc = qc, qc
		p.deferred = qc
		m.tracef(t.name, "%s: command %d isn't NCQ: waits in the port", p.s.name, rq.id)
	default:
		p.slots[tag], rq.qc = qc, qc
		p.issue(qc)
	}
	return accepted
}

// mustWait is ata_std_qc_defer.
func (p *ataPort) mustWait(qc *queuedCmd) bool {
	return p.active != nil || !qc.ncq && p.sactive != 0
}

// issue is ata_qc_issue.
func (p *ataPort) issue(qc *queuedCmd) {
	if p.active != nil || !qc.ncq && p.sactive != 0 {
		p.m.violate(NCQAlone, "issued", "%s: command %d is issued beside one that it can't be beside", p.s.name, qc.rq.id)
	}
	if qc.ncq {
		p.sactive |= 1 << qc.tag
	} else {
		p.active = qc
	}
	p.m.arrive(qc.rq)
}

// complete is ata_qc_complete: the slot is free, and a deferred command can
// go.
func (qc *queuedCmd) complete(t *task) {
	p := qc.p
	if p.slots[qc.tag] != qc {
		return
	}
	p.slots[qc.tag], qc.rq.qc = nil, nil
	if qc.ncq {
		p.sactive &^= 1 << qc.tag
	} else {
		p.active = nil
	}
	if p.m.recovery {
		p.requeueDeferred(t)
	}
	if d := p.deferred; d != nil && !p.mustWait(d) {
		p.m.spawn(p.s.name+" deferred", t.cpu, func(t *task) {
			if p.deferred == d && !p.mustWait(d) {
				p.deferred = nil
				p.issue(d)
			}
		})
	}
}

// requeueDeferred is ata_scsi_requeue_deferred_qc: the error handler would wait
// for the deferred command, and that for the error handler.
func (p *ataPort) requeueDeferred(t *task) {
	d := p.deferred
	if d == nil {
		return
	}
	p.deferred, p.slots[d.tag], d.rq.qc = nil, nil, nil
	p.m.done(t, d.rq, resultRequeue)
}
