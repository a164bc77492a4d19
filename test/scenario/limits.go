package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"lunlab/queue"
	"lunlab/target"
	"lunlab/test/probe"
)

// Times of a case. Under emulation an I/O takes half a millisecond.
const (
	stuckTime    = 15 * time.Second // a scan that takes longer hangs
	iopsTime     = time.Second
	turnover     = 200 * time.Millisecond // ten times what a command of scsi_debug takes
	fillQuiet    = 200 * time.Millisecond // nothing more comes
	fillPatience = 3 * time.Second        // the same, while they are fewer than predicted
	fillTries    = 5
)

// run is a scenario that is being carried out.
type run struct {
	*runner
	Result
	scenario Scenario
	disk     *disk
	pred     queue.Prediction
	probe    *probe.Probe // of all devices; each run has its own, since the next may get the same address for its disk; nil if the kernel has none
	at       string       // the step that is being done
	recorder *recorder    // of the timeline, while there is one

	hostsBefore []string // the hosts that were there before the scenario
	lookOnce    sync.Once
}

func (r *run) step(what string) {
	r.at = what
	if r.recorder != nil {
		r.recorder.step(what)
	}
	r.emit(Event{Step: &Step{Scenario: r.Name, What: what}})
}

// limits carries the case out: attach, compare what the kernel made of the
// limits, verify data, measure, and watch what is in flight while queue_depth
// is lowered and raised again.
func (r *run) limits(ctx context.Context) error {
	r.LimitsResult = &LimitsResult{Case: r.scenario.limits, Before: noPeak, Lowered: noPeak, Raised: noPeak}
	r.Case.CPUs = r.cpus
	if r.layout == nil && (r.Case.Host == SCSIDebug || machineOf(r.scenario) != "") {
		r.Verdict = Skipped
		return errors.New("the target isn't ours, and the kernel has no probe: nobody counts what is in flight")
	}
	if r.host == nil && r.Case.Host == VirtIOSCSI {
		r.Verdict = Skipped
		return errNoHost
	}
	r.at = "predict"
	if err := r.predict(); err != nil {
		return err
	}
	r.step("attach")
	d, err := r.scan(ctx)
	if d == nil {
		return err
	}
	r.disk, r.Disk, r.Device = d, "/dev/"+d.name, d.device
	if err := r.exercise(ctx); err != nil {
		return errors.Join(err, r.detach())
	}
	r.step("detach")
	return r.detach()
}

// scan attaches the case's disk. Where the rules say that the kernel never ends
// the scan of its LUNs, that is checked, and there is no disk.
func (r *run) scan(ctx context.Context) (*disk, error) {
	if !r.pred.Stuck {
		return r.attach(ctx, r.Case)
	}
	if !r.Disposable {
		r.Verdict = Skipped
		return nil, errors.New("the rules say that the LUN scan hangs here, with a task that nothing can end: try it in a guest")
	}
	ctx, end := r.limit(ctx, stuckTime, errScanHangs)
	defer end()
	d, err := r.attach(ctx, r.Case)
	if errors.Is(err, errScanHangs) {
		r.MapObserved = scanHangs
		r.check(lunScan, "hangs", "hangs", r.pred.Reason)
		return nil, ErrStuck
	}
	if err == nil {
		r.check(lunScan, "hangs", "ends", r.pred.Reason)
	}
	return d, err
}

// scanHangs is what the budget map's columns say of a device that the kernel
// never finishes to scan.
const scanHangs = "scan hangs"

// lunScan is the check of whether it ends.
const lunScan = "LUN scan"

var errScanHangs = fmt.Errorf("the scan has not ended after %v", stuckTime)

func (r *run) detach() error {
	r.release()
	return r.disk.remove()
}

// predict takes what the rules that fit the kernel say. Where several do and
// are not of one mind about this case, there is no prediction.
func (r *run) predict() error {
	r.LowerTo = r.Case.LowerTo()
	agree, err := queue.Agree(r.rules, r.Case.Limits, r.LowerTo)
	if err != nil {
		return err
	}
	if !agree {
		if r.layout == nil {
			r.Verdict = Skipped
		}
		return fmt.Errorf("no prediction: the rules that fit this kernel differ here; see lunlab rules, and --rules")
	}
	if r.pred, err = r.rules[0].Predict(r.Case.Limits, r.LowerTo); err != nil {
		return err
	}
	r.MapPredicted = mapWord(r.pred.Allocated)
	if r.pred.Stuck {
		r.MapPredicted, r.LowerTo = scanHangs, 0
	}
	return nil
}

func mapWord(allocated bool) string {
	if allocated {
		return "allocated"
	}
	return "elided"
}

func (r *run) exercise(ctx context.Context) error {
	d, pred := r.disk, r.pred
	if err := d.waitQueue(ctx); err != nil {
		return err
	}
	// An I/O scheduler has tags of its own, fewer than can_queue; merging makes
	// one command of two I/Os; a command that waits its turn is not to time out.
	if err := errors.Join(d.set("none", "queue/scheduler"), d.set(2, "queue/nomerges"), d.set(300, "device/timeout")); err != nil {
		return err
	}
	if err := r.checkLimits(); err != nil {
		return err
	}
	if err := r.checkClamp(); err != nil {
		return err
	}
	depth := r.Case.fioDepth()
	jobs := pred.HWQueues

	if err := r.verify(ctx, depth, jobs); err != nil {
		return err
	}

	r.step("read IOPS")
	read := fioJob{disk: r.Disk, depth: depth, jobs: jobs, args: []string{
		"--rw=randread", "--norandommap", "--time_based", "--runtime=" + fmt.Sprint(iopsTime.Milliseconds()) + "ms",
	}}
	report, err := read.run(ctx)
	if err != nil {
		return err
	}
	r.IOPS, r.Latency = report.IOPS, report.Latency

	if err := r.watchDepth(ctx, fioJob{disk: r.Disk, depth: depth, jobs: jobs, args: []string{
		"--rw=randread", "--norandommap", "--time_based", "--runtime=600",
	}}); err != nil {
		return err
	}
	return r.checkRest(ctx)
}

// verify writes and reads back, with more I/Os outstanding than the host takes.
// What is read wrong is a difference; that it couldn't be tried is an error.
func (r *run) verify(ctx context.Context, depth, jobs int) error {
	r.step("verify")
	size := max(2<<20, 4096*depth) // of each job, on a part of the disk of its own
	_, err := fioJob{disk: r.Disk, depth: depth, jobs: jobs, args: []string{
		"--rw=randwrite", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1",
		fmt.Sprintf("--size=%d", size), fmt.Sprintf("--offset_increment=%d", size),
	}}.run(ctx)
	if err != nil && !errors.Is(err, errCorrupt) {
		return fmt.Errorf("write with crc32c verify: %w", err)
	}
	observed := "verified"
	if err != nil {
		observed = err.Error()
	}
	r.check("written data, crc32c", "verified", observed, "")
	return nil
}

// checkLimits compares the limits and the map that the kernel has with what is
// predicted.
func (r *run) checkLimits() error {
	for _, a := range []struct {
		name string
		want int
	}{
		{"can_queue", r.Case.CanQueue},
		{"cmd_per_lun", r.pred.CmdPerLUN},
		{"nr_hw_queues", r.pred.HWQueues},
	} {
		got, err := r.disk.hostAttr(a.name)
		if err != nil {
			return err
		}
		r.check(a.name, a.want, got, "")
	}
	var err error
	if r.QueueDepth, err = r.disk.queueDepth(); err != nil {
		return err
	}
	r.check("queue_depth", r.pred.QueueDepth, r.QueueDepth, "")
	return nil
}

// checkClamp writes the largest depth there is to a device whose driver cuts it to
// cmd_per_lun without a word.
func (r *run) checkClamp() error {
	most := r.Case.DeviceMax()
	if !r.Case.ClampsDepth || r.QueueDepth >= most {
		return nil
	}
	model, err := r.rules[0].Attach(r.Case.Limits)
	if err != nil {
		return err
	}
	w := model.WriteDepth(most)
	if !w.Accepted {
		return nil // what is refused is tried when the depth is lowered
	}
	if err := r.disk.set(most, "device/queue_depth"); err != nil {
		return err
	}
	read, err := r.disk.queueDepth()
	if err != nil {
		return err
	}
	r.check(fmt.Sprintf("queue_depth %d written, reads back", most), w.QueueDepth, read, "the driver cuts it to cmd_per_lun")
	return nil
}

// watchDepth holds completions back, so that what is in flight is all that the
// kernel lets be in flight, at the first depth, a lowered and the first again.
func (r *run) watchDepth(ctx context.Context, job fioJob) error {
	r.record(r.disk)
	defer r.recorded()
	r.step("fill")
	if err := r.watch(); err != nil {
		return err
	}
	fio, err := job.start(ctx)
	if err != nil {
		return err
	}
	defer fio.kill()
	defer r.release() // first, or fio could not end
	if err := r.waitFirst(ctx); err != nil {
		return err
	}
	dev, err := r.peak(ctx, r.pred.MaxInFlight, &r.Before)
	if err != nil {
		return err
	}
	r.checkPeak(fmt.Sprintf("most in flight at queue_depth %d", r.QueueDepth), r.pred.MaxInFlight, r.Before, "")
	if r.probe != nil {
		r.MapObserved = string(dev.Map)
		r.check("budget map", r.MapPredicted, r.MapObserved, r.pred.Reason)
		r.checkTokens(dev)
	}

	if w := r.pred.Lowered; w != nil {
		r.step(fmt.Sprintf("lower queue_depth to %d", r.LowerTo))
		if r.LowerErr, err = r.write(ctx, *w, &r.Lowered); err != nil {
			return err
		}
		r.step(fmt.Sprintf("raise queue_depth to %d", r.QueueDepth))
		if _, err := r.write(ctx, *r.pred.Raised, &r.Raised); err != nil {
			return err
		}
	}
	r.release()
	r.step("stop fio")
	_, err = fio.stop()
	return err
}

// waitFirst waits until fio's first command has come: patience with what is
// missing begins there.
func (r *run) waitFirst(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("no command of fio came"))
	defer cancel()
	for r.peakNow() == 0 {
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			if m := r.disk.meter; m != nil {
				err = fmt.Errorf("%w: in the kernel; %d are at the target", err, m.InFlight())
			}
			return err
		}
	}
	return nil
}

// write writes a queue_depth while I/O runs and watches what is in flight then.
// It returns the errno's name if the kernel refused the depth.
func (r *run) write(ctx context.Context, w queue.DepthWrite, peak *Peak) (refused string, err error) {
	what := fmt.Sprintf("queue_depth %d written", w.Requested)
	var no syscall.Errno
	switch err := r.disk.set(w.Requested, "device/queue_depth"); {
	case errors.As(err, &no):
		refused = unix.ErrnoName(no)
	case err != nil:
		return "", err
	}
	r.check(what, cmp.Or(w.Error, "accepted"), cmp.Or(refused, "accepted"), w.Reason)
	read, err := r.disk.queueDepth()
	if err == nil && w.Accepted && read > w.QueueDepth { // see queue.DepthWrite
		if err = r.disk.set(w.Requested, "device/queue_depth"); err == nil {
			read, err = r.disk.queueDepth()
		}
	}
	if err != nil {
		return refused, err
	}
	r.check(what+", reads back", w.QueueDepth, read, "")

	if err := r.turnOver(ctx); err != nil {
		return refused, err
	}
	if err := r.watch(); err != nil {
		return refused, err
	}
	if _, err := r.peak(ctx, w.MaxInFlight, peak); err != nil {
		return refused, err
	}
	r.checkPeak(fmt.Sprintf("most in flight after queue_depth %d was written", w.Requested), w.MaxInFlight, *peak, w.Reason)
	return refused, nil
}

// turnOver lets all end that was started so far, at the target and then in the
// kernel, which may have thousands of completions to see to. One that has a token
// above a lowered map's depth isn't counted by the map, so that another may start.
func (r *run) turnOver(ctx context.Context) error {
	begun := time.Now()
	if m := r.disk.meter; m != nil {
		limited, cancel := context.WithTimeoutCause(ctx, 20*time.Second, errors.New("commands that were let go did not end"))
		defer cancel()
		until := m.Done() + uint64(m.InFlight())
		m.Release()
		for m.Done() < until {
			if err := sleep(limited, 5*time.Millisecond); err != nil {
				return err
			}
		}
	}
	if err := sleep(ctx, turnover); err != nil || r.probe == nil {
		return err
	}
	err := r.until(ctx, 20*time.Second, func() (bool, error) {
		since := time.Since(begun)
		held, err := r.probe.Held()
		return !slices.ContainsFunc(held, func(h probe.Held) bool { return h.Address == r.disk.device && h.Age > since }), err
	})
	if errors.Is(err, errNotYet) {
		return errors.New("commands from before did not end in the kernel")
	}
	return err
}

// watch begins a new watch of both witnesses and, where the target is ours,
// holds completions back.
func (r *run) watch() error {
	if r.probe != nil {
		if _, err := r.probe.Mark(); err != nil {
			return err
		}
	}
	if m := r.disk.meter; m != nil {
		m.Mark()
		m.Hold()
	}
	return nil
}

// peak stores the most in flight of this watch, once no more come.
func (r *run) peak(ctx context.Context, want int, p *Peak) (probe.Device, error) {
	if m := r.disk.meter; m != nil {
		// The kernel looks for what it may start when a command ends. If it
		// fails to get a budget token just as another CPU frees one, it leaves
		// that to the next command that ends, of which there is none while all
		// are held: so some have to be let go.
		for range fillTries {
			if _, err := target.Settle(ctx, m.InFlight, want, fillQuiet, fillPatience); err != nil {
				return probe.Device{}, err
			}
			// The target's most may be of when the watch began, which the probe
			// tells of only as commands start.
			if p.Target = m.Most(); p.Target >= want && r.peakNow() >= want {
				break
			}
			m.Release()
			m.Hold()
		}
	} else if _, err := target.Settle(ctx, r.peakNow, want, 3*turnover, fillPatience); err != nil {
		return probe.Device{}, err
	}
	if r.probe == nil {
		return probe.Device{}, nil
	}
	dev, err := r.probed()
	if err != nil {
		return dev, err
	}
	p.Device = most(dev)
	return dev, nil
}

// peakNow is the most in flight of this watch so far, 0 if it isn't known.
func (r *run) peakNow() int {
	if r.probe == nil {
		return r.disk.meter.Most()
	}
	dev, err := r.probed()
	if err != nil {
		return 0
	}
	return most(dev)
}

// most is the most in flight of a device since the last mark: what was when a
// command started, or what is, if those that were held had all started before.
func most(d probe.Device) int {
	return max(d.Phases[len(d.Phases)-1].MaxInFlight, d.InFlight)
}

func (r *run) release() {
	if r.disk.meter != nil {
		r.disk.meter.Release()
	}
}

// What a check looked at ends with its witness.
const (
	atTarget = ", at the target"
	inKernel = ", in the kernel"
)

// checkPeak checks both witnesses.
func (r *run) checkPeak(what string, want int, p Peak, why string) {
	if p.Target >= 0 {
		r.check(what+atTarget, want, p.Target, why)
	}
	if r.probe != nil {
		r.check(what+inKernel, want, p.Device, why)
	}
}

// checkTokens checks the range of the budget tokens: INT_MAX for all commands
// of a device without a map, else within the map.
func (r *run) checkTokens(d probe.Device) {
	want := fmt.Sprintf("%d to %d", r.pred.MinToken, r.pred.MaxToken)
	r.Checks = append(r.Checks, Check{
		What:      "budget tokens",
		Predicted: "within " + want,
		Observed:  fmt.Sprintf("%d to %d", d.MinToken, d.MaxToken),
		OK:        d.MinToken >= r.pred.MinToken && d.MaxToken <= r.pred.MaxToken,
	})
}

// checkRest checks that nothing is left when nothing runs.
func (r *run) checkRest(ctx context.Context) error {
	if m := r.disk.meter; m != nil {
		r.check("in flight at rest, at the target", 0, m.InFlight(), "")
	}
	if err := r.checkProbeRest(); err != nil {
		return err
	}
	busy, err := r.idle(ctx, r.disk)
	r.check("device_busy at rest", 0, busy, r.pred.DeviceBusy)
	return err
}

func (r *run) checkProbeRest() error {
	if r.probe == nil {
		return nil
	}
	dev, err := r.probed()
	if err != nil {
		return err
	}
	r.check("in flight at rest, in the kernel", 0, dev.InFlight, "")
	lost, err := r.probe.Lost()
	if err != nil {
		return err
	}
	r.check("what the probe lost", probe.Lost{}, lost, "")
	return nil
}

// probed returns what the probe knows of the case's device.
func (r *run) probed() (probe.Device, error) {
	if r.probe == nil {
		return probe.Device{}, errors.New("the kernel has no probe")
	}
	devs, err := r.probe.Snapshot()
	if err != nil {
		return probe.Device{}, err
	}
	for _, d := range devs {
		if d.Address == r.disk.device && len(d.Phases) > 0 {
			return d, nil
		}
	}
	return probe.Device{}, fmt.Errorf("the probe has seen no command of %s", r.disk.device)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
