package share

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Params are the model's assumptions. [Parameters] says what each is, and where
// its default is from.
type Params struct {
	Jobs, CPUs, Nodes          float64
	Service, Variation, Spread float64
	HostSpeed                  float64
	IO                         float64
	Local, Near, Far           float64
	HotFields                  float64
	Word, Sleep, Wake          float64
	Restart, Grace             float64
}

// Parameter is an assumption that can be set.
type Parameter struct {
	Name    string  `json:"name"`
	Unit    string  `json:"unit"`
	Default float64 `json:"default"`
	Min     float64 `json:"min"`
	Max     float64 `json:"max"`
	Says    string  `json:"says"`
	// From says where the default is from: "posted" (with where), "kernel",
	// "fitted" or "assumed".
	From  string `json:"from"`
	of    func(*Params) *float64
	whole bool
}

const coverLetter = "cover letter of 2026-06-09 (20260609121806.2121755-1-sumit.saxena@broadcom.com)"

var parameters = []Parameter{
	{Name: "jobs", Default: 2, Min: 1, Max: 64, Says: "threads that send to each drive, a CPU each while there are enough",
		From: "posted, in part: 16 jobs, " + coverLetter + "; that they were spread over the 8 drives is assumed", of: func(p *Params) *float64 { return &p.Jobs }, whole: true},
	{Name: "cpus", Default: 64, Min: 1, Max: maxCPUs, Says: "CPUs; neighbours are on different nodes",
		From: "posted: two sockets of 32 cores, " + coverLetter, of: func(p *Params) *float64 { return &p.CPUs }, whole: true},
	{Name: "nodes", Default: 2, Min: 1, Max: 8, Says: "NUMA nodes",
		From: "posted: two sockets", of: func(p *Params) *float64 { return &p.Nodes }, whole: true},
	{Name: "service", Unit: "us", Default: 120, Min: 0.1, Max: 1e6, Says: "time that a drive takes for a command; with the speed it says how many a drive works on at once",
		From: "assumed: flash, 4 KiB random read; with the posted 64 commands of each of 16 jobs and 7,350 KIOPS it is 139 at most", of: func(p *Params) *float64 { return &p.Service }},
	{Name: "variation", Default: 0.5, Max: 1, Says: "how much of that time is by chance (exponential): 0 none, 1 all",
		From: "assumed", of: func(p *Params) *float64 { return &p.Variation }},
	{Name: "spread", Default: 0, Max: 0.9, Says: "how far the drives' speeds lie apart: from (1 - spread) to (1 + spread) of the speed, in equal steps",
		From: "assumed", of: func(p *Params) *float64 { return &p.Spread }},
	{Name: "host-speed", Unit: "KIOPS", Default: 7700, Min: 0.001, Max: 1e6, Says: "what the host adapter can do in all",
		From: "posted: the most of any run, " + coverLetter, of: func(p *Params) *float64 { return &p.HostSpeed }},
	{Name: "io", Unit: "ns", Default: 2000, Max: 1e7, Says: "CPU time of an I/O, without what is charged below",
		From: "fitted: with the series, and host-speed out of the way, 8 drives at depth 128 do 7,352 KIOPS; posted are 7,350, " + coverLetter, of: func(p *Params) *float64 { return &p.IO }},
	{Name: "local", Unit: "ns", Default: 2, Max: 1e6, Says: "an atomic operation on a cache line that this CPU has",
		From: "measured: go test -bench Counter ./queue/share, one thread of a virtual EPYC of 2 CPUs", of: func(p *Params) *float64 { return &p.Local }},
	{Name: "near", Unit: "ns", Default: 33, Max: 1e6, Says: "a cache line that has to come from a CPU of the same node",
		From: "assumed: half of far", of: func(p *Params) *float64 { return &p.Near }},
	{Name: "far", Unit: "ns", Default: 66, Max: 1e6, Says: "a cache line that has to come from another node; a line is moved once at a time",
		From: "fitted: the same without the series, 6,274 KIOPS (posted: 6,255); all of the difference is charged to the counters", of: func(p *Params) *float64 { return &p.Far }},
	{Name: "hot-fields", Default: 1, Max: 1, Says: "1: nr_active_requests_shared_tags is on a line with fields that each I/O reads when it is sent and when it ends; 0: alone on its line",
		From: "posted: 20260402074637.92417-3-sumit.saxena@broadcom.com gave it a line of its own", of: func(p *Params) *float64 { return &p.HotFields }, whole: true},
	{Name: "word", Unit: "ns", Default: 5, Max: 1e6, Says: "a look at a word of the tag map, without its cache lines",
		From: "assumed", of: func(p *Params) *float64 { return &p.Word }},
	{Name: "sleep", Unit: "ns", Default: 2000, Max: 1e7, Says: "CPU time to go to sleep for a tag and to come back",
		From: "assumed: two context switches", of: func(p *Params) *float64 { return &p.Sleep }},
	{Name: "wake", Unit: "ns", Default: 500, Max: 1e7, Says: "CPU time to wake one that sleeps",
		From: "assumed", of: func(p *Params) *float64 { return &p.Wake }},
	{Name: "restart", Unit: "ns", Default: 500, Max: 1e7, Says: "CPU time to run a queue again for a request that waited for its device's queue_depth",
		From: "assumed", of: func(p *Params) *float64 { return &p.Restart }},
	{Name: "grace", Unit: "ms", Default: 0, Max: 1e6, Says: "time for which a drive without requests still counts as active; 0: as the kernel has it, 6 s; and of the load \"stops\" a third of the run",
		From: "kernel: BLK_MAX_TIMEOUT, rounded up to a second", of: func(p *Params) *float64 { return &p.Grace }},
}

// Parameters returns all, in the order of their tables.
func Parameters() []Parameter { return append([]Parameter(nil), parameters...) }

// DefaultParams returns each parameter's default.
func DefaultParams() Params {
	var p Params
	for _, q := range parameters {
		*q.of(&p) = q.Default
	}
	return p
}

// Value returns a parameter's value.
func (q Parameter) Value(p Params) float64 { return *q.of(&p) }

// Set sets a parameter, as in "far=200".
func (p *Params) Set(assignment string) error {
	name, value, ok := strings.Cut(assignment, "=")
	if !ok {
		return fmt.Errorf("share: %q: want NAME=VALUE", assignment)
	}
	v, err := strconv.ParseFloat(value, 64)
	if err != nil {
		return fmt.Errorf("share: %s: %q is no number", name, value)
	}
	names := make([]string, 0, len(parameters))
	for _, q := range parameters {
		if q.Name == name {
			*q.of(p) = v
			return q.check(*p)
		}
		names = append(names, q.Name)
	}
	return fmt.Errorf("share: no parameter named %q: there are %s", name, strings.Join(names, ", "))
}

func (q Parameter) check(p Params) error {
	v := q.Value(p)
	switch {
	case !(v >= q.Min && v <= q.Max): // NaN too
		return fmt.Errorf("share: %s %v: want %v to %v", q.Name, v, q.Min, q.Max)
	case q.whole && v != math.Trunc(v):
		return fmt.Errorf("share: %s %v: want a whole number", q.Name, v)
	}
	return nil
}
