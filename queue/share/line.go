package share

import "math/bits"

// maxCPUs is how many a line can tell apart.
const maxCPUs = 64

// line is a cache line: which CPUs have it, and when it is free of what it is
// being moved for.
type line struct {
	has    uint64 // by CPU; the one that wrote it last among them
	freeAt int64
}

// machine is what the CPUs' accesses to lines cost.
type machine struct {
	local, near, far int64
	node             []uint64 // by CPU: the CPUs of its node
}

func newMachine(p Params) machine {
	m := machine{local: int64(p.Local), near: int64(p.Near), far: int64(p.Far)}
	nodes := int(p.Nodes)
	m.node = make([]uint64, int(p.CPUs))
	for i := range m.node {
		for j := range m.node {
			if i%nodes == j%nodes {
				m.node[i] |= 1 << j
			}
		}
	}
	return m
}

// move brings the line to a CPU from those that have it, one move at a time.
func (m *machine) move(l *line, cpu int, now int64, from uint64) int64 {
	cost := m.near
	if from&^m.node[cpu] != 0 {
		cost = m.far
	}
	start := max(now, l.freeAt)
	l.freeAt = start + cost
	return l.freeAt - now
}

// read returns what it costs to read the line now.
func (m *machine) read(l *line, cpu int, now int64) int64 {
	me := uint64(1) << cpu
	if l.has == 0 || l.has&me != 0 {
		l.has |= me
		return 0
	}
	// It comes from one of those who have it: the nearest.
	from := l.has
	if near := from & m.node[cpu]; near != 0 {
		from = near
	}
	cost := m.move(l, cpu, now, 1<<bits.TrailingZeros64(from))
	l.has |= me
	return cost
}

// write returns what an atomic operation on the line costs now.
func (m *machine) write(l *line, cpu int, now int64) int64 {
	me := uint64(1) << cpu
	others := l.has &^ me
	l.has = me
	if others == 0 {
		return m.local
	}
	return m.move(l, cpu, now, others) + m.local
}
