package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// fioJob is a run of fio on a disk.
type fioJob struct {
	disk  string // "/dev/sda"
	depth int    // I/Os outstanding, of each job
	jobs  int    // each on a CPU of its own, and of another hardware queue
	args  []string
}

// fioRun is a fio that is running.
type fioRun struct {
	ctx         context.Context
	cmd         *exec.Cmd
	out, errOut bytes.Buffer
	done        chan struct{}
	err         error
}

// start starts fio. What it is told of the disk makes it fail, rather than
// write a plain file, when the disk isn't there.
func (j fioJob) start(ctx context.Context) (*fioRun, error) {
	fi, err := os.Stat(j.disk)
	if err != nil {
		return nil, fmt.Errorf("fio: %w", err)
	}
	if fi.Mode()&(os.ModeDevice|os.ModeCharDevice) != os.ModeDevice {
		return nil, fmt.Errorf("fio: %s is not a block device", j.disk)
	}
	args := append([]string{
		"--name=lunlab", "--filename=" + j.disk, "--direct=1", "--bs=4k", "--ioengine=io_uring",
		"--allow_mounted_write=0", "--randrepeat=0", "--group_reporting",
		fmt.Sprintf("--iodepth=%d", j.depth), fmt.Sprintf("--numjobs=%d", j.jobs),
		"--cpus_allowed=" + j.cpus(), "--cpus_allowed_policy=split",
		"--output-format=json",
	}, j.args...)
	r := &fioRun{ctx: ctx, cmd: exec.CommandContext(ctx, "fio", args...), done: make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.errOut
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its jobs are processes
	r.cmd.Cancel = r.signal
	r.cmd.WaitDelay = 5 * time.Second
	if err := r.cmd.Start(); err != nil {
		return nil, fmt.Errorf("fio: %w", err)
	}
	go func() {
		r.err = r.cmd.Wait()
		close(r.done)
	}()
	return r, nil
}

// cpus are one for each job: each of another hardware queue, as far as there are
// any, which get neighbouring CPUs. Where there are fewer CPUs, jobs share them.
func (j fioJob) cpus() string {
	var cpus []string
	lists, _ := filepath.Glob("/sys/block/" + filepath.Base(j.disk) + "/mq/*/cpu_list")
	for _, l := range lists[:min(len(lists), j.jobs)] {
		b, _ := os.ReadFile(l) // "0, 1"
		if first, _, _ := strings.Cut(strings.TrimSpace(string(b)), ","); first != "" {
			cpus = append(cpus, first)
		}
	}
	if len(cpus) < j.jobs {
		return fmt.Sprintf("0-%d", min(j.jobs, runtime.NumCPU())-1)
	}
	return strings.Join(cpus, ",")
}

// stop ends a fio that has no end of its own and returns what it reports.
func (r *fioRun) stop() (fioReport, error) {
	r.cmd.Process.Signal(syscall.SIGINT)
	if err := r.end(); err != nil {
		return fioReport{}, err
	}
	var exit *exec.ExitError
	if errors.As(r.err, &exit) && exit.ExitCode() == fioTerminated {
		r.err = nil
	}
	return r.wait()
}

// fioTerminated is fio's exit status after a signal that it ended well for.
const fioTerminated = 128

// end waits for fio's end, or its context's.
func (r *fioRun) end() error {
	select {
	case <-r.done:
		return nil
	case <-r.ctx.Done():
		return fmt.Errorf("fio: %w", context.Cause(r.ctx))
	}
}

// endsSoon says whether fio ends in that time.
func (r *fioRun) endsSoon(patience time.Duration) bool {
	select {
	case <-r.done:
		return true
	default:
	}
	select {
	case <-r.done:
		return true
	case <-time.After(patience):
		return false
	}
}

// kill ends fio, whatever it does, and waits for it, but not for ever: in the
// kernel, nothing can end it.
func (r *fioRun) kill() {
	select {
	case <-r.done:
		return
	default:
	}
	r.signal()
	select {
	case <-r.done:
	case <-time.After(5 * time.Second):
	}
}

// signal kills fio and its jobs.
func (r *fioRun) signal() error { return syscall.Kill(-r.cmd.Process.Pid, syscall.SIGKILL) }

// errCorrupt says that fio read something else than it had written.
var errCorrupt = errors.New("corrupt data")

// wait waits for fio's end and returns what it reports. An I/O error is an
// error, one of verification an [errCorrupt].
func (r *fioRun) wait() (fioReport, error) {
	if err := r.end(); err != nil {
		return fioReport{}, err
	}
	return fioResult(r.out.Bytes(), r.errOut.String(), r.err)
}

// Latency is the distribution of fio's completion latencies (clat), which include
// the time that an I/O waits for a tag and a budget token.
type Latency struct {
	Reads       uint64       `json:"reads"`
	MeanNS      float64      `json:"mean_ns"`
	MaxNS       uint64       `json:"max_ns"`
	Percentiles []Percentile `json:"percentiles"`
}

// Percentile says that so many percent of the I/Os took no longer.
type Percentile struct {
	Percent float64 `json:"percent"`
	NS      uint64  `json:"ns"`
}

// fioReport is what fio measured.
type fioReport struct {
	IOPS    float64  // reads and writes together
	Latency *Latency // of the reads; nil if there are none
}

// fioReads is fio's report of a job's reads.
type fioReads struct {
	IOPS float64
	Clat struct {
		N          uint64
		Mean       float64
		Max        uint64
		Percentile map[string]uint64
	} `json:"clat_ns"`
}

// drawn are the percentiles that are taken from fio's report.
var drawn = []string{"50.000000", "90.000000", "99.000000", "99.900000", "99.990000"}

// latency has those percentiles that ten reads or more were slower than: one that
// rests on fewer says nothing.
func (f *fioReads) latency() *Latency {
	if f.Clat.N == 0 {
		return nil
	}
	l := &Latency{Reads: f.Clat.N, MeanNS: f.Clat.Mean, MaxNS: f.Clat.Max}
	for _, name := range drawn {
		percent, _ := strconv.ParseFloat(name, 64)
		if ns, ok := f.Clat.Percentile[name]; ok && float64(l.Reads)*(100-percent) >= 1000 {
			// fio tells where a bucket ends, which may be after the slowest.
			l.Percentiles = append(l.Percentiles, Percentile{Percent: percent, NS: min(ns, l.MaxNS)})
		}
	}
	return l
}

// fioResult reads fio's report in JSON, what it said beside it, and how it
// exited.
func fioResult(out []byte, said string, exit error) (fioReport, error) {
	if i := bytes.IndexByte(out, '{'); i >= 0 { // fio puts some notes before
		said += string(out[:i])
		out = out[i:]
	}
	var report struct {
		Jobs []struct {
			Error int
			Read  fioReads
			Write struct{ IOPS float64 }
		}
	}
	// What follows the report is what it said of errors.
	d := json.NewDecoder(bytes.NewReader(out))
	jsonErr := d.Decode(&report)
	said += string(out[min(int(d.InputOffset()), len(out)):])
	var sum fioReport
	for _, j := range report.Jobs {
		switch e := syscall.Errno(j.Error); {
		case e == syscall.EILSEQ:
			return sum, fmt.Errorf("fio: %w: %s", errCorrupt, complaint(said))
		case e != 0:
			return sum, fmt.Errorf("fio: %w: %s", e, complaint(said))
		}
		sum.IOPS += j.Read.IOPS + j.Write.IOPS
	}
	switch {
	case exit != nil:
		return sum, fmt.Errorf("fio: %w: %s", exit, complaint(said))
	case jsonErr != nil:
		return sum, fmt.Errorf("fio's report: %w", jsonErr)
	case len(report.Jobs) == 0:
		return sum, errors.New("fio's report has no jobs")
	case len(report.Jobs) == 1: // of all processes: --group_reporting
		sum.Latency = report.Jobs[0].Read.latency()
	}
	return sum, nil
}

func (j fioJob) run(ctx context.Context) (fioReport, error) {
	r, err := j.start(ctx)
	if err != nil {
		return fioReport{}, err
	}
	return r.wait()
}

// complaint picks what fio says of an error out of all that it says, or else the
// last line.
func complaint(out string) string {
	var said []string
	last := ""
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if line != "" {
			last = line
		}
		for _, word := range []string{"fio:", "verify:", "crc32c:", "Expected CRC:", "Received CRC:"} {
			if strings.HasPrefix(line, word) {
				said = append(said, line)
			}
		}
	}
	if len(said) == 0 {
		return last
	}
	return strings.Join(said[:min(len(said), 4)], "; ")
}
