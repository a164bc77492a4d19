package main

import (
	"strings"
	"testing"
	"time"
)

func TestAims(t *testing.T) {
	deep := workload{Name: "deep", Bytes: 4096, Depth: 32, Connections: 64}
	shallow := workload{Name: "shallow", Bytes: 4096, Depth: 1, Connections: 1}
	rep := func(cpu, iops float64, p99 time.Duration, rss int64) *report {
		r := &report{PeakRSS: map[string]int64{subject: rss}, LUNSize: 100 << 20}
		for _, w := range []workload{shallow, deep} {
			r.Results = append(r.Results,
				result{w, subject, iops, 1, p99, cpu},
				result{w, "tgt", 1000, 1, time.Millisecond, 36},
				result{w, ceilingName, 9000, 1, time.Microsecond, 6})
		}
		return r
	}
	for _, a := range aims(rep(9, 1000, time.Millisecond, 164<<20)) {
		if len(a.Missed) > 0 || a.Cases == 0 {
			t.Errorf("just reached: %v", a)
		}
	}
	for _, a := range aims(rep(12.1, 999, time.Millisecond+1, 165<<20)) {
		if a.Cases == 0 || len(a.Missed) != a.Cases || !strings.HasPrefix(a.String(), "MISS") {
			t.Errorf("just missed: %v", a)
		}
	}
	// What wasn't measured isn't reached.
	for _, a := range aims(&report{}) {
		if !strings.HasPrefix(a.String(), "-") {
			t.Errorf("nothing measured: %v", a)
		}
	}
}
