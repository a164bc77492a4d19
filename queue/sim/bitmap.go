package sim

import (
	"lunlab/queue"
	"lunlab/queue/sbitmap"
)

// bitmap is a struct sbitmap with the memory that it has from the kernel, each
// piece of which is freed once.
type bitmap struct {
	sbitmap.Map
	name  string
	words *allocation
	hints *allocation // the per-CPU hints: the pointer survives free
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
func (m *model) initNode(name string, depth, shift int) bitmap {
	if shift < 0 {
		shift = queue.MapShift(depth)
	}
	return bitmap{
		Map:   sbitmap.New(depth, shift, m.cpus, m.rng.IntN),
		name:  name,
		words: &allocation{kind: "words", of: name},
		hints: &allocation{kind: "per-CPU hint", of: name},
	}
}

// freeMap is sbitmap_free, which leaves the number of words.
func (m *model) freeMap(b *bitmap) {
	m.free(b.hints)
	m.free(b.words)
	b.Word, b.Cleared, b.words = nil, nil, nil
}

func (b *bitmap) mapped() bool { return b.words != nil }

// resize is sbitmap_resize.
func (m *model) resize(b *bitmap, depth int) {
	if b.Word == nil && b.MapNr > 0 {
		m.violate(UseAfterFree, "map", "%s: resize reads the words of a map that isn't there", b.name)
	}
	b.Resize(depth)
}

// get is sbitmap_get: a bit, or -1. Other CPUs can come between its words.
func (m *model) get(t *task, b *bitmap) int {
	gone := func() bool {
		if b.Word == nil {
			m.violate(UseAfterFree, "map", "%s: got from, after it was freed", b.name)
		}
		return b.Word == nil
	}
	if b.MapNr > 0 && gone() {
		return -1
	}
	left := b.MapNr
	return b.Get(t.cpu, func(int) bool {
		t.step()
		left--
		return left > 0 && gone()
	})
}

// put is sbitmap_put.
func (m *model) put(t *task, b *bitmap, nr int) {
	if !b.Has(nr) {
		m.violate(TokenHeld, "put", "%s: %d is put, which it has no bit for", b.name, nr)
		return
	}
	if !b.Holds(nr) {
		m.violate(TokenHeld, "put", "%s: %d is put, which nobody holds", b.name, nr)
	}
	b.Put(t.cpu, nr)
}
