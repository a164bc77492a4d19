package sim

import (
	"fmt"
	"slices"

	"lunlab/queue"
)

// tags is struct blk_mq_tags with its sbitmap_queue: the request tags of one
// hardware queue, or of all of a host with host-wide tags.
//
// It keeps: a tag is of one request at a time; when no request is left, all
// tags are free and no queue counts as active with requests. See check.
type tags struct {
	name string
	bits bitmap
	rqs  []*request // by tag

	activeQueues int
	// The wait queues, and the counters of the batched wake-ups.
	ws                         [queue.TagWaitQueues][]*tagWaiter
	wakeIndex, waitIndex       int
	wsActive                   int
	completionCount, wakeCount int
	wakeBatch                  int
}

type tagWaiter struct {
	t     *task
	woken bool
}

func (m *model) newTags(name string, depth int) *tags {
	g := &tags{name: name, bits: m.initNode(name, depth, -1), rqs: make([]*request, depth)}
	g.setWakeBatch(1)
	return g
}

func (g *tags) setWakeBatch(users int) {
	g.wakeBatch = queue.WakeBatch(g.bits.Depth, users)
}

// tagBusy is blk_mq_tag_busy: the queue takes part in the sharing.
func (h *hwCtx) tagBusy() {
	if !h.q.m.sharing() {
		return
	}
	active := h.active()
	if *active {
		return
	}
	*active = true
	h.tags.activeQueues++
	h.tags.setWakeBatch(h.tags.activeQueues)
}

// tagIdle is blk_mq_tag_idle, which the queue's time-out work calls.
func (h *hwCtx) tagIdle() {
	active := h.active()
	if !*active {
		return
	}
	*active = false
	h.tags.activeQueues--
	h.tags.setWakeBatch(max(h.tags.activeQueues, 1))
	for i := range h.tags.ws {
		h.tags.wake(i, len(h.tags.ws[i]))
	}
}

func (h *hwCtx) active() *bool {
	if h.q.m.limits.HostTagset {
		return &h.q.tagActive
	}
	return &h.tagActive
}

func (h *hwCtx) nrActive() *int {
	if h.q.m.limits.HostTagset {
		return &h.q.inUse
	}
	return &h.inUse
}

// mayQueue is hctx_may_queue: a fair share of tags that are shared.
func (h *hwCtx) mayQueue() bool {
	if h.q.m.noFairShares || !h.q.m.sharing() || !*h.active() {
		return true
	}
	return *h.nrActive() < queue.FairTags(h.tags.bits.Depth, h.tags.activeQueues)
}

func (h *hwCtx) tryTag(t *task) int {
	if !h.mayQueue() {
		return -1
	}
	t.step()
	return h.q.m.get(t, &h.tags.bits)
}

// getTag is blk_mq_get_tag: it waits until there is a tag.
func (m *model) getTag(t *task, h *hwCtx) int {
	g := h.tags
	if nr := h.tryTag(t); nr >= 0 {
		return nr
	}
	for {
		h.runHWQueue(t, false)
		if nr := h.tryTag(t); nr >= 0 {
			return nr
		}
		w, i := &tagWaiter{t: t}, g.waitIndex
		g.waitIndex = (i + 1) % queue.TagWaitQueues
		g.ws[i] = append(g.ws[i], w)
		g.wsActive++
		t.step()
		nr := h.tryTag(t)
		if nr < 0 && !w.woken {
			m.tracef(t.name, "waits for a tag of %s", g.name)
			t.sleep()
		}
		if !w.woken {
			g.ws[i] = slices.DeleteFunc(g.ws[i], func(o *tagWaiter) bool { return o == w })
		}
		g.wsActive--
		if nr >= 0 {
			return nr
		}
	}
}

// putTag is blk_mq_put_tag.
func (m *model) putTag(t *task, g *tags, nr int) {
	m.put(t, &g.bits, nr)
	t.step()
	g.wakeUp(1)
}

// wakeUp is sbitmap_queue_wake_up.
func (g *tags) wakeUp(nr int) {
	if g.wsActive == 0 {
		return
	}
	g.completionCount += nr
	if g.completionCount-g.wakeCount < g.wakeBatch {
		return
	}
	g.wakeCount += g.wakeBatch
	left := g.wakeBatch
	for range queue.TagWaitQueues {
		i := g.wakeIndex
		g.wakeIndex = (i + 1) % queue.TagWaitQueues
		if left -= g.wake(i, left); left == 0 {
			return
		}
	}
}

// wake wakes up to n waiters of a wait queue and says how many it woke.
func (g *tags) wake(i, n int) int {
	n = min(n, len(g.ws[i]))
	for _, w := range g.ws[i][:n] {
		w.woken = true
		w.t.wake()
	}
	g.ws[i] = g.ws[i][n:]
	return n
}

// iter is blk_mq_tagset_iter, or blk_mq_tagset_busy_iter if only those that
// were started count. Other CPUs can come between the sets.
func (m *model) iter(t *task, started bool, f func(*request)) {
	for i, g := range m.tags {
		if i > 0 {
			t.step()
		}
		g.bits.Each(func(nr int) {
			if rq := g.rqs[nr]; rq != nil && rq.tag == nr && (!started || rq.started) {
				f(rq)
			}
		})
	}
}

// check says what of the tags is broken.
func (g *tags) check(live []*request) error {
	holders := make(map[int]int)
	for _, rq := range live {
		if rq.hctx.tags == g && rq.tag >= 0 {
			holders[rq.tag]++
		}
	}
	if err := g.bits.Check(holders); err != nil {
		return fmt.Errorf("%s: %w", g.name, err)
	}
	if g.wsActive > 0 && len(live) == 0 {
		return fmt.Errorf("%s: %d wait for a tag while all are free", g.name, g.wsActive)
	}
	return nil
}
