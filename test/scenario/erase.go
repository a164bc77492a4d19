package scenario

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"lunlab/lun"
	"lunlab/queue"
)

// eraseSanitize and eraseFormat have the whole medium overwritten while I/O runs,
// by a command that returns at once. What comes meanwhile is NOT READY.
var (
	eraseSanitize = erase("erase/sanitize", "SANITIZE OVERWRITE", []byte{0x48, 0x81, 0, 0, 0, 0, 0, 0, 8, 0},
		[]byte{1, 0, 0, 4, 'e', 'r', 'a', 's'}, []byte("eras"))
	eraseFormat = erase("erase/format", "FORMAT UNIT", []byte{0x04, 0x10, 0, 0, 0, 0}, []byte{0, 0x02, 0, 0}, make([]byte, 4))
)

// erase is the scenario of a command with its parameter list, which leaves a pattern
// everywhere.
func erase(name, command string, cdb, list, pattern []byte) Scenario {
	return Scenario{
		Name:    name,
		Shows:   "whether reads wait, without an error, while " + command + " goes over the medium, and then find what it has left there",
		Hosts:   []string{TCMLoop},
		Timeout: 2 * time.Minute,
		run: onLoop(queue.Limits{HWQueues: 1, CanQueue: 64, CmdPerLUN: 64}, 1, func(ctx context.Context, r *run, h *loopHost) error {
			d := h.disks[0]
			if err := writeStart(d.path(), bytes.Repeat([]byte("lunlab. "), 512)); err != nil {
				return err
			}
			var notReady, after atomic.Int64 // after: reads that were answered again
			d.witness.answer(func(c *lun.Command) bool {
				refused := notReady.Load() > 0 // before this one came
				d.witness.Unit.Execute(c)
				switch {
				case c.Status == lun.CheckCondition && len(c.Sense) > 2 && c.Sense[2]&0xf == byte(lun.NotReady):
					notReady.Add(1)
				case c.Status == lun.Good && refused && isRead(c):
					after.Add(1)
				}
				return true
			})
			fio, err := endless(d, 32, 1).start(ctx)
			if err != nil {
				return err
			}
			defer fio.kill()
			if err := r.goesOn(ctx, d); err != nil {
				return err
			}
			r.step(command)
			f, err := os.OpenFile(d.path(), os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			start := time.Now()
			if err := within(ctx, func() error { return sgWrite(int(f.Fd()), cdb, list) }); err != nil {
				return fmt.Errorf("%s: %w", command, err)
			}
			r.fact("the command took", time.Since(start).Round(time.Millisecond))
			if err := r.until(ctx, time.Minute, func() (bool, error) { return after.Load() > 0, nil }); err != nil {
				return fmt.Errorf("no read was answered after %s: %w", command, err)
			}
			waited := time.Since(start)
			if err := r.goesOn(ctx, d); err != nil {
				return err
			}
			_, err = fio.stop()
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			r.checkNone("the reads", err)
			r.checkAtLeast("commands that were NOT READY", 1, int(notReady.Load()), "they came while it was in progress")
			r.checkAtLeast("ms until reads were answered again", int(eraseTime.Milliseconds()), int(waited.Milliseconds()), "what the target takes")
			r.fact("NOT READY", notReady.Load())
			r.fact("reads waited for", waited.Round(10*time.Millisecond))
			r.step("what is left")
			same, err := holds(d.path(), pattern)
			if err != nil {
				return err
			}
			r.check("the medium holds the pattern", true, same, "")
			return nil
		}),
	}
}

// isRead says whether it is a READ that Linux sends.
func isRead(c *lun.Command) bool {
	return len(c.CDB) > 0 && (c.CDB[0] == 0x28 || c.CDB[0] == 0x88)
}

// holds says whether a pattern is all there is on a disk.
func holds(path string, pattern []byte) (bool, error) {
	f, err := openDirect(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	got, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE) // aligned
	if err != nil {
		return false, err
	}
	defer unix.Munmap(got)
	want := bytes.Repeat(pattern, len(got)/len(pattern))
	for at := int64(0); ; at += int64(len(got)) {
		switch n, err := f.ReadAt(got, at); {
		case !bytes.Equal(got[:n], want[:n]):
			return false, nil
		case err == io.EOF:
			return true, nil
		case err != nil:
			return false, err
		}
	}
}
