package sim

import (
	"slices"
	"time"
)

// Delays of the block layer: BLK_MQ_BUDGET_DELAY, BLK_MQ_RESOURCE_DELAY, and
// the time after which an idle queue's time-out work gives up its share of the
// tags.
const (
	budgetDelay   = 3 * time.Millisecond
	resourceDelay = 3 * time.Millisecond
	idleDelay     = 5 * time.Second
)

// status is as much of blk_status_t as the dispatch depends on.
type status int

const (
	statusOK status = iota
	statusResource
	statusDevResource
	statusError
)

// requestQueue is struct request_queue, without an I/O scheduler.
type requestQueue struct {
	m     *model
	sdev  *scsiDevice
	hctxs []*hwCtx

	usage    int // q_usage_counter
	frozen   int // depth of freezes
	quiesced int
	dying    bool

	requeue     []*request
	requeueWork work

	tagActive bool
	inUse     int // nr_active
}

// hwCtx is struct blk_mq_hw_ctx with its software queues, which are one list
// here.
type hwCtx struct {
	q     *requestQueue
	index int
	tags  *tags

	ctx          []*request
	dispatch     []*request
	restart      bool // BLK_MQ_S_SCHED_RESTART
	dispatchBusy int
	runWork      work

	tagActive bool
	inUse     int  // nr_active
	idling    bool // a look for idleness is due
}

// work is a struct delayed_work: it runs once for any number of requests to
// run it, and never twice at a time.
type work struct {
	timer   *timer
	queued  bool
	running bool
}

// request is struct request with its struct scsi_cmnd.
type request struct {
	id   int
	q    *requestQueue
	hctx *hwCtx
	op   reqOp
	tag  int
	// liveAt is its place in the model's list of requests.
	liveAt int

	started  bool
	dontPrep bool
	ended    bool
	err      bool
	waiter   *task // of blk_execute_rq

	command
}

// reqOp is what a request is for.
type reqOp int

const (
	opRW      reqOp = iota // a read or write: queued (NCQ) where the device can
	opFlush                // a command that an ATA drive can't queue
	opInquiry              // part of a scan: a passthrough command, which libata answers itself
)

func (o reqOp) String() string { return [...]string{"rw", "flush", "inquiry"}[o] }

func (m *model) newQueue(sdev *scsiDevice) *requestQueue {
	q := &requestQueue{m: m, sdev: sdev}
	for i := range m.limits.Queues() {
		q.hctxs = append(q.hctxs, &hwCtx{q: q, index: i, tags: m.tags[i%len(m.tags)]})
	}
	m.queues++
	return q
}

// sharing is BLK_MQ_F_TAG_QUEUE_SHARED: more than one queue uses the tags.
func (m *model) sharing() bool { return m.queues > 1 }

// modDelayed is kblockd_mod_delayed_work_on.
func (m *model) modDelayed(w *work, name string, cpu int, d time.Duration, f func(*task)) {
	if w.queued { // it is about to start; the kernel would take it back
		return
	}
	if w.timer != nil {
		w.timer.dead = true
		w.timer = nil
	}
	start := func() {
		w.timer = nil
		w.queued = true
		m.spawn(name, cpu, func(t *task) {
			t.until(func() bool { return !w.running })
			w.queued, w.running = false, true
			f(t)
			w.running = false
		})
	}
	if d == 0 {
		start()
		return
	}
	w.timer = m.after(d, false, start)
}

// allocRequest is blk_mq_alloc_request: it waits for a thaw and for a tag. It
// returns nil if the queue is dying.
func (q *requestQueue) allocRequest(t *task, op reqOp) *request {
	m := q.m
	t.until(func() bool { return q.frozen == 0 || q.dying })
	if q.dying {
		return nil
	}
	q.usage++
	h := q.hctxs[t.cpu%len(q.hctxs)]
	h.tagBusy()
	nr := m.getTag(t, h)
	m.requests++
	rq := &request{id: m.requests, q: q, hctx: h, op: op, tag: nr}
	rq.token = -1
	if other := h.tags.rqs[nr]; other != nil {
		m.violate(TagHeld, "given", "%s: tag %d given to request %d while request %d has it", h.tags.name, nr, rq.id, other.id)
	}
	h.tags.rqs[nr] = rq
	*h.nrActive()++
	rq.liveAt = len(m.live)
	m.live = append(m.live, rq)
	return rq
}

// submit is blk_mq_submit_bio.
func (q *requestQueue) submit(t *task, op reqOp) {
	rq := q.allocRequest(t, op)
	if rq == nil {
		return
	}
	h := rq.hctx
	if h.dispatchBusy > 0 && len(q.hctxs) == 1 {
		h.insert(rq)
		t.step()
		h.runHWQueue(t, true)
		return
	}
	if q.quiesced > 0 || !h.getBudget(t, rq) {
		h.insert(rq)
		t.step()
		h.runHWQueue(t, false)
		return
	}
	switch q.m.queueRQ(t, rq) {
	case statusOK:
	case statusError:
		rq.err = true
		q.m.freeRequest(t, rq)
	default:
		h.dispatch = append(h.dispatch, rq)
		t.step()
		h.runHWQueue(t, false)
	}
}

// execute is blk_execute_rq: it waits for the request's end, and reports
// success.
func (q *requestQueue) execute(t *task, op reqOp) bool {
	rq := q.allocRequest(t, op)
	if rq == nil {
		return false
	}
	rq.waiter = t
	rq.hctx.dispatch = slices.Insert(rq.hctx.dispatch, 0, rq)
	t.step()
	rq.hctx.runHWQueue(t, false)
	t.until(func() bool { return rq.ended })
	return !rq.err
}

func (h *hwCtx) insert(rq *request) { h.ctx = append(h.ctx, rq) }

// runHWQueue is blk_mq_run_hw_queue.
func (h *hwCtx) runHWQueue(t *task, async bool) {
	if h.q.quiesced > 0 || len(h.dispatch)+len(h.ctx) == 0 {
		return
	}
	if async || t.cpu%len(h.q.hctxs) != h.index {
		h.delayRun(0)
		return
	}
	h.dispatchRequests(t)
}

// delayRun is blk_mq_delay_run_hw_queue.
func (h *hwCtx) delayRun(d time.Duration) {
	h.q.m.modDelayed(&h.runWork, h.q.sdev.name+" run", h.index, d, func(t *task) {
		if h.q.quiesced == 0 && !h.q.gone() {
			h.dispatchRequests(t)
		}
	})
}

func (q *requestQueue) gone() bool { return q.dying && q.usage == 0 }

func (q *requestQueue) runHWQueues(t *task, async bool) {
	for _, h := range q.hctxs {
		h.runHWQueue(t, async)
	}
}

func (q *requestQueue) delayRunHWQueues(d time.Duration) {
	for _, h := range q.hctxs {
		h.delayRun(d)
	}
}

// dispatchRequests is blk_mq_sched_dispatch_requests.
func (h *hwCtx) dispatchRequests(t *task) {
	if h.q.quiesced > 0 {
		return
	}
	for range 2 {
		if h.dispatchOnce(t) {
			return
		}
	}
	h.runHWQueue(t, true)
}

// dispatchOnce is __blk_mq_sched_dispatch_requests: false is its EAGAIN.
func (h *hwCtx) dispatchOnce(t *task) bool {
	busy := h.dispatchBusy > 0
	if list := h.dispatch; len(list) > 0 {
		h.dispatch = nil
		h.restart = true
		t.step()
		if !h.dispatchList(t, list, false) {
			return true
		}
		busy = true
	}
	if busy {
		return h.dispatchCtx(t)
	}
	list := h.ctx
	h.ctx = nil
	h.dispatchList(t, list, false)
	return true
}

// dispatchCtx is blk_mq_do_dispatch_ctx: one at a time, the budget first.
func (h *hwCtx) dispatchCtx(t *task) bool {
	for {
		if len(h.dispatch) > 0 {
			return false
		}
		if len(h.ctx) == 0 {
			return true
		}
		token, gen := h.q.sdev.getBudget(t)
		if token < 0 {
			return true
		}
		if len(h.ctx) == 0 {
			h.q.sdev.putToken(t, token)
			h.q.delayRunHWQueues(budgetDelay)
			return true
		}
		rq := h.ctx[0]
		h.ctx = h.ctx[1:]
		rq.setToken(token, gen)
		if !h.dispatchList(t, []*request{rq}, true) {
			return true
		}
	}
}

func (h *hwCtx) getBudget(t *task, rq *request) bool {
	token, gen := h.q.sdev.getBudget(t)
	if token >= 0 {
		rq.setToken(token, gen)
	}
	return token >= 0
}

// dispatchList is blk_mq_dispatch_rq_list: whether all of the list was queued.
func (h *hwCtx) dispatchList(t *task, list []*request, budget bool) bool {
	if len(list) == 0 {
		return false
	}
	needsResource := false
	for len(list) > 0 {
		rq := list[0]
		if !budget && !h.getBudget(t, rq) {
			needsResource = true
			break
		}
		budget = false
		s := h.q.m.queueRQ(t, rq)
		if s == statusResource || s == statusDevResource {
			needsResource = s == statusResource
			break
		}
		list = list[1:]
		if s == statusError {
			rq.err = true
			h.q.m.freeRequest(t, rq)
		}
	}
	busy := len(list) > 0
	if busy {
		h.dispatch = append(h.dispatch, list...)
		t.step()
		if !h.restart {
			h.runHWQueue(t, true)
		} else if needsResource {
			h.delayRun(resourceDelay)
		}
	}
	if h.dispatchBusy > 0 || busy {
		h.dispatchBusy *= 7
		if busy {
			h.dispatchBusy += 1 << 4
		}
		h.dispatchBusy /= 8
	}
	return !busy
}

// requeueRequest is blk_mq_requeue_request. Without an I/O scheduler the
// request keeps its tag.
func (m *model) requeueRequest(t *task, rq *request, kick bool) {
	rq.started = false
	rq.q.requeue = append(rq.q.requeue, rq)
	t.step()
	if kick {
		rq.q.kickRequeue()
	}
}

func (q *requestQueue) kickRequeue() {
	q.m.modDelayed(&q.requeueWork, q.sdev.name+" requeue", 0, 0, func(t *task) {
		list := q.requeue
		q.requeue = nil
		for _, rq := range list {
			if rq.dontPrep {
				rq.hctx.dispatch = append(rq.hctx.dispatch, rq)
			} else {
				rq.hctx.ctx = slices.Insert(rq.hctx.ctx, 0, rq)
			}
		}
		t.step()
		q.runHWQueues(t, false)
	})
}

// freeRequest is blk_mq_end_request.
func (m *model) freeRequest(t *task, rq *request) {
	if rq.ended {
		m.violate(EndedOnce, "request", "request %d of %s ended a second time", rq.id, rq.q.sdev.name)
		return
	}
	h := rq.hctx
	*h.nrActive()--
	rq.started = false
	nr := rq.tag
	rq.tag = -1
	last := len(m.live) - 1
	m.live[rq.liveAt] = m.live[last]
	m.live[rq.liveAt].liveAt = rq.liveAt
	m.live = m.live[:last]
	h.tags.rqs[nr] = nil
	m.putTag(t, h.tags, nr)
	rq.ended = true
	m.progress()
	if h.restart { // blk_mq_sched_restart
		h.restart = false
		t.step()
		h.runHWQueue(t, true)
	}
	rq.q.usage--
	if *h.nrActive() == 0 && !h.idling {
		h.idling = true
		m.after(idleDelay, true, func() {
			h.idling = false
			if *h.nrActive() == 0 {
				h.tagIdle()
			}
		})
	}
}

// freeze is blk_mq_freeze_queue.
func (q *requestQueue) freeze(t *task) {
	q.frozen++
	if q.frozen == 1 {
		q.runHWQueues(t, false)
	}
	t.until(func() bool { return q.usage == 0 })
}

func (q *requestQueue) unfreeze() { q.frozen-- }

// quiesce is blk_mq_quiesce_queue.
func (q *requestQueue) quiesce() { q.quiesced++ }

func (q *requestQueue) unquiesce(t *task) {
	if q.quiesced--; q.quiesced == 0 {
		t.step()
		q.runHWQueues(t, true)
	}
}
