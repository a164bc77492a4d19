package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ehEscalation has a disk answer nothing any more, until the kernel gives it up.
var ehEscalation = Scenario{
	Name:    "eh/escalation",
	Shows:   "how the kernel gives up a disk that answers nothing: every step from the first time-out to offline, and when",
	Hosts:   []string{SCSIDebug},
	Timeout: 5 * time.Minute,
	virtual: true,
	run: func(ctx context.Context, r *run) error {
		r.step("attach")
		d, err := debugDisk(ctx)
		if err != nil {
			return err
		}
		return errors.Join(r.escalation(ctx, d), d.remove())
	},
}

// Options of scsi_debug (SDEBUG_OPT_*).
const (
	debugTimeout    = 0x4    // every_nth commands aren't answered
	debugResetNoise = 0x2000 // say so when an abort or a reset comes
)

// Times of the kernel's error handling, in seconds.
const (
	commandTimeout = 30 // device/timeout
	ehTimeout      = 10 // device/eh_timeout, of the TEST UNIT READY after a reset
	resetSettle    = 10 // BUS_RESET_SETTLE_TIME, HOST_RESET_SETTLE_TIME
)

// escalationSteps are what the kernel does for a command that isn't answered, each
// when the one before it was in vain. scsi_debug says that it took every one, but
// the TEST UNIT READY that is to show it isn't answered either. A read is aborted
// and tried again once; the second time-out goes further.
var escalationSteps = []struct {
	log, name string
	at        int // seconds after the command
}{
	{"scsi_debug_abort", "abort", commandTimeout},
	{"scsi_debug_device_reset", "device reset", 2 * commandTimeout},
	{"scsi_debug_target_reset", "target reset", 2*commandTimeout + ehTimeout},
	{"scsi_debug_bus_reset", "bus reset", 2*commandTimeout + 2*ehTimeout},
	{"scsi_debug_host_reset", "host reset", 2*commandTimeout + 3*ehTimeout + resetSettle},
	{"Device offlined - not ready after error recovery", "offline", 2*commandTimeout + 4*ehTimeout + 2*resetSettle},
}

func (r *run) escalation(ctx context.Context, d *disk) error {
	if err := errors.Join(d.set(commandTimeout, "device/timeout"), d.set(ehTimeout, "device/eh_timeout")); err != nil {
		return err
	}
	r.step("read")
	steps, err := r.giveUp(ctx, d)
	if err != nil {
		return err
	}
	r.checkSteps(steps)
	state, err := d.sysfs("device/state")
	if err != nil {
		return err
	}
	r.check("state of the device", "offline", state, "")
	r.step("bring it back")
	if err := d.set("running\n", "device/state"); err != nil {
		return err
	}
	r.checkNone("a read of the disk that was brought back", within(ctx, func() error { return readDirect(d.path(), 0) }))
	return ctx.Err()
}

// ehStep is a step that the kernel's log told of.
type ehStep struct {
	name string
	at   time.Duration // after the command
}

// giveUp reads from a disk that answers nothing, and returns the steps that the log
// tells of, in its order, each when it came first.
func (r *run) giveUp(ctx context.Context, d *disk) ([]ehStep, error) {
	log, err := openKmsg()
	if err != nil {
		return nil, err
	}
	defer log.close()
	defer debugParams("0", 0)
	begin := fmt.Sprintf("lunlab: %s answers nothing from now on", d.name)
	if err := errors.Join(debugParams("1", debugTimeout|debugResetNoise), writeFile("/dev/kmsg", begin)); err != nil {
		return nil, err
	}
	err = within(ctx, func() error { return readDirect(d.path(), 0) })
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	r.check("the read", unix.EIO, err, "")
	var start time.Duration
	var steps []ehStep
	err = log.each(func(rec record) {
		if rec.text == begin {
			start = rec.at
		}
		for _, s := range escalationSteps {
			came := func(e ehStep) bool { return e.name == s.name }
			if strings.Contains(rec.text, s.log) && !slices.ContainsFunc(steps, came) {
				steps = append(steps, ehStep{s.name, rec.at - start})
			}
		}
	})
	return steps, err
}

// checkSteps checks that all came, in order, and when. A kernel's timers are up to
// an eighth late, and an emulated one's have more reasons to be.
func (r *run) checkSteps(steps []ehStep) {
	var want, seen []string
	for _, s := range escalationSteps {
		want = append(want, s.name)
	}
	for _, s := range steps {
		seen = append(seen, s.name)
		r.fact(s.name, s.at)
	}
	r.check("steps", strings.Join(want, ", "), strings.Join(seen, ", "), "")
	for i := range min(len(steps), len(escalationSteps)) {
		at, s := time.Duration(escalationSteps[i].at)*time.Second, steps[i]
		late := at + at/8 + 10*time.Second
		r.Checks = append(r.Checks, Check{
			What: s.name + ", after", Predicted: fmt.Sprintf("%v to %v", at, late), Observed: s.at.String(), OK: s.at >= at && s.at <= late,
		})
	}
}

// debugParams sets what becomes of scsi_debug's commands.
func debugParams(everyNth string, opts int) error {
	const dir = "/sys/bus/pseudo/drivers/scsi_debug/"
	return errors.Join(writeFile(dir+"every_nth", everyNth), writeFile(dir+"opts", fmt.Sprint(opts)))
}

// debugDisk is a disk of scsi_debug: one of a host that is built in, or else of one
// that is made.
func debugDisk(ctx context.Context) (*disk, error) {
	found, _ := filepath.Glob("/sys/bus/pseudo/drivers/scsi_debug/adapter*/host*/target*/*:*:*:*/block/*")
	if len(found) == 0 {
		return attachDebug(ctx, Case{Host: SCSIDebug, Limits: debugLimits})
	}
	d := &disk{name: filepath.Base(found[0]), device: filepath.Base(filepath.Dir(filepath.Dir(found[0])))}
	d.remove = func() error { return nil }
	return d, nil
}

// readDirect reads 4 KiB at an offset, from the disk itself.
func readDirect(path string, off int64) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	defer unix.Munmap(b)
	_, err = unix.Pread(int(f.Fd()), b, off)
	return err
}
