package sim

import (
	"slices"
	"time"

	"lunlab/queue"
)

// Delays and counts of the SCSI midlayer.
const (
	queueDelay   = 3 * time.Millisecond // SCSI_QUEUE_DELAY
	maxBlocked   = 3                    // SCSI_DEFAULT_DEVICE_BLOCKED
	allowedTries = 5                    // SD_MAX_RETRIES
	rqTimeout    = time.Second          // sd's 30 s are only longer
)

// deviceState is sdev_state.
type deviceState int

const (
	sdevCreated deviceState = iota
	sdevRunning
	sdevCancel
	sdevDel
)

// scsiDevice is struct scsi_device with its queue.
//
// It keeps: the commands whose budget was taken since the depth was last
// lowered are queueDepth at most when they are at the driver; each token is of
// one command; at rest no token is out, and as many commands have ended as were
// sent. See check.
type scsiDevice struct {
	m      *model
	slot   int // of the host's device list: what a plan calls it
	name   string
	q      *requestQueue
	target *scsiTarget
	state  deviceState

	budget        bitmap
	queueDepth    int
	maxQueueDepth int
	heldDepth     int // queueDepth, or more while it is being changed
	changing      int // changes under way
	writing       int // writes to sysfs, which the device's deletion waits for
	gen           int // counts the lowerings
	depthFrom     string

	deviceBlocked int
	blockedGen    int
	restarts      int
	starved       bool
	requeueRun    work

	iorequests, iodone, ioerrors, iotimeouts int

	ramp
	attached bool
	port     *ataPort // nil: not an ATA device

	tokens      map[int]*request  // that hold one
	flight      map[*request]bool // at the driver
	newInFlight int               // of them, with a budget of this gen
	stats       DeviceStats
}

// scsiTarget is struct scsi_target.
type scsiTarget struct {
	canQueue int // 0: no limit
	busy     int
}

// command is struct scsi_cmnd, as part of its request.
type command struct {
	token    int
	gen      int // the device's when the token was taken
	blocked  int // the device's blockedGen then
	inFlight bool
	complete bool
	result   result
	retries  int
	aborted  bool // an abort was tried
	timeout  *timer
	answer   *timer
	answered bool
	qc       *queuedCmd
}

// result is how a command ended: cmd->result.
type result int

const (
	resultGood result = iota
	resultBusy
	resultTaskSetFull
	resultNoConnect
	resultTimeOut
	resultRequeue
)

func (r result) String() string {
	return [...]string{"GOOD", "BUSY", "TASK SET FULL", "no connect", "time-out", "requeue"}[r]
}

func (rq *request) setToken(token, gen int) {
	s := rq.q.sdev
	rq.token, rq.gen, rq.blocked = token, gen, s.blockedGen
	if token == queue.NoToken {
		return
	}
	if other := s.tokens[token]; other != nil {
		s.m.violate(TokenHeld, "given", "%s: token %d given to request %d while request %d has it", s.name, token, rq.id, other.id)
	}
	s.tokens[token] = rq
}

// getBudget is scsi_mq_get_budget: a token or -1, and the device's gen when it
// was begun.
func (s *scsiDevice) getBudget(t *task) (int, int) {
	gen := s.gen
	t.step()
	token := s.queueReady(t)
	if token >= 0 {
		return token, gen
	}
	s.restarts++
	t.step()
	if s.deviceBusy(t) == 0 {
		s.m.tracef(t.name, "%s: no budget and none in flight: runs again in 3 ms", s.name)
		s.q.delayRunHWQueues(queueDelay)
	} else {
		s.m.tracef(t.name, "%s: no budget: left to the next that ends", s.name)
	}
	return -1, gen
}

// queueReady is scsi_dev_queue_ready.
func (s *scsiDevice) queueReady(t *task) int {
	if !s.budget.mapped() {
		return queue.NoToken
	}
	token := s.m.get(t, &s.budget)
	if token < 0 {
		return -1
	}
	s.stats.token(token)
	if s.deviceBlocked == 0 {
		return token
	}
	t.step()
	if s.deviceBusy(t) > 1 {
		s.putToken(t, token)
		return -1
	}
	if s.deviceBlocked--; s.deviceBlocked > 0 {
		s.putToken(t, token)
		return -1
	}
	s.deviceBlocked = 0
	return token
}

// putToken is scsi_mq_put_budget.
func (s *scsiDevice) putToken(t *task, token int) {
	if s.budget.mapped() {
		s.m.put(t, &s.budget, token)
	}
	t.step()
}

// deviceBusy is scsi_device_busy: the map's weight, or a walk over all
// requests of the host, started or not.
func (s *scsiDevice) deviceBusy(t *task) int {
	if s.budget.mapped() {
		return s.budget.Weight()
	}
	n := 0
	s.m.iter(t, false, func(rq *request) {
		if rq.q.sdev == s {
			n++
		}
	})
	return n
}

// hostBusy is scsi_host_busy: the commands that were started.
func (m *model) hostBusy(t *task) int {
	n := 0
	m.iter(t, true, func(rq *request) {
		if rq.inFlight {
			n++
		}
	})
	return n
}

// queueRQ is scsi_queue_rq.
func (m *model) queueRQ(t *task, rq *request) status {
	s := rq.q.sdev
	t.step()
	if s.state == sdevCancel || s.state == sdevDel {
		m.tracef(t.name, "%s: request %d fails: the device is going", s.name, rq.id)
		rq.result = resultNoConnect
		s.dropToken(t, rq)
		s.runQueueAsync(t)
		return statusError
	}
	if m.targetReady(t, s) {
		if !m.recovery && m.hostReady(t, s, rq) {
			rq.dontPrep = true
			rq.complete = false
			rq.started = true
			timer := m.after(rqTimeout, true, func() { m.spawn(s.name+" time-out", 0, func(t *task) { m.timeOut(t, rq) }) })
			rq.timeout = timer
			t.step()
			why := m.dispatchCmd(t, rq)
			if why == accepted {
				return statusOK
			}
			m.setBlocked(s, why)
			timer.dead = true
			rq.started = false // blk_mq_handle_dev_resource requeues it
			m.decHostBusy(t, rq)
		}
		if s.target.canQueue > 0 {
			s.target.busy--
		}
	}
	s.dropToken(t, rq)
	return statusResource
}

func (s *scsiDevice) dropToken(t *task, rq *request) {
	token := rq.token
	rq.token = -1
	delete(s.tokens, token)
	s.putToken(t, token)
}

// targetReady is scsi_target_queue_ready.
func (m *model) targetReady(t *task, s *scsiDevice) bool {
	if s.target.canQueue <= 0 {
		return true
	}
	busy := s.target.busy
	s.target.busy++
	t.step()
	if busy >= s.target.canQueue {
		m.tracef(t.name, "%s: starved by its target's %d", s.name, s.target.canQueue)
		m.starve(s)
		s.target.busy--
		return false
	}
	return true
}

// starve puts the device on the host's starved list.
func (m *model) starve(s *scsiDevice) {
	if !s.starved {
		s.starved = true
		m.starvedList = append(m.starvedList, s)
	}
}

func (m *model) unstarve(s *scsiDevice) {
	s.starved = false
	m.starvedList = slices.DeleteFunc(m.starvedList, func(o *scsiDevice) bool { return o == s })
}

// hostReady is scsi_host_queue_ready.
func (m *model) hostReady(t *task, s *scsiDevice, rq *request) bool {
	if m.hostBlocked > 0 {
		if m.hostBusy(t) > 0 {
			m.starve(s)
			m.decHostBusy(t, rq)
			return false
		}
		if m.hostBlocked--; m.hostBlocked > 0 {
			m.decHostBusy(t, rq)
			return false
		}
		m.hostBlocked = 0
	}
	if s.starved {
		m.unstarve(s)
	}
	rq.inFlight = true
	return true
}

// setBlocked is scsi_set_blocked.
func (m *model) setBlocked(s *scsiDevice, why rejection) {
	switch why {
	case hostBusy:
		m.hostBlocked = m.host.maxHostBlocked()
	case deviceBusy:
		s.deviceBlocked = maxBlocked
		s.blockedGen++
	}
}

// decHostBusy is scsi_dec_host_busy.
func (m *model) decHostBusy(t *task, rq *request) {
	rq.inFlight = false
	if m.recovery {
		t.step()
		busy := m.hostBusy(t)
		if m.hostFailed > 0 {
			m.ehWakeup(busy)
		}
	}
}

// unbusy is scsi_device_unbusy.
func (s *scsiDevice) unbusy(t *task, rq *request) {
	s.m.decHostBusy(t, rq)
	if s.target.canQueue > 0 {
		s.target.busy--
	}
	s.dropToken(t, rq)
}

// runQueueAsync is scsi_run_queue_async, which whatever ended calls.
func (s *scsiDevice) runQueueAsync(t *task) {
	m := s.m
	if m.recovery {
		return
	}
	if len(m.starvedList) > 0 {
		m.modDelayed(&s.requeueRun, s.name+" starved", 0, 0, func(t *task) { m.runQueue(t, s) })
		return
	}
	old := s.restarts
	t.step()
	if old > 0 && s.restarts == old {
		s.restarts = 0
		s.q.runHWQueues(t, true)
	}
}

// runQueue is scsi_run_queue.
func (m *model) runQueue(t *task, s *scsiDevice) {
	if len(m.starvedList) > 0 {
		list := m.starvedList
		m.starvedList = nil
		for i, o := range list {
			if m.hostBlocked > 0 {
				m.starvedList = append(m.starvedList, list[i:]...)
				break
			}
			if o.target.canQueue > 0 && o.target.busy >= o.target.canQueue {
				m.starvedList = append(m.starvedList, o)
				continue
			}
			o.starved = false
			t.step()
			if !o.q.dying {
				o.q.runHWQueues(t, false)
			}
		}
	}
	s.q.kickRequeue()
}

// dispatchCmd is scsi_dispatch_cmd.
func (m *model) dispatchCmd(t *task, rq *request) rejection {
	s := rq.q.sdev
	s.iorequests++
	why := m.queueCommand(t, rq)
	if why != accepted {
		s.iorequests--
		m.tracef(t.name, "%s: the driver refuses request %d: %s", s.name, rq.id, why)
	}
	return why
}

// done is scsi_done, then scsi_complete.
func (m *model) done(t *task, rq *request, r result) {
	s := rq.q.sdev
	if rq.complete {
		return // it has timed out
	}
	rq.complete = true
	rq.result = r
	m.leave(rq)
	if rq.timeout != nil {
		rq.timeout.dead = true
	}
	t.step()
	s.iodone++
	if r != resultGood {
		s.ioerrors++
	}
	switch r {
	case resultGood:
		s.rampUp(t)
		m.finishCommand(t, rq)
	case resultTaskSetFull:
		m.handleQueueFull(t, s)
		m.queueInsert(t, rq)
	case resultBusy, resultRequeue:
		m.queueInsert(t, rq)
	default:
		m.finishCommand(t, rq)
	}
}

// queueInsert is scsi_queue_insert, for a busy device or a retry.
func (m *model) queueInsert(t *task, rq *request) {
	s := rq.q.sdev
	m.setBlocked(s, deviceBusy)
	s.unbusy(t, rq)
	m.requeueRequest(t, rq, !m.recovery)
}

// finishCommand is scsi_finish_command and what follows from it.
func (m *model) finishCommand(t *task, rq *request) {
	s := rq.q.sdev
	s.unbusy(t, rq)
	m.hostBlocked, s.deviceBlocked = 0, 0
	t.step()
	rq.err = rq.result != resultGood
	m.freeRequest(t, rq)
	s.runQueueAsync(t)
}
