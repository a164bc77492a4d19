// Command bench measures lunlab's iSCSI target side by side with other targets,
// and with an echo server that moves the same bytes and does nothing else: the
// ceiling. The same client drives them all, on this machine, one after the other
// in turns, each with a LUN in memory. What lunlab is to reach is said in the end,
// a line each, "pass" or "MISS".
//
//	go run ./test/bench [-time 1s] [-rounds 3] [-json FILE] [-only REGEXP]
//
// All of it takes five minutes, with -time 500ms less than three. A target that
// isn't installed is left out, and said so.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"
)

// subject is the server that the others are compared with, ceilingName the one
// that only echoes.
const (
	subject     = "lunlab"
	ceilingName = "echo"
)

// lunSize is the LUN of each target. It is written once in full before.
const lunSize = 256 << 20

// workload is what a run does.
type workload struct {
	Name        string `json:"name"`
	Write       bool   `json:"write"`
	Sequential  bool   `json:"sequential"`
	Bytes       int    `json:"bytes"` // of a command
	Depth       int    `json:"depth"` // of each connection
	Connections int    `json:"connections"`
}

func workloads() []workload {
	var ws []workload
	for _, conns := range []int{1, 4} {
		for _, write := range []bool{false, true} {
			op := map[bool]string{false: "read", true: "write"}[write]
			for _, depth := range []int{1, 8, 32, 128} {
				ws = append(ws, workload{fmt.Sprintf("4K random %s, depth %d, %d conn", op, depth, conns), write, false, 4096, depth, conns})
			}
			ws = append(ws, workload{fmt.Sprintf("256K sequential %s, depth 8, %d conn", op, conns), write, true, 256 << 10, 8, conns})
		}
	}
	// For the memory that many sessions take.
	return append(ws, workload{fmt.Sprintf("4K random read, depth 32, %d conn", rssSessions), false, false, 4096, 32, rssSessions})
}

// result is what a server did of a workload: medians of the rounds.
type result struct {
	Workload workload      `json:"workload"`
	Server   string        `json:"server"`
	IOPS     float64       `json:"iops"`
	P50      time.Duration `json:"p50_ns"`
	P99      time.Duration `json:"p99_ns"`

	// CPU is CPU-seconds of the server for a million I/Os.
	CPU float64 `json:"cpu_seconds_per_million"`
}

// report is the JSON that is written.
type report struct {
	Results []result `json:"results"`

	// PeakRSS is a server's peak resident memory in bytes, its LUN included.
	PeakRSS map[string]int64 `json:"peak_rss_bytes"`
	LUNSize int64            `json:"lun_bytes"`

	Aims []aim `json:"aims"`
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == echoCommand {
		fmt.Fprintln(os.Stderr, echoMain(os.Args[2]))
		os.Exit(1)
	}
	var (
		length = flag.Duration("time", time.Second, "how long each run takes")
		rounds = flag.Int("rounds", 3, "how often each is run; medians are shown")
		file   = flag.String("json", "", "write the results to this `file`")
		only   = flag.String("only", "", "only workloads whose name this `regexp` matches")
	)
	flag.Parse()
	runtime.LockOSThread() // see server.run
	if err := run(os.Stdout, *length, *rounds, *file, *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, length time.Duration, rounds int, file, only string) error {
	match, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "lunlab-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var servers []*server
	defer func() {
		for _, s := range servers {
			s.stop()
		}
	}()
	for _, start := range []func(string) (*server, error){startLunlab, startTgt, startIstgt, startEcho} {
		s, err := start(dir)
		var missing notInstalled
		if errors.As(err, &missing) {
			fmt.Fprintln(w, missing)
			continue
		}
		if err != nil {
			return err
		}
		servers = append(servers, s)
		if err := fill(s); err != nil {
			return fmt.Errorf("%s: fill the LUN: %w", s.name, err)
		}
	}
	rep := report{PeakRSS: map[string]int64{}, LUNSize: lunSize}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "server\tIOPS\tp50\tp99\tCPU s/M I/O\tIOPS of lunlab's\tCPU of lunlab's\t")
	for _, wl := range workloads() {
		if !match.MatchString(wl.Name) {
			continue
		}
		runs := map[string][]result{}
		for range rounds {
			for _, s := range servers {
				r, err := measure(s, wl, length)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", s.name, wl.Name, err)
				}
				runs[s.name] = append(runs[s.name], r)
			}
		}
		fmt.Fprintf(t, "%s\t\t\t\t\t\t\t\n", wl.Name)
		ours := median(runs[subject])
		for _, s := range servers {
			m := median(runs[s.name])
			rep.Results = append(rep.Results, m)
			fmt.Fprintf(t, "%s\t%.0f\t%v\t%v\t%.1f\t%.2f\t%.2f\t\n", s.name, m.IOPS, m.P50.Round(time.Microsecond), m.P99.Round(time.Microsecond),
				m.CPU, m.IOPS/ours.IOPS, m.CPU/ours.CPU)
		}
		t.Flush()
	}
	for _, s := range servers {
		rss, err := peakRSS(s.pid())
		if err != nil {
			return err
		}
		rep.PeakRSS[s.name] = rss
		fmt.Fprintf(w, "%s: peak RSS %d MiB, with a LUN of %d MiB%s\n", s.name, rss>>20, lunSize>>20, s.note)
	}
	fmt.Fprintln(w)
	rep.Aims = aims(&rep)
	for _, a := range rep.Aims {
		fmt.Fprintln(w, a)
	}
	if file == "" {
		return nil
	}
	b, err := json.MarshalIndent(rep, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}

// measure runs a workload once.
func measure(s *server, wl workload, length time.Duration) (result, error) {
	before, err := cpuTime(s.pid())
	if err != nil {
		return result{}, err
	}
	d, err := drive(s, wl, length)
	if err != nil {
		return result{}, err
	}
	after, err := cpuTime(s.pid())
	if err != nil {
		return result{}, err
	}
	slices.Sort(d.latencies)
	n := len(d.latencies)
	if n == 0 {
		return result{}, errors.New("nothing was done")
	}
	return result{
		Workload: wl, Server: s.name,
		IOPS: float64(n) / d.elapsed.Seconds(),
		P50:  d.latencies[n/2], P99: d.latencies[n*99/100],
		CPU: (after - before).Seconds() / float64(n) * 1e6,
	}, nil
}

// median takes the median of each figure.
func median(rs []result) result {
	m := rs[0]
	mid := func(f func(result) float64) float64 {
		var v []float64
		for _, r := range rs {
			v = append(v, f(r))
		}
		slices.Sort(v)
		return v[len(v)/2]
	}
	m.IOPS = mid(func(r result) float64 { return r.IOPS })
	m.P50 = time.Duration(mid(func(r result) float64 { return float64(r.P50) }))
	m.P99 = time.Duration(mid(func(r result) float64 { return float64(r.P99) }))
	m.CPU = mid(func(r result) float64 { return r.CPU })
	return m
}
