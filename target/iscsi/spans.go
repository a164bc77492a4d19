package iscsi

import "slices"

// maxSpans bounds the gaps that data in any order may have at a time.
const maxSpans = 256

// spans are parts of a transfer that have come, in order and apart from each
// other.
type spans struct {
	list []span
	sum  uint64
}

type span struct{ off, end uint64 }

// fits tells whether [off, end) is new in all its bytes and can be added.
func (s *spans) fits(off, end uint64) bool {
	for _, p := range s.list {
		if off < p.end && p.off < end {
			return false
		}
	}
	return len(s.list) < maxSpans
}

// fills tells whether, with [off, end) which fits, all from start on has come
// without a gap.
func (s *spans) fills(start uint32, off, end uint64) bool {
	last := max(end, uint64(start))
	if n := len(s.list); n > 0 {
		last = max(last, s.list[n-1].end)
	}
	return s.sum+end-off == last-uint64(start)
}

// add adds [off, end), which fits.
func (s *spans) add(off, end uint64) {
	if off == end {
		return
	}
	s.sum += end - off
	i, _ := slices.BinarySearchFunc(s.list, off, func(p span, off uint64) int {
		if p.off < off {
			return -1
		}
		return 1
	})
	s.list = slices.Insert(s.list, i, span{off, end})
	if i+1 < len(s.list) && s.list[i].end == s.list[i+1].off {
		s.list[i].end = s.list[i+1].end
		s.list = slices.Delete(s.list, i+1, i+2)
	}
	if i > 0 && s.list[i-1].end == s.list[i].off {
		s.list[i-1].end = s.list[i].end
		s.list = slices.Delete(s.list, i, i+1)
	}
}
