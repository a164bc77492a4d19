package vhostuser

import (
	"lunlab/lun"
	"lunlab/target"
)

// Scatter lists in the guest's memory.

func size(list [][]byte) (n uint64) {
	for _, b := range list {
		n += uint64(len(b))
	}
	return n
}

// consume fills to from the beginning of the list and returns the rest. It changes
// the list.
func consume(list [][]byte, to []byte) [][]byte {
	for len(to) > 0 && len(list) > 0 {
		n := copy(to, list[0])
		to, list[0] = to[n:], list[0][n:]
		if len(list[0]) == 0 {
			list = list[1:]
		}
	}
	return list
}

// cut appends the first n bytes of the list to head and returns the rest with it. It
// changes the list.
func cut(head, list [][]byte, n int) (_, rest [][]byte) {
	for n > 0 && len(list) > 0 {
		k := min(n, len(list[0]))
		head = append(head, list[0][:k])
		if list[0] = list[0][k:]; len(list[0]) == 0 {
			list = list[1:]
		}
		n -= k
	}
	return head, list
}

// copyAll copies from one list to another, until one of them ends.
func copyAll(to, from [][]byte) {
	var a, b []byte
	for {
		for len(a) == 0 {
			if len(to) == 0 {
				return
			}
			a, to = to[0], to[1:]
		}
		for len(b) == 0 {
			if len(from) == 0 {
				return
			}
			b, from = from[0], from[1:]
		}
		n := copy(a, b)
		a, b = a[n:], b[n:]
	}
}

// mayShare tells whether a unit may have the guest's memory itself for a command's
// data: it does nothing but move blocks. Others look at their data, which the
// guest could change between two looks.
func mayShare(op byte) bool {
	switch op {
	case 0x08, 0x28, 0xa8, 0x88, // READ(6), (10), (12), (16)
		0x0a, 0x2a, 0xaa, 0x8a: // WRITE
		return true
	}
	return false
}

// maxCopied is the most bytes that a device copies at once, for commands whose
// data no unit may see in place. Beyond it they get TASK SET FULL.
const maxCopied = 256 << 20

// excess stands for data-out that a unit has no use for. Some commands have to be
// refused for it.
var excess [64 << 10]byte

// layout prepares the command's data. It returns false if the command has ended
// with that.
func (t *task) layout(lu *target.LogicalUnit) bool {
	want := [2]uint64{}
	want[0], want[1] = t.ring.s.nexus.DataLength(lu, t.CDB)
	if t.features&featureT10PI != 0 && !t.layoutPI(want) {
		t.Fail(senseBadField)
		return false
	}
	if t.chain.lasting && mayShare(t.CDB[0]) {
		t.DataOut, t.DataIn = t.out, t.in
		return true
	}
	out, in := min(t.outLen, want[0]), min(t.inLen, want[1])
	n := int64(out + in)
	if t.ring.s.dev.copied.Add(n) > maxCopied {
		t.ring.s.dev.copied.Add(-n)
		t.Status = lun.TaskSetFull
		return false
	}
	t.reserved = n
	if int64(cap(t.buf)) < n {
		t.buf = make([]byte, n)
	}
	b := t.buf[:n]
	if t.outLen > 0 {
		t.toUnit[0] = b[:out]
		copyAll(t.toUnit[:1], t.out)
		t.DataOut = t.toUnit[:1]
		if more := t.outLen - out; more > 0 {
			t.toUnit[1] = excess[:min(more, uint64(len(excess)))]
			t.DataOut = t.toUnit[:]
		}
	}
	if t.inLen > 0 {
		t.bounceIn = b[out:]
		clear(t.bounceIn)
		t.toGuest[1] = t.bounceIn
		t.DataIn = t.toGuest[1:]
	}
	return true
}
