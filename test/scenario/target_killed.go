package scenario

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"lunlab/lun"
	"lunlab/lun/store/file"
	"lunlab/queue"
	"lunlab/target/tcmu"
)

// targetKilled kills the process that serves a LUN while I/O runs: once with another
// that takes the LUN over, and once with none, so that the LUN has to go.
var targetKilled = Scenario{
	Name:    "target/killed",
	Shows:   "whether I/O goes on, without an error, when another process takes the LUN of a killed one over; what ends it when none does; and whether nothing is left or lost then",
	Hosts:   []string{TCMLoop},
	Timeout: 3 * time.Minute,
	run: func(ctx context.Context, r *run) error {
		dir, err := os.MkdirTemp("", "lunlab-ktest-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		image := filepath.Join(dir, "disk")
		var children []*child
		defer func() {
			for _, c := range children {
				c.kill()
			}
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 40*time.Second)
			defer cancel()
			r.engine.Cleanup(undo, loopWWN)
		}()
		begin := func(how string) (*child, error) {
			c, err := startChild(ctx, how, image)
			if err == nil {
				children = append(children, c)
			}
			return c, err
		}

		r.step("attach")
		first, err := begin(targetMake)
		if err != nil {
			return err
		}
		d := first.disk
		r.disk = d
		if err := d.waitQueue(ctx); err != nil {
			return err
		}
		job := verified(d, 32, 1)
		job.args = append(job.args, "--time_based", "--runtime=600", "--verify_backlog=64")
		fio, err := job.start(ctx)
		if err != nil {
			return err
		}
		defer fio.kill()
		if err := r.goesOn(ctx, d); err != nil {
			return err
		}
		r.step("kill the target, and take its LUN over")
		first.kill()
		start := time.Now()
		second, err := begin(targetAdopt)
		if err != nil {
			return err
		}
		if err := r.goesOn(ctx, d); err != nil {
			return err
		}
		r.fact("taken over after", time.Since(start).Round(10*time.Millisecond))
		_, err = fio.stop()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.checkNone("the I/O of which the target was killed and taken over", err)

		r.step("kill it again, and take the LUN away")
		if err := r.checkVerified(ctx, "what was written", fioJob{disk: d.path(), depth: 32, jobs: 1, args: []string{
			"--rw=write", "--verify=crc32c", "--do_verify=0", "--size=4m", "--randseed=7",
		}}); err != nil {
			return err
		}
		if fio, err = endless(d, 32, 1).start(ctx); err != nil {
			return err
		}
		defer fio.kill()
		if err := r.goesOn(ctx, d); err != nil {
			return err
		}
		second.kill()
		start = time.Now()
		if err := within(ctx, func() error { _, err := r.engine.Cleanup(ctx, loopWWN); return err }); err != nil {
			return err
		}
		r.fact("cleaned up after", time.Since(start).Round(10*time.Millisecond))
		_, err = fio.wait()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.check("I/O on the LUN that is gone fails", true, err != nil, "")
		r.check("left in /sys/block", false, exists("/sys/block/"+d.name), "")
		r.check("left in /sys/class/scsi_host", false, exists("/sys/class/scsi_host/"+d.host()), "")

		r.step("attach again")
		third, err := begin(targetMake)
		if err != nil {
			return err
		}
		d = third.disk
		if err := d.waitQueue(ctx); err != nil {
			return err
		}
		if err := r.checkVerified(ctx, "what had been written, read again", fioJob{disk: d.path(), depth: 32, jobs: 1, args: []string{
			"--rw=write", "--verify=crc32c", "--verify_only=1", "--verify_fatal=1", "--size=4m", "--randseed=7",
		}}); err != nil {
			return err
		}
		return r.checkVerified(ctx, "I/O afterwards", verified(d, 32, 1))
	},
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// child is a process that serves a LUN.
type child struct {
	cmd  *exec.Cmd
	disk *disk // of one that has made its host
}

// kill kills the process as nothing else would be: at once.
func (c *child) kill() {
	c.cmd.Process.Kill()
	c.cmd.Wait()
}

// startChild starts [ServeTarget] in a process of its own, and waits until it serves.
func startChild(ctx context.Context, how, image string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.Command(self, TargetCommand, how, image)}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	said := &limitedBuffer{left: 4096}
	c.cmd.Stderr = said
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	line := make(chan string, 1)
	go func() {
		s, _ := bufio.NewReader(out).ReadString('\n')
		line <- s
	}()
	select {
	case s := <-line:
		f := strings.Fields(s)
		if len(f) == 0 || f[0] != targetReady || how == targetMake && len(f) != 3 {
			c.kill()
			return nil, fmt.Errorf("the process that is to serve the LUN has ended: %s", strings.TrimSpace(said.String()))
		}
		if how == targetMake {
			c.disk = &disk{name: f[1], device: f[2]}
		}
		return c, nil
	case <-ctx.Done():
		c.kill()
		return nil, context.Cause(ctx)
	}
}

// TargetCommand is the subcommand of this program that runs [ServeTarget].
const TargetCommand = "ktest-target"

// The ways to serve: with a device and host that are made, or with the device that a
// killed process has left.
const (
	targetMake  = "make"
	targetAdopt = "adopt"

	targetReady = "ready"
)

// ServeTarget is the process that a scenario kills: it serves the LUN whose blocks
// are in a file, and says so on a line.
func ServeTarget(ctx context.Context, how, image string, said io.Writer) error {
	engine, err := tcmu.Open(tcmu.Options{})
	if err != nil {
		return err
	}
	store, err := file.Open(image, file.Options{Size: diskSize})
	if err != nil {
		return err
	}
	unit, err := lun.NewDisk(store, lun.DiskOptions{})
	if err != nil {
		return err
	}
	cfg := tcmu.Config{Name: deviceName + "0", Size: diskSize, CommandTimeout: -1}
	switch how {
	case targetMake:
		dev, err := engine.Create(ctx, cfg, unit)
		if err != nil {
			return err
		}
		l := queue.Limits{HWQueues: 1, CanQueue: 64, CmdPerLUN: 64}
		loop, err := engine.CreateLoop(ctx, tcmu.LoopConfig{WWN: loopWWN, HWQueues: l.HWQueues, CanQueue: l.CanQueue, CmdPerLUN: l.CmdPerLUN})
		if err != nil {
			return err
		}
		blk, err := loop.Attach(ctx, dev, 0)
		if err != nil {
			return err
		}
		fmt.Fprintln(said, targetReady, filepath.Base(blk.Block), blk.HCTL)
	case targetAdopt:
		if _, err := engine.Adopt(ctx, cfg, unit); err != nil {
			return err
		}
		fmt.Fprintln(said, targetReady)
	default:
		return errors.New("want " + targetMake + " or " + targetAdopt)
	}
	<-ctx.Done()
	return context.Cause(ctx)
}
