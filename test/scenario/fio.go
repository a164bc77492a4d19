package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// fioJob is a run of fio on a disk.
type fioJob struct {
	disk  string // "/dev/sda"
	depth int    // I/Os outstanding, of each job
	jobs  int    // each on a CPU of its own
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
	if fi.Mode()&os.ModeDevice == 0 {
		return nil, fmt.Errorf("fio: %s is not a block device", j.disk)
	}
	args := append([]string{
		"--name=lunlab", "--filename=" + j.disk, "--direct=1", "--bs=4k", "--ioengine=io_uring",
		"--allow_mounted_write=0", "--randrepeat=0", "--group_reporting",
		fmt.Sprintf("--iodepth=%d", j.depth), fmt.Sprintf("--numjobs=%d", j.jobs),
		fmt.Sprintf("--cpus_allowed=0-%d", j.jobs-1), "--cpus_allowed_policy=split",
		"--output-format=json",
	}, j.args...)
	r := &fioRun{ctx: ctx, cmd: exec.CommandContext(ctx, "fio", args...), done: make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.errOut
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

// stop ends a fio that has no end of its own and returns its IOPS.
func (r *fioRun) stop() (float64, error) {
	r.cmd.Process.Signal(syscall.SIGINT)
	if err := r.end(); err != nil {
		return 0, err
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

// kill ends fio, whatever it does, and waits for it, but not for ever: in the
// kernel, nothing can end it.
func (r *fioRun) kill() {
	r.cmd.Process.Kill()
	select {
	case <-r.done:
	case <-time.After(5 * time.Second):
	}
}

// wait waits for fio's end and returns the IOPS that it reports, reads and
// writes together. An I/O or verification error is an error.
func (r *fioRun) wait() (float64, error) {
	if err := r.end(); err != nil {
		return 0, err
	}
	b := r.out.Bytes()
	if i := bytes.IndexByte(b, '{'); i > 0 { // fio puts some notes before
		b = b[i:]
	}
	var res struct {
		Jobs []struct {
			Error       int
			Read, Write struct{ IOPS float64 }
		}
	}
	jsonErr := json.Unmarshal(b, &res)
	if r.err != nil || jsonErr != nil || len(res.Jobs) == 0 {
		return 0, fmt.Errorf("fio: %v: %s", firstError(r.err, jsonErr), complaint(r.errOut.String()+"\n"+r.out.String()))
	}
	var iops float64
	for _, j := range res.Jobs {
		if j.Error != 0 {
			return 0, fmt.Errorf("fio: %w: %s", syscall.Errno(j.Error), complaint(r.errOut.String()))
		}
		iops += j.Read.IOPS + j.Write.IOPS
	}
	return iops, nil
}

func (j fioJob) run(ctx context.Context) (float64, error) {
	r, err := j.start(ctx)
	if err != nil {
		return 0, err
	}
	return r.wait()
}

func firstError(errs ...error) error {
	for _, e := range errs {
		if e != nil {
			return e
		}
	}
	return fmt.Errorf("no jobs in its report")
}

// complaint picks what fio says of an error out of all that it prints.
func complaint(out string) string {
	var said []string
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "fio:") || strings.HasPrefix(line, "verify:") {
			said = append(said, line)
		}
	}
	return strings.Join(said[:min(len(said), 3)], "; ")
}
