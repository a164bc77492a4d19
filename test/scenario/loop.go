package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"lunlab/queue"
	"lunlab/test/probe"
)

// onLoop is the run of a scenario on a tcm_loop host with these limits and LUNs
// of ours: it makes them, has steps carry the scenario out, sees that nothing is
// in flight then, and takes them away.
func onLoop(l queue.Limits, luns int, steps func(context.Context, *run, *loopHost) error) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		r.step("attach")
		h, err := r.loopHost(ctx, l, luns)
		if err != nil {
			return err
		}
		defer func() { // whatever happened
			for _, d := range h.disks {
				d.witness.answer(nil)
				d.meter.Release()
			}
		}()
		r.disk = h.disks[0]
		err = func() error {
			for _, d := range h.disks {
				if err := d.waitQueue(ctx); err != nil {
					return err
				}
				if err := errors.Join(d.set("none", "queue/scheduler"), d.set(2, "queue/nomerges")); err != nil {
					return err
				}
			}
			r.record(h.disks...)
			defer r.recorded()
			if err := steps(ctx, r, h); err != nil {
				return err
			}
			return r.rest(ctx, h)
		}()
		for _, d := range h.disks {
			d.witness.answer(nil)
			d.meter.Release()
		}
		if err != nil {
			return errors.Join(err, h.remove())
		}
		r.step("detach")
		return h.remove()
	}
}

// rest checks that nothing is in flight, at the target nor in the kernel, once
// nothing runs any more.
func (r *run) rest(ctx context.Context, h *loopHost) error {
	r.step("at rest")
	for _, d := range h.disks {
		what := ""
		if len(h.disks) > 1 {
			what = " of " + d.device
		}
		n, err := r.idle(ctx, d)
		if err != nil {
			return err
		}
		r.check("in flight at rest, at the target"+what, 0, d.meter.InFlight(), "")
		r.check("device_busy at rest"+what, 0, n, "")
	}
	return nil
}

// idle waits a while for device_busy, and the target's count, to be 0, and returns
// device_busy: what ended is taken out of the counts a moment later.
func (r *run) idle(ctx context.Context, d *disk) (busy int, err error) {
	err = r.until(ctx, 10*time.Second, func() (_ bool, err error) {
		busy, err = readInt("/sys/block/"+d.name, "device/device_busy")
		return busy == 0 && (d.meter == nil || d.meter.InFlight() == 0), err
	})
	if errors.Is(err, errNotYet) {
		err = nil
	}
	return busy, err
}

// settled waits until the kernel has let a disk be for a while: the last commands of
// its scan come after its node in /dev.
func (r *run) settled(ctx context.Context, d *disk) error {
	var last uint64
	var since time.Time
	err := r.until(ctx, 30*time.Second, func() (bool, error) {
		n, err := d.counter("iorequest_cnt")
		if done, derr := d.counter("iodone_cnt"); err != nil || derr != nil || n != done || n != last {
			last, since = n, time.Now()
			return false, errors.Join(err, derr)
		}
		return time.Since(since) > 300*time.Millisecond, nil
	})
	if err != nil {
		return fmt.Errorf("%s doesn't come to rest: %w", d.name, err)
	}
	return nil
}

// goesOn waits until the disk has done more commands. Where it doesn't, what hangs is
// looked at.
func (r *run) goesOn(ctx context.Context, d *disk) error {
	done := func() (uint64, error) {
		if d.meter != nil {
			return d.meter.Done(), nil
		}
		return d.counter("iodone_cnt")
	}
	first, err := done()
	if err != nil {
		return err
	}
	err = r.until(ctx, time.Minute, func() (bool, error) {
		n, err := done()
		return n >= first+50, err
	})
	if errors.Is(err, errNotYet) {
		r.look()
	}
	if err != nil {
		return fmt.Errorf("no I/O on %s: %w", d.name, err)
	}
	return nil
}

// errNotYet is [run.until]'s error when it has waited in vain.
var errNotYet = errors.New("not yet")

// until waits until ok, for so long.
func (r *run) until(ctx context.Context, patience time.Duration, ok func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errNotYet)
	defer cancel()
	for {
		done, err := ok()
		if done || err != nil {
			return err
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// openProbe watches the commands of all devices until closeProbe, if the kernel has
// what it takes.
func (r *run) openProbe() (err error) {
	if r.layout != nil {
		r.probe, err = probe.Open(probe.Options{Layout: r.layout})
	}
	return err
}

func (r *run) closeProbe() {
	if r.probe != nil {
		r.probe.Close()
	}
}

// path is the disk's device node.
func (d *disk) path() string { return "/dev/" + d.name }

// endless reads 4 KiB blocks at random until it is stopped.
func endless(d *disk, depth, jobs int) fioJob {
	return fioJob{disk: d.path(), depth: depth, jobs: jobs, args: []string{"--rw=randread", "--norandommap", "--time_based", "--runtime=600"}}
}

// verified writes a part of the disk and reads it back.
func verified(d *disk, depth, jobs int) fioJob {
	return fioJob{disk: d.path(), depth: depth, jobs: jobs, args: []string{
		"--rw=randwrite", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--size=2m", "--offset_increment=2m",
	}}
}

// checkVerified writes and reads back, and checks that nothing was read wrong
// and nothing failed.
func (r *run) checkVerified(ctx context.Context, what string, job fioJob) error {
	_, err := job.run(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	r.checkNone(what, err)
	return nil
}

// checkNone checks that there was no error.
func (r *run) checkNone(what string, err error) {
	seen := "no error"
	if err != nil {
		seen = err.Error()
	}
	r.check(what, "no error", seen, "")
}

// checkAtLeast checks a count that has a lower bound.
func (r *run) checkAtLeast(what string, least, seen int, why string) {
	r.Checks = append(r.Checks, Check{
		What: what, Predicted: fmt.Sprintf("at least %d", least), Observed: fmt.Sprint(seen), OK: seen >= least, AtLeast: true, Why: why,
	})
}

// entries returns the names in a folder of sysfs or configfs.
func entries(dir string) []string {
	all, _ := filepath.Glob(dir + "/*")
	for i := range all {
		all[i] = filepath.Base(all[i])
	}
	return all
}

// write puts a value into a file of sysfs.
func writeFile(file, value string) error { return os.WriteFile(file, []byte(value), 0) }

// appear waits until a SCSI device has a disk, and returns the disk's name.
func (r *run) appear(ctx context.Context, hctl string) (name string, err error) {
	err = r.until(ctx, 20*time.Second, func() (bool, error) {
		for _, n := range entries("/sys/bus/scsi/devices/" + hctl + "/block") {
			if _, err := os.Stat("/dev/" + n); err == nil {
				name = n
			}
		}
		return name != "", nil
	})
	if err != nil {
		return "", fmt.Errorf("a disk of %s: %w", hctl, err)
	}
	return name, nil
}

// list names things in a row.
func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, " ")
}
