package sim

import (
	"math/rand/v2"
	"slices"
)

// Schedule says where a run departs from the plain order, in which a task goes
// on until it has to wait, the longest-ready comes next, and time passes only
// when none is ready. It is in the order of its steps.
type Schedule []Deviation

// Deviation is one such place.
type Deviation struct {
	// Step counts the run's steps from 1.
	Step int `json:"step"`
	// Pick is the index of the task that comes next, among those that are
	// ready; one past them is the clock.
	Pick int `json:"pick"`
}

// scheduler makes up a schedule as it goes, or replays one.
type scheduler struct {
	rng  *rand.Rand // nil: replay
	odds float64    // of a deviation, for each step
	made Schedule
	at   int
}

func (s *scheduler) deviate(step, of int) (int, bool) {
	if s.rng != nil {
		if s.rng.Float64() >= s.odds || of == 0 {
			return 0, false
		}
		pick := s.rng.IntN(of)
		s.made = append(s.made, Deviation{step, pick})
		return pick, true
	}
	for s.at < len(s.made) && s.made[s.at].Step < step {
		s.at++
	}
	if s.at == len(s.made) || s.made[s.at].Step != step || of == 0 {
		return 0, false
	}
	return s.made[s.at].Pick % of, true
}

// without returns the schedule less the deviations from i on, n of them.
func (s Schedule) without(i, n int) Schedule {
	return slices.Concat(s[:i], s[min(i+n, len(s)):])
}
