package fault

import (
	"slices"
	"sort"
	"sync"
)

// badBlocks is what is left unreadable of a range.
type badBlocks struct {
	mu     sync.Mutex
	pieces []Blocks // ascending, with gaps in between
}

// maxPieces bounds how many pieces a range can fall into by writes.
const maxPieces = 1 << 16

func newBadBlocks(r Blocks) *badBlocks { return &badBlocks{pieces: []Blocks{r}} }

// at is the index of the first piece that doesn't end before lba.
func (b *badBlocks) at(lba uint64) int {
	return sort.Search(len(b.pieces), func(i int) bool { return b.pieces[i].Last >= lba })
}

// first is the first bad block in r.
func (b *badBlocks) first(r Blocks) (lba uint64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := b.at(r.First)
	if i == len(b.pieces) {
		return 0, false
	}
	return b.pieces[i].overlap(r)
}

// heal makes the blocks of r good. If that makes too many pieces, all of the one
// that it is in the middle of.
func (b *badBlocks) heal(r Blocks) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := b.at(r.First)
	end := i
	var rest []Blocks
	for ; end < len(b.pieces) && b.pieces[end].First <= r.Last; end++ {
		p := b.pieces[end]
		if p.First < r.First {
			rest = append(rest, Blocks{p.First, r.First - 1})
		}
		if p.Last > r.Last {
			rest = append(rest, Blocks{r.Last + 1, p.Last})
		}
	}
	if len(b.pieces)-(end-i)+len(rest) > maxPieces {
		rest = nil
	}
	b.pieces = slices.Replace(b.pieces, i, end, rest...)
}

// count is how many blocks are bad; of 2^64, one is left out.
func (b *badBlocks) count() (n uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.pieces {
		n += p.Last - p.First
		if n != ^uint64(0) {
			n++
		}
	}
	return n
}
