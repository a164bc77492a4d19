package share

import (
	"fmt"
	"slices"
	"time"
)

// meter is how many tags are in use, over time.
type meter struct {
	now, most int
	at        int64
	area      float64
}

// set counts a tag in or out, of the host and of the drive.
func (m *meter) set(r *run, d *drive, by int) {
	m.add(r, by)
	d.inUse.add(r, by)
}

func (m *meter) add(r *run, by int) {
	m.pass(r)
	m.now += by
	if r.now >= r.from {
		m.most = max(m.most, m.now)
	}
}

// pass counts the time since the last change.
func (m *meter) pass(r *run) {
	if start := max(m.at, r.from); r.now > start {
		m.area += float64(m.now) * float64(r.now-start)
	}
	m.at = r.now
}

func (m *meter) mean(r *run) float64 {
	r.now = r.end
	m.pass(r)
	return m.area / float64(r.end-r.from)
}

type driveStats struct {
	speed, duty float64
	latencies   []int64
	thirds      [3]int // I/Os of each third of the run
}

func (s *driveStats) ended(r *run, q *command) {
	if r.now < r.from {
		return
	}
	s.latencies = append(s.latencies, r.now-q.began)
	s.thirds[min(3*(r.now-r.from)/(r.end-r.from), 2)]++
}

// Latency is how long commands took, from their job's first look for a tag.
type Latency struct {
	P50  time.Duration `json:"p50_ns"`
	P99  time.Duration `json:"p99_ns"`
	P999 time.Duration `json:"p999_ns"`
}

// DriveResult is what a drive did.
type DriveResult struct {
	Speed float64 `json:"speed"`
	IOPS  float64 `json:"iops"`
	Latency
	// MeanTags and MostTags are the tags that its commands had.
	MeanTags float64 `json:"mean_tags"`
	MostTags int     `json:"most_tags"`
}

// Result is what came of a run.
type Result struct {
	Config
	IOPS float64 `json:"iops"`
	// Jain is Jain's index of what the drives did, each of its speed and of the
	// part of the time in which it had a load: 1 if all got the same.
	Jain float64 `json:"jain"`
	Latency
	MeanTags float64       `json:"mean_tags"`
	MostTags int           `json:"most_tags"`
	Drives   []DriveResult `json:"per_drive"`
	// Thirds is the IOPS, in each third of the run, of all drives but the last.
	Thirds [3]float64 `json:"iops_of_others_by_thirds"`
	// Length is the time that was measured. A quarter of it went before.
	Length time.Duration `json:"length_ns"`
}

// Run runs the configuration. Its error is [Config.Validate]'s.
func (c Config) Run() (Result, error) {
	if err := c.Validate(); err != nil {
		return Result{}, err
	}
	r := newRun(c)
	for r.step() {
	}
	return r.result(), nil
}

func (r *run) result() Result {
	length := float64(r.end-r.from) / 1e9
	res := Result{Config: r.Config, MeanTags: r.inUse.mean(r), MostTags: r.inUse.most, Length: time.Duration(r.end - r.from)}
	var all []int64
	var parts []float64
	for i, d := range r.drives {
		s := &d.stats
		iops := float64(len(s.latencies)) / length
		res.IOPS += iops
		parts = append(parts, iops/s.speed/s.duty)
		all = append(all, s.latencies...)
		res.Drives = append(res.Drives, DriveResult{
			Speed: s.speed, IOPS: iops, Latency: quantiles(s.latencies),
			MeanTags: d.inUse.mean(r), MostTags: d.inUse.most,
		})
		if i < len(r.drives)-1 {
			for k, n := range s.thirds {
				res.Thirds[k] += float64(n) / length * 3
			}
		}
	}
	res.Latency = quantiles(all)
	res.Jain = Jain(parts)
	return res
}

// Jain is Jain's fairness index: 1 if all parts are equal, 1/n if one has all.
// It is 0 if nobody has anything.
func Jain(parts []float64) float64 {
	var sum, squares float64
	for _, x := range parts {
		sum += x
		squares += x * x
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(parts)) * squares)
}

func quantiles(l []int64) Latency {
	if len(l) == 0 {
		return Latency{}
	}
	slices.Sort(l)
	at := func(permille int) time.Duration { return time.Duration(l[min(len(l)*permille/1000, len(l)-1)]) }
	return Latency{P50: at(500), P99: at(990), P999: at(999)}
}

// check says what of the run is broken: it can be called between any two steps.
func (r *run) check() error {
	holders := map[int]int{}
	held := make([]int, len(r.drives))
	for nr, q := range r.tags.holder {
		if q == nil {
			continue
		}
		if q.tag != nr {
			return fmt.Errorf("tag %d is of a command with tag %d", nr, q.tag)
		}
		holders[nr]++
		held[q.j.d.index]++
	}
	if err := r.tags.bits.Check(holders); err != nil {
		return err
	}
	active := 0
	for i, d := range r.drives {
		switch {
		case d.held != held[i]:
			return fmt.Errorf("drive %d counts %d tags and has %d", i, d.held, held[i])
		case d.budget > r.QueueDepth:
			return fmt.Errorf("drive %d has %d commands at the driver at queue_depth %d", i, d.budget, r.QueueDepth)
		case d.active:
			active++
		case d.held > 0:
			return fmt.Errorf("drive %d has %d tags and isn't active", i, d.held)
		}
	}
	if active != r.tags.activeQueues {
		return fmt.Errorf("%d drives are active and %d are counted", active, r.tags.activeQueues)
	}
	return nil
}
