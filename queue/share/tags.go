package share

import (
	"math/rand/v2"

	"lunlab/queue"
	"lunlab/queue/sbitmap"
)

// tags is the host's request tags: an sbitmap and its wait queues.
//
// It keeps: a tag is of one command, and each drive's count is of the tags that
// its commands have.
type tags struct {
	bits   sbitmap.Map
	holder []*command // by tag

	activeQueues int
	wakeBatch    int
	waiting      [queue.TagWaitQueues][]*job
	waitIndex    int
	wakeIndex    int
	sleepers     int
	completions  int
	wakeups      int

	// Each word has two lines: of its bits, and of those put since.
	word, cleared []line
	put           []bool // by word: something has been, since its line was read
	sleepLine     line   // the count of sleepers
	countLine     line   // the count of completions
}

func newTags(n, cpus int, rng *rand.Rand) *tags {
	g := &tags{bits: sbitmap.New(n, queue.MapShift(n), cpus, rng.IntN), holder: make([]*command, n), wakeBatch: queue.WakeBatch(n, 1)}
	g.word, g.cleared, g.put = make([]line, g.bits.MapNr), make([]line, g.bits.MapNr), make([]bool, g.bits.MapNr)
	return g
}

// activate counts a drive in or out of those that are active.
func (g *tags) activate(by int) {
	g.activeQueues += by
	g.wakeBatch = queue.WakeBatch(g.bits.Depth, max(g.activeQueues, 1))
}

// get takes a tag; -1 if there is none. It returns what it cost.
func (g *tags) get(m *machine, cpu int, now, word int64) (int, int64) {
	var cost int64
	nr := g.bits.Get(cpu, func(w int) bool {
		cost += word
		cost += m.read(&g.word[w], cpu, now+cost)
		cost += m.read(&g.cleared[w], cpu, now+cost)
		return false
	})
	if nr < 0 {
		return nr, cost
	}
	w := nr >> g.bits.Shift
	cost += word + m.write(&g.word[w], cpu, now+cost)
	if g.put[w] && g.bits.Cleared[w] == 0 { // they were moved to the word
		g.put[w] = false
		cost += m.write(&g.cleared[w], cpu, now+cost)
	}
	return nr, cost
}

// give puts a tag, and returns what it cost and those it wakes.
func (g *tags) give(m *machine, cpu int, now int64, nr int) (int64, []*job) {
	w := nr >> g.bits.Shift
	g.holder[nr] = nil
	g.bits.Put(cpu, nr)
	g.put[w] = true
	cost := m.write(&g.cleared[w], cpu, now)
	cost += m.read(&g.sleepLine, cpu, now+cost)
	if g.sleepers == 0 {
		return cost, nil
	}
	cost += m.write(&g.countLine, cpu, now+cost)
	g.completions++
	if g.completions-g.wakeups < g.wakeBatch {
		return cost, nil
	}
	g.wakeups += g.wakeBatch
	return cost, g.wake(g.wakeBatch)
}

// wake takes up to n from the wait queues, in turns.
func (g *tags) wake(n int) []*job {
	var woken []*job
	for range queue.TagWaitQueues {
		q := &g.waiting[g.wakeIndex]
		g.wakeIndex = (g.wakeIndex + 1) % queue.TagWaitQueues
		k := min(n-len(woken), len(*q))
		woken = append(woken, (*q)[:k]...)
		*q = (*q)[k:]
		if len(woken) == n {
			break
		}
	}
	g.sleepers -= len(woken)
	return woken
}

// sleep puts a job into a wait queue, and returns what the count costs.
func (g *tags) sleep(m *machine, j *job, now int64) int64 {
	g.waiting[g.waitIndex] = append(g.waiting[g.waitIndex], j)
	g.waitIndex = (g.waitIndex + 1) % queue.TagWaitQueues
	g.sleepers++
	return m.write(&g.sleepLine, j.cpu, now)
}
