package sim

import (
	"context"
	"slices"
)

// shrinkSteps bounds the steps that shrinking one finding takes.
const shrinkSteps = 4_000_000

// shrinker makes a case that breaks an invariant smaller, as long as it breaks
// it in the same way.
type shrinker struct {
	ctx  context.Context
	best Case
	want Violation
	left int
	// limit is a run's steps: a case that takes longer isn't smaller.
	limit int
}

func shrink(ctx context.Context, c Case, v Violation) Finding {
	s := &shrinker{ctx: ctx, best: c, want: v, left: shrinkSteps, limit: 2*v.Step + 1000}
	plain := c
	plain.Schedule = nil
	s.try(plain)
	for again := true; again; {
		again = s.dropOps()
		again = s.dropDeviations() || again
		again = s.lowerNumbers() || again
	}
	res := s.run(s.best, true)
	f := Finding{Case: s.best, Violation: v, Trace: res.Trace}
	if i := slices.IndexFunc(res.Violations, v.same); i >= 0 {
		f.Violation = res.Violations[i]
	}
	// What the run never came to isn't needed.
	f.Case.Schedule = slices.DeleteFunc(slices.Clone(f.Case.Schedule), func(d Deviation) bool { return d.Step > res.Steps })
	return f
}

func (s *shrinker) run(c Case, trace bool) Result {
	return c.run(how{scheduler: scheduler{made: c.Schedule}, only: &s.want, limit: s.limit, trace: trace})
}

// try keeps the case if it breaks the invariant too.
func (s *shrinker) try(c Case) bool {
	if s.left <= 0 || s.ctx.Err() != nil {
		return false
	}
	res := s.run(c, false)
	s.left -= res.Steps
	if !slices.ContainsFunc(res.Violations, s.want.same) {
		return false
	}
	s.best = c
	return true
}

// halves calls try with each part of n things, from halves down to single
// ones; try says whether that part was dropped.
func halves(n func() int, try func(i, size int) bool) bool {
	any := false
	for size := max(n()/2, 1); ; size /= 2 {
		for i := 0; i < n(); {
			if try(i, min(size, n()-i)) {
				any = true
			} else {
				i += size
			}
		}
		if size == 1 {
			return any
		}
	}
}

func (s *shrinker) dropOps() bool {
	return halves(func() int { return len(s.best.Plan) }, func(i, size int) bool {
		c := s.best
		c.Plan = slices.Concat(c.Plan[:i], c.Plan[i+size:])
		if s.try(c) {
			return true
		}
		if len(c.Schedule) == 0 {
			return false
		}
		c.Schedule = nil
		return s.try(c)
	})
}

func (s *shrinker) dropDeviations() bool {
	return halves(func() int { return len(s.best.Schedule) }, func(i, size int) bool {
		c := s.best
		c.Schedule = c.Schedule.without(i, size)
		return s.try(c)
	})
}

// lowerNumbers lowers each step's N, and moves it to slot 0 and CPU 0.
func (s *shrinker) lowerNumbers() bool {
	any := false
	for i := range s.best.Plan {
		edit := func(f func(*Op)) bool {
			c := s.best
			c.Plan = slices.Clone(c.Plan)
			f(&c.Plan[i])
			if c.Plan[i] == s.best.Plan[i] {
				return false
			}
			ok := s.try(c)
			any = any || ok
			return ok
		}
		edit(func(o *Op) { o.CPU = 0 })
		low := 0
		for high := s.best.Plan[i].N; low+1 < high; {
			mid := (low + high) / 2
			if edit(func(o *Op) { o.N = mid }) {
				high = mid
			} else {
				low = mid
			}
		}
	}
	return any
}
