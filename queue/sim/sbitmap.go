package sim

import (
	"fmt"
	"math/bits"

	"lunlab/queue"
)

// sbitmap is the kernel's struct sbitmap: bits in words, each word on a cache
// line of its own, with the bits that were put kept aside (cleared) until the
// word looks full.
//
// It keeps: a bit that is set and not cleared is held by one who got it; and
// each of its two allocations is freed once. See check.
type sbitmap struct {
	name    string
	depth   int
	shift   int
	mapNr   int // survives free, as the kernel's does
	word    []uint64
	cleared []uint64
	words   *allocation
	hints   *allocation // the per-CPU hints: the pointer survives free
	hint    []int
}

// allocation is a piece of kernel memory.
type allocation struct {
	kind  string
	of    string // whose
	freed bool
}

// free is kfree, which takes nil.
func (m *model) free(a *allocation) {
	switch {
	case a == nil:
	case a.freed:
		m.violate(FreedOnce, a.kind, "%s: its %s is freed a second time", a.of, a.kind)
	default:
		a.freed = true
	}
}

// initNode is sbitmap_init_node with hints. shift -1 computes it.
func (m *model) initNode(name string, depth, shift int) sbitmap {
	if shift < 0 {
		shift = queue.MapShift(depth)
	}
	b := sbitmap{name: name, depth: depth, shift: shift, mapNr: (depth + 1<<shift - 1) >> shift}
	b.word, b.cleared = make([]uint64, b.mapNr), make([]uint64, b.mapNr)
	b.words = &allocation{kind: "words", of: name}
	b.hints = &allocation{kind: "per-CPU hint", of: name}
	b.hint = make([]int, m.cpus)
	for i := range b.hint {
		b.hint[i] = m.rng.IntN(max(depth, 1))
	}
	return b
}

// freeMap is sbitmap_free.
func (m *model) freeMap(b *sbitmap) {
	m.free(b.hints)
	m.free(b.words)
	b.word, b.cleared, b.words = nil, nil, nil
}

func (b *sbitmap) mapped() bool { return b.words != nil }

// resize is sbitmap_resize.
func (m *model) resize(b *sbitmap, depth int) {
	for i := range b.mapNr {
		if b.word == nil {
			m.violate(UseAfterFree, "map", "%s: resize reads the words of a map that isn't there", b.name)
			break
		}
		b.moveCleared(i)
	}
	b.depth = depth
	b.mapNr = (depth + 1<<b.shift - 1) >> b.shift
}

// moveCleared is sbitmap_deferred_clear: it reports whether any was cleared.
func (b *sbitmap) moveCleared(i int) bool {
	c := b.cleared[i]
	b.word[i] &^= c
	b.cleared[i] = 0
	return c != 0
}

func (b *sbitmap) wordDepth(i int) int {
	if i == b.mapNr-1 {
		return b.depth - i<<b.shift
	}
	return 1 << b.shift
}

// get is sbitmap_get: a bit, or -1. Other CPUs can come between its words.
func (m *model) get(t *task, b *sbitmap) int {
	depth := b.depth
	hint := b.hint[t.cpu]
	if hint >= depth {
		hint = m.rng.IntN(max(depth, 1))
		b.hint[t.cpu] = hint
	}
	nr := -1
	index := hint >> b.shift
	for range b.mapNr {
		if index >= b.mapNr {
			index = 0
		}
		if b.word == nil {
			m.violate(UseAfterFree, "map", "%s: got from, after it was freed", b.name)
			return -1
		}
		if nr = b.getWord(index); nr >= 0 {
			break
		}
		index++
		t.step()
	}
	if nr < 0 {
		b.hint[t.cpu] = 0
	} else if nr == hint {
		if hint++; hint >= depth-1 {
			hint = 0
		}
		b.hint[t.cpu] = hint
	}
	return nr
}

func (b *sbitmap) getWord(i int) int {
	mask := ^uint64(0) >> (64 - min(b.wordDepth(i), 64))
	if b.wordDepth(i) <= 0 {
		return -1
	}
	for {
		if free := ^b.word[i] & mask; free != 0 {
			bit := bits.TrailingZeros64(free)
			b.word[i] |= 1 << bit
			return i<<b.shift + bit
		}
		if !b.moveCleared(i) {
			return -1
		}
	}
}

// put is sbitmap_put.
func (m *model) put(t *task, b *sbitmap, nr int) {
	i := nr >> b.shift
	if nr < 0 || i >= len(b.word) {
		m.violate(TokenHeld, "put", "%s: %d is put, which it has no bit for", b.name, nr)
		return
	}
	if !b.holds(nr) {
		m.violate(TokenHeld, "put", "%s: %d is put, which nobody holds", b.name, nr)
	}
	b.cleared[i] |= 1 << (nr & (1<<b.shift - 1))
	if nr < b.depth {
		b.hint[t.cpu] = nr
	}
}

func (b *sbitmap) holds(nr int) bool {
	i, bit := nr>>b.shift, uint(nr&(1<<b.shift-1))
	return i < len(b.word) && (b.word[i]&^b.cleared[i])>>bit&1 == 1
}

// weight is sbitmap_weight: the bits held below the depth.
func (b *sbitmap) weight() int {
	n := 0
	for i := range min(b.mapNr, len(b.word)) {
		mask := ^uint64(0) >> (64 - min(max(b.wordDepth(i), 0), 64))
		n += bits.OnesCount64(b.word[i] & mask &^ b.cleared[i])
	}
	return n
}

// each calls f with each bit that is held below the depth.
func (b *sbitmap) each(f func(nr int)) {
	for i := range min(b.mapNr, len(b.word)) {
		for w := b.word[i] &^ b.cleared[i]; w != 0; w &= w - 1 {
			if nr := i<<b.shift + bits.TrailingZeros64(w); nr < b.depth {
				f(nr)
			}
		}
	}
}

// check says what of the map is broken: it can be called at any time. holders
// counts, for each bit, those who say that they got it.
func (b *sbitmap) check(holders map[int]int) error {
	for nr, n := range holders {
		switch {
		case n > 1:
			return fmt.Errorf("%s: %d is held %d times", b.name, nr, n)
		case !b.holds(nr):
			return fmt.Errorf("%s: %d is held, and its bit is free", b.name, nr)
		}
	}
	for i := range b.word {
		for w := b.word[i] &^ b.cleared[i]; w != 0; w &= w - 1 {
			if nr := i<<b.shift + bits.TrailingZeros64(w); holders[nr] == 0 {
				return fmt.Errorf("%s: %d is held by nobody, and its bit is set", b.name, nr)
			}
		}
	}
	return nil
}
