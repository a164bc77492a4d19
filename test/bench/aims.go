package main

import (
	"fmt"
	"strings"
	"time"
)

// What lunlab is to reach on memory. Its peers are the servers that are real
// targets, the ceiling the one that only echoes.
const (
	leastPerCPU    = 3.0      // times a peer's I/Os per CPU-second, at deepQueue and more
	mostPerCeiling = 1.5      // times the ceiling's CPU per I/O
	mostCPU        = 12.0     // CPU-seconds a million I/Os of 4 KiB, at deepQueue and more
	mostRSS        = 64 << 20 // bytes above the LUN, with rssSessions
	deepQueue      = 32
	rssSessions    = 64
)

// aim is something that lunlab is to reach, and how far it did.
type aim struct {
	What string `json:"what"`

	// Cases is how often it was looked at, Missed where it was not reached.
	Cases  int      `json:"cases"`
	Missed []string `json:"missed,omitempty"`

	// Closest is the figure that came closest to missing, or missed by most.
	Closest string `json:"closest"`
	margin  float64
}

// take counts a case in. margin is 1 where the aim is just reached, and above
// where it is reached with some to spare.
func (a *aim) take(margin float64, figure, where string) {
	if a.Cases++; a.Cases == 1 || margin < a.margin {
		a.margin, a.Closest = margin, figure+", "+where
	}
	if margin < 1 {
		a.Missed = append(a.Missed, figure+", "+where)
	}
}

// String is one line, "pass" or "MISS" first.
func (a aim) String() string {
	switch {
	case a.Cases == 0:
		return fmt.Sprintf("-     %s: not measured", a.What)
	case len(a.Missed) == 0:
		return fmt.Sprintf("pass  %s: at the least %s", a.What, a.Closest)
	}
	return fmt.Sprintf("MISS  %s: in %d of %d: %s", a.What, len(a.Missed), a.Cases, strings.Join(a.Missed, "; "))
}

// aims compares lunlab's results with its peers' and the ceiling's.
func aims(rep *report) []aim {
	var (
		perCPU  = aim{What: fmt.Sprintf("at least %v times a peer's I/Os per CPU-second, depth %d and more", leastPerCPU, deepQueue)}
		iops    = aim{What: "IOPS not below the best peer's"}
		p99     = aim{What: "p99 not above the best peer's"}
		ceiling = aim{What: fmt.Sprintf("CPU per I/O within %v times the ceiling's", mostPerCeiling)}
		cpu     = aim{What: fmt.Sprintf("at most %v CPU-seconds a million I/Os of 4 KiB, depth %d and more", mostCPU, deepQueue)}
		rss     = aim{What: fmt.Sprintf("peak RSS at most %d MiB above the LUN, with %d sessions", mostRSS>>20, rssSessions)}
	)
	of := map[string][]result{}
	for _, r := range rep.Results {
		of[r.Workload.Name] = append(of[r.Workload.Name], r)
	}
	for _, r := range rep.Results {
		if r.Server != subject {
			continue
		}
		w := r.Workload
		deep := w.Depth >= deepQueue
		for _, o := range of[w.Name] {
			where := fmt.Sprintf("%s, %s", o.Server, w.Name)
			switch o.Server {
			case subject:
			case ceilingName:
				ceiling.take(mostPerCeiling/(r.CPU/o.CPU), fmt.Sprintf("%.2f times", r.CPU/o.CPU), where)
			default:
				if deep {
					perCPU.take(o.CPU/r.CPU/leastPerCPU, fmt.Sprintf("%.1f times", o.CPU/r.CPU), where)
				}
				iops.take(r.IOPS/o.IOPS, fmt.Sprintf("%.2f times", r.IOPS/o.IOPS), where)
				p99.take(float64(o.P99)/float64(r.P99), fmt.Sprintf("%v to %v", r.P99.Round(time.Microsecond), o.P99.Round(time.Microsecond)), where)
			}
		}
		if deep && w.Bytes == 4096 {
			cpu.take(mostCPU/r.CPU, fmt.Sprintf("%.1f", r.CPU), w.Name)
		}
		if w.Connections >= rssSessions {
			above := rep.PeakRSS[subject] - rep.LUNSize
			rss.take(mostRSS/float64(max(above, 1)), fmt.Sprintf("%d MiB", above>>20), w.Name)
		}
	}
	return []aim{perCPU, iops, p99, ceiling, cpu, rss}
}
