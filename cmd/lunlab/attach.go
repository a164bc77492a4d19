package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"lunlab/lab"
	"lunlab/lab/attach"
	"lunlab/lun"
	"lunlab/target/tcmu"
)

const (
	attachTime = 60 * time.Second
	// detachTime is how long commands in flight may take to end before they
	// are made to.
	detachTime = 15 * time.Second
)

type attachOptions struct {
	file    string
	size    string
	limits  lab.Limits
	json    bool
	cleanup bool
	socket  string
}

func attachCommand() *cobra.Command {
	var o attachOptions
	cmd := &cobra.Command{
		Use:   "attach",
		Short: "Attach LUNs to this kernel, through TCMU and tcm_loop",
		Long: `Attach LUNs to the running kernel as SCSI disks, on a host with the limits that
are asked for, until Ctrl-C. It needs root and a kernel with target_core_user and
tcm_loop. Without -f, it is one LUN in memory.

What a killed lunlab left attached is removed first, and by --cleanup without
attaching anything.

SIGHUP has it read lab.yaml again: disks come, go and grow, and faults change. One
that is in use (mounted, or part of a volume) doesn't go, and a host keeps its limits.

Ctrl-C detaches in order: what is mounted is waited for, and the kernel writes
back what it has cached. A second one fails the commands that are in flight. The
exit status is 0 if all that was attached is detached, 2 for any error.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return attachLab(cmd.Context(), &o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.file, "file", "f", "", "`lab.yaml` that says what to attach (lunlab example prints one)")
	f.StringVar(&o.size, "size", "1GiB", "size of the LUN in memory, `bytes` or such as 64GiB")
	f.IntVar(&o.limits.CanQueue, "can-queue", 0, "commands that the host takes at once (default tcm_loop's)")
	f.IntVar(&o.limits.CmdPerLUN, "cmd-per-lun", 0, "queue depth of the LUN (default tcm_loop's)")
	f.IntVar(&o.limits.HWQueues, "hw-queues", 0, "hardware queues of the host (default tcm_loop's)")
	f.BoolVar(&o.json, "json", false, "print what was attached as JSON")
	f.StringVar(&o.socket, "socket", "", "unix socket for \"lunlab fault\", `path` or none (default one in the user's runtime folder)")
	f.BoolVar(&o.cleanup, "cleanup", false, "only remove what a killed lunlab left attached")
	for _, flag := range []string{"size", "can-queue", "cmd-per-lun", "hw-queues"} {
		cmd.MarkFlagsMutuallyExclusive("file", flag)
		cmd.MarkFlagsMutuallyExclusive("cleanup", flag)
	}
	cmd.MarkFlagsMutuallyExclusive("cleanup", "file")
	return cmd
}

func (o *attachOptions) config() (*lab.Config, error) {
	if o.file != "" {
		return lab.Load(o.file)
	}
	size, err := lab.ParseSize(o.size)
	if err != nil {
		return nil, fmt.Errorf("--size %w", err)
	}
	return &lab.Config{Path: "(no file)", Targets: []*lab.Target{{
		// A name of its own, so that several can run.
		Name:   "lunlab-" + strconv.Itoa(os.Getpid()),
		Limits: o.limits,
		LUNs:   []*lab.LUN{{Store: lab.Store{Kind: lab.Memory, Size: size}, Thin: true}},
	}}}, nil
}

// attachLab attaches until ctx ends, and then detaches.
func attachLab(ctx context.Context, o *attachOptions, stdout, stderr io.Writer) (err error) {
	cfg, err := o.config()
	if err != nil {
		return err
	}
	if err := attachable(cfg); err != nil {
		return err
	}
	later, stopSignals := laterSignals(ctx)
	defer stopSignals()
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	soon, cancel := context.WithTimeoutCause(ctx, attachTime, fmt.Errorf("not attached within %v", attachTime))
	defer cancel()

	if err := tcmu.Prepare(soon, tcmu.Options{}); err != nil {
		return err
	}
	engine, err := tcmu.Open(tcmu.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	if err := cleanup(soon, engine, cfg, o.cleanup, stdout, stderr); err != nil || o.cleanup {
		return err
	}
	units, err := cfg.Build(nil) // each LUN has one nexus, so none can take another's away
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, units.Close()) }()

	c := controls{units, func(t *lab.Target) string { return t.Name }, []lun.Link{lun.RingLink}}
	if _, err := c.faults(cfg.Path, units.LUNs); err != nil {
		return err
	}
	stop, err := serveControls(&c, slog.New(slog.NewTextHandler(stderr, nil)), o.socket)
	if err != nil {
		return err
	}
	defer stop()

	a := attach.New(engine)
	defer func() { err = errors.Join(err, detach(ctx, a, later, stderr)) }()
	if err := a.Add(soon, units.LUNs...); err != nil {
		return explain(err)
	}
	if err := printAttached(stdout, a.LUNs(), o.json); err != nil {
		return err
	}
	if !o.json {
		fmt.Fprintln(stdout, "attached; Ctrl-C detaches")
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-a.Failed():
			return err
		case <-hangups:
			says := stdout
			if o.json {
				says = stderr
			}
			hangup(o.file, func() (string, error) { return c.reattach(ctx, a, o, stdout) }, says, stderr)
		}
	}
}

// attachable looks for what TCMU can't have.
func attachable(cfg *lab.Config) error {
	for _, t := range cfg.Targets {
		for _, u := range t.LUNs {
			if u.Protectable {
				return fmt.Errorf("%s: LUN %d of %s has protection, which the kernel's TCMU doesn't carry; leave it out (serve has it)", cfg.Path, u.Number, t.Name)
			}
		}
	}
	return nil
}

// reattach has attached what the configuration says by now, or on a notReloaded what
// was attached before. It prints what is, and returns what has changed.
func (c *controls) reattach(ctx context.Context, a *attach.Attachment, o *attachOptions, stdout io.Writer) (string, error) {
	cfg, ch, err := c.prepare(o.file, nil)
	if err != nil {
		return "", err
	}
	if err := errors.Join(attachable(cfg), a.CanBecome(cfg, ch.Removed)); err != nil {
		return "", notReloaded{errors.Join(err, ch.Undo())}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, attachTime, fmt.Errorf("not attached within %v", attachTime))
	defer cancel()
	var errs []error
	for _, u := range ch.Removed {
		errs = append(errs, a.Detach(ctx, u, detachTime), u.Close())
	}
	errs = append(errs, a.Prune(ctx, cfg.Targets), ch.Commit())
	for _, u := range ch.Added {
		if err := a.Add(ctx, u); err != nil {
			errs = append(errs, explain(err))
		}
	}
	errs = append(errs, printAttached(stdout, a.LUNs(), o.json))
	return changed(ch), errors.Join(errs...)
}

func cleanup(ctx context.Context, e *tcmu.Engine, cfg *lab.Config, only bool, stdout, stderr io.Writer) error {
	var hosts []string
	for _, t := range cfg.Targets {
		hosts = append(hosts, attach.LoopConfig(t).WWN)
	}
	removed, err := e.Cleanup(ctx, hosts...)
	out := stderr
	if only {
		out = stdout
		if len(removed) == 0 && err == nil {
			fmt.Fprintln(out, "nothing was left attached")
		}
	}
	for _, p := range removed {
		fmt.Fprintf(out, "removed %s, which a killed lunlab left\n", p)
	}
	return err
}

func explain(err error) error {
	if errors.Is(err, tcmu.ErrExists) {
		return fmt.Errorf("%w; another lunlab has attached it: end that one, or choose other names and WWNs", err)
	}
	return err
}

func printAttached(w io.Writer, luns []attach.LUN, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(luns)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "TARGET\tLUN\tDISK\tGENERIC\tHOST:C:T:L\tSIZE\tBLOCK\tCAN_QUEUE\tCMD_PER_LUN\tHW_QUEUES\tQUEUE_DEPTH")
	for _, r := range luns {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\n", r.Target, r.LUN, r.Block, r.Generic, r.HCTL,
			lab.FormatSize(r.Size), r.BlockSize, r.CanQueue, r.CmdPerLUN, r.HWQueues, r.QueueDepth)
	}
	return t.Flush()
}

// detach takes everything off the kernel again. Commands that don't end by
// themselves are failed, after a while or at a signal: one that ends ctx, or a
// later one.
func detach(ctx context.Context, a *attach.Attachment, later <-chan os.Signal, stderr io.Writer) error {
	step, end := detachContext(ctx, later)
	a.WaitUnused(step, func(block string) {
		fmt.Fprintf(stderr, "lunlab: %s is in use (mounted, or part of a volume): free it; in %v, or with another Ctrl-C, it goes all the same\n", block, detachTime)
	})
	end()
	step, end = detachContext(ctx, later)
	err := a.Remove(step)
	gaveUp := step.Err() != nil
	end()
	if err == nil || !gaveUp {
		return err
	}
	fmt.Fprintln(stderr, "lunlab: failing the commands that are in flight")
	a.Offline()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), detachTime)
	defer cancel()
	if err := a.Remove(last); err != nil {
		return fmt.Errorf("%w; `lunlab attach --cleanup` removes what is left", err)
	}
	return nil
}

// detachContext ends after detachTime, or with the next signal. That ends ctx if
// it is the first.
func detachContext(ctx context.Context, later <-chan os.Signal) (_ context.Context, end func()) {
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, detachTime, fmt.Errorf("not over within %v", detachTime))
	ctx, interrupt := context.WithCancelCause(ctx)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case s := <-later:
			interrupt(fmt.Errorf("ended by %v", s))
		case <-done:
		}
	}()
	return ctx, func() {
		close(done)
		<-ended
		interrupt(nil)
		cancel()
	}
}
