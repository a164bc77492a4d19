package target

import (
	"iter"
	"math/bits"
)

// taskTable holds the tasks of a nexus by tag: a hash table whose chains run
// through the tasks, so that entering and leaving allocates nothing once it has
// been as full. It isn't safe for concurrent use.
type taskTable struct {
	heads []*Task // a power of two of them
	count int
}

// leastHeads is what a nexus has that is idle, of which there may be many.
const leastHeads = 64

func newTaskTable() taskTable { return taskTable{heads: make([]*Task, leastHeads)} }

// head is where the chain of a tag begins. Tags may be even spaced, so that it
// isn't their low bits that count (Knuth's multiplicative hashing).
func (h *taskTable) head(tag uint64) **Task {
	const golden = 0x9e3779b97f4a7c15 // 2^64 by the golden ratio
	return &h.heads[tag*golden>>(64-bits.Len(uint(len(h.heads)-1)))]
}

// find is the task with that tag, or nil.
func (h *taskTable) find(tag uint64) *Task {
	for t := *h.head(tag); t != nil; t = t.next {
		if t.Tag == tag {
			return t
		}
	}
	return nil
}

func (h *taskTable) insert(t *Task) {
	if h.count == len(h.heads) {
		h.grow()
	}
	h.count++
	head := h.head(t.Tag)
	t.next, *head = *head, t
}

// grow keeps the chains short for a nexus with thousands of tasks. The tasks in
// flight bound it.
func (h *taskTable) grow() {
	old := h.heads
	h.heads = make([]*Task, 2*len(old))
	for _, t := range old {
		for t != nil {
			next := t.next
			head := h.head(t.Tag)
			t.next, *head = *head, t
			t = next
		}
	}
}

// remove takes out a task that is there.
func (h *taskTable) remove(t *Task) {
	for p := h.head(t.Tag); *p != nil; p = &(*p).next {
		if *p == t {
			*p = t.next
			break
		}
	}
	t.next = nil
	h.count--
}

// all are the tasks, in no order. The one at hand may be removed.
func (h *taskTable) all() iter.Seq[*Task] {
	return func(yield func(*Task) bool) {
		if h.count == 0 {
			return
		}
		for _, t := range h.heads {
			for t != nil {
				next := t.next
				if !yield(t) {
					return
				}
				t = next
			}
		}
	}
}
