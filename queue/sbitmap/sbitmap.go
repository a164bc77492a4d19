// Package sbitmap is a model of the kernel's struct sbitmap, from which request
// tags and budget tokens are taken: bits in words, each word on a cache line of
// its own, with the bits that were put kept aside until the word looks full, and
// with a hint for each CPU of where to look first.
package sbitmap

import (
	"fmt"
	"math/bits"
)

// Map is a struct sbitmap. It keeps: a bit that is set and not cleared is held by
// one who got it. See [Map.Check]. It is not safe for concurrent use: other CPUs
// come in between its words, by Get's callback.
type Map struct {
	Depth int // bits that can be got
	Shift int // bits a word as a power of two
	MapNr int // words in use
	// Word has the bits that are set, and Cleared those of them that were put.
	Word, Cleared []uint64
	hint          []int // by CPU
	random        func(n int) int
}

// New is sbitmap_init_node with hints for so many CPUs. random gives a number
// below n, for the hints.
func New(depth, shift, cpus int, random func(n int) int) Map {
	b := Map{Depth: depth, Shift: shift, random: random}
	b.MapNr = b.words()
	b.Word, b.Cleared = make([]uint64, b.MapNr), make([]uint64, b.MapNr)
	b.hint = make([]int, cpus)
	for i := range b.hint {
		b.hint[i] = random(max(depth, 1))
	}
	return b
}

func (b *Map) words() int { return (b.Depth + 1<<b.Shift - 1) >> b.Shift }

// Resize is sbitmap_resize to a depth that the words there are have room for.
func (b *Map) Resize(depth int) {
	for i := range min(b.MapNr, len(b.Word)) {
		b.moveCleared(i)
	}
	b.Depth = depth
	b.MapNr = b.words()
}

// moveCleared is sbitmap_deferred_clear: it reports whether any was cleared.
func (b *Map) moveCleared(i int) bool {
	c := b.Cleared[i]
	b.Word[i] &^= c
	b.Cleared[i] = 0
	return c != 0
}

func (b *Map) wordDepth(i int) int {
	if i == b.MapNr-1 {
		return b.Depth - i<<b.Shift
	}
	return 1 << b.Shift
}

// mask has a word's bits below the depth.
func (b *Map) mask(i int) uint64 {
	return ^uint64(0) >> (64 - min(max(b.wordDepth(i), 0), 64))
}

// Get is sbitmap_get: a bit, or -1. full is called after each word that has none
// free; the search ends if it says so.
func (b *Map) Get(cpu int, full func(word int) (stop bool)) int {
	depth := b.Depth
	hint := b.hint[cpu]
	if hint >= depth {
		hint = b.random(max(depth, 1))
		b.hint[cpu] = hint
	}
	nr := -1
	index := hint >> b.Shift
	for range b.MapNr {
		if index >= b.MapNr {
			index = 0
		}
		if nr = b.getWord(index); nr >= 0 {
			break
		}
		index++
		if full(index - 1) {
			return -1
		}
	}
	if nr < 0 {
		b.hint[cpu] = 0
	} else if nr == hint {
		if hint++; hint >= depth-1 {
			hint = 0
		}
		b.hint[cpu] = hint
	}
	return nr
}

func (b *Map) getWord(i int) int {
	for {
		if free := ^b.Word[i] & b.mask(i); free != 0 {
			bit := bits.TrailingZeros64(free)
			b.Word[i] |= 1 << bit
			return i<<b.Shift + bit
		}
		if b.wordDepth(i) <= 0 || !b.moveCleared(i) {
			return -1
		}
	}
}

// Has says whether the map has memory for the bit.
func (b *Map) Has(nr int) bool { return nr >= 0 && nr>>b.Shift < len(b.Word) }

// Put is sbitmap_put of a bit that the map has.
func (b *Map) Put(cpu, nr int) {
	b.Cleared[nr>>b.Shift] |= 1 << (nr & (1<<b.Shift - 1))
	if nr < b.Depth {
		b.hint[cpu] = nr
	}
}

// Holds says whether somebody has the bit.
func (b *Map) Holds(nr int) bool {
	i, bit := nr>>b.Shift, uint(nr&(1<<b.Shift-1))
	return i < len(b.Word) && (b.Word[i]&^b.Cleared[i])>>bit&1 == 1
}

// Weight is sbitmap_weight: the bits held below the depth.
func (b *Map) Weight() int {
	n := 0
	for i := range min(b.MapNr, len(b.Word)) {
		n += bits.OnesCount64(b.Word[i] & b.mask(i) &^ b.Cleared[i])
	}
	return n
}

// Each calls f with each bit that is held below the depth.
func (b *Map) Each(f func(nr int)) {
	for i := range min(b.MapNr, len(b.Word)) {
		for w := b.Word[i] &^ b.Cleared[i]; w != 0; w &= w - 1 {
			if nr := i<<b.Shift + bits.TrailingZeros64(w); nr < b.Depth {
				f(nr)
			}
		}
	}
}

// Check says what of the map is broken: it can be called at any time. holders
// counts, for each bit, those who say that they got it.
func (b *Map) Check(holders map[int]int) error {
	for nr, n := range holders {
		switch {
		case n > 1:
			return fmt.Errorf("%d is held %d times", nr, n)
		case !b.Holds(nr):
			return fmt.Errorf("%d is held, and its bit is free", nr)
		}
	}
	for i := range b.Word {
		for w := b.Word[i] &^ b.Cleared[i]; w != 0; w &= w - 1 {
			if nr := i<<b.Shift + bits.TrailingZeros64(w); holders[nr] == 0 {
				return fmt.Errorf("%d is held by nobody, and its bit is set", nr)
			}
		}
	}
	return nil
}
