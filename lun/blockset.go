package lun

import (
	"slices"
	"sync"
	"sync/atomic"
)

// run is n blocks at lba.
type run struct{ lba, n uint64 }

// maxRuns bounds what a BlockSet remembers.
const maxRuns = 1 << 16

// BlockSet is a set of blocks: runs in ascending order that don't touch each
// other. While it is empty, looking costs an atomic load. The zero value is
// empty. It is safe for concurrent use.
type BlockSet struct {
	runs atomic.Int64 // len(list)

	mu     sync.RWMutex
	list   []run
	blocks uint64 // in all of them
}

// after returns the first run that ends after lba. mu is held.
func (b *BlockSet) after(lba uint64) int {
	i, _ := slices.BinarySearchFunc(b.list, lba, func(r run, lba uint64) int {
		if r.lba+r.n <= lba {
			return -1
		}
		return 1
	})
	return i
}

// First returns the first of the n blocks at lba that are in the set, with those
// that follow it.
func (b *BlockSet) First(lba, n uint64) (first, count uint64, ok bool) {
	if n == 0 || b.runs.Load() == 0 {
		return 0, 0, false
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	i := b.after(lba)
	if i == len(b.list) || b.list[i].lba >= lba+n {
		return 0, 0, false
	}
	from, to := max(b.list[i].lba, lba), min(b.list[i].lba+b.list[i].n, lba+n)
	return from, to - from, true
}

// Add puts n blocks (at least 1) at lba into the set, unless it would hold more
// than most blocks or too many runs then.
func (b *BlockSet) Add(lba, n, most uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	i, end := b.after(max(lba, 1)-1), lba+n // a run that ends at lba is joined
	j, sum := i, b.blocks+n
	from, to := lba, end
	for ; j < len(b.list) && b.list[j].lba <= end; j++ {
		r := b.list[j]
		from, to = min(from, r.lba), max(to, r.lba+r.n)
		sum -= max(min(r.lba+r.n, end), lba) - min(max(r.lba, lba), end)
	}
	if sum > most || i == j && len(b.list) == maxRuns {
		return false
	}
	b.list = slices.Replace(b.list, i, j, run{from, to - from})
	b.changed(sum)
	return true
}

// Remove takes n blocks at lba out of the set. Where that would leave too many
// runs, it takes some more.
func (b *BlockSet) Remove(lba, n uint64) {
	if n == 0 || b.runs.Load() == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	i, end := b.after(lba), lba+n
	j, sum := i, b.blocks
	var rest []run
	for ; j < len(b.list) && b.list[j].lba < end; j++ {
		r := b.list[j]
		sum -= r.n
		if r.lba < lba {
			rest = append(rest, run{r.lba, lba - r.lba})
		}
		if r.lba+r.n > end {
			rest = append(rest, run{end, r.lba + r.n - end})
		}
	}
	if len(b.list)-(j-i)+len(rest) > maxRuns {
		rest = rest[:1]
	}
	for _, r := range rest {
		sum += r.n
	}
	b.list = slices.Replace(b.list, i, j, rest...)
	b.changed(sum)
}

// changed brings the counts up to date. mu is held.
func (b *BlockSet) changed(blocks uint64) {
	b.blocks = blocks
	b.runs.Store(int64(len(b.list)))
}

// Blocks returns how many there are in the set.
func (b *BlockSet) Blocks() uint64 {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.blocks
}
