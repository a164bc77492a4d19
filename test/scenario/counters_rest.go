package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"lunlab/lun"
	"lunlab/queue"
)

// countersRest holds the SCSI core's counters against the target's own counts.
var countersRest = Scenario{
	Name:    "counters/rest",
	Shows:   "whether iorequest_cnt, iodone_cnt and ioerr_cnt, at rest, count exactly the commands that the target has answered",
	Hosts:   []string{TCMLoop},
	Timeout: time.Minute,
	run: onLoop(queue.Limits{HWQueues: 2, CanQueue: 64, CmdPerLUN: 64}, 1, func(ctx context.Context, r *run, h *loopHost) error {
		d := h.disks[0]
		names := []string{"iorequest_cnt", "iodone_cnt", "ioerr_cnt"}
		read := func() (c [3]uint64, err error) {
			for i, n := range names {
				if c[i], err = d.counter(n); err != nil {
					return c, err
				}
			}
			return c, nil
		}
		if err := r.settled(ctx, d); err != nil {
			return err
		}
		before, err := read()
		if err != nil {
			return err
		}
		start := d.witness.counted()

		r.step("reads")
		job := fioJob{disk: d.path(), depth: 48, jobs: 2, args: []string{"--rw=randread", "--size=4m", "--offset_increment=4m"}}
		if _, err := job.run(ctx); err != nil {
			return err
		}
		r.step("medium errors")
		const errs = 50
		d.witness.answer(func(c *lun.Command) bool {
			c.Fail(lun.Sense{Key: lun.MediumError, Code: 0x1100}) // UNRECOVERED READ ERROR
			return true
		})
		f, err := openDirect(d.path())
		if err != nil {
			return err
		}
		failed, err := readErrors(f, errs, syscall.ENODATA)
		d.witness.answer(nil)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		r.check("reads that failed with ENODATA", errs, failed, "")

		got := d.witness.counted()
		want := [3]uint64{got.Commands - start.Commands, got.Commands - start.Commands, got.Failed - start.Failed}
		after, err := read()
		if err != nil {
			return err
		}
		for i, n := range names {
			r.check(n, want[i], after[i]-before[i], "the target's own count")
		}
		r.fact("commands", want[0])
		r.fact("failed", want[2])
		return nil
	}),
}

// openDirect opens a disk for reads that pass the page cache by.
func openDirect(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECT, 0)
}

// readErrors reads blocks one after another and returns how many reads failed
// with that error; another is an error here.
func readErrors(f *os.File, n int, want syscall.Errno) (failed int, err error) {
	b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE) // aligned
	if err != nil {
		return 0, err
	}
	defer unix.Munmap(b)
	for i := range n {
		switch _, err := f.ReadAt(b, int64(i)*4096); {
		case errors.Is(err, want):
			failed++
		case err != nil:
			return failed, fmt.Errorf("read: %w", err)
		}
	}
	return failed, nil
}
