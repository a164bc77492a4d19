package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"lunlab/queue"
	"lunlab/test/kernel"
	"lunlab/test/scenario"
)

func ktestCommand() *cobra.Command {
	var (
		cfg                 kernel.Config
		here, list, ktap    bool
		jsonFile, junitFile string
		htmlFile            string
		patterns            []string
		uml                 string
		opts                scenario.Options
		consoleFile         string
		timeout             time.Duration
		against             againstBaseline
		order               order
		traceDir            string
		shell               bool
	)
	c := &cobra.Command{
		Use:   "ktest",
		Short: "Boot a kernel, give it our LUNs, and compare what it does with its rules",
		Long: `Boot a kernel in QEMU with lunlab as its init, give it SCSI hosts with chosen
limits, and report what the kernel did beside what its rules predict.

Each configuration makes a host (tcm_loop with a memory LUN of ours behind TCMU;
scsi_debug where the tags are to be host-wide; iscsi_tcp, the kernel's own
initiator, on a target of ours; virtio_scsi, whose LUN is served outside the
guest), verifies written data, measures random reads,
then holds completions back so that all the commands are in flight that the
kernel lets be, lowers queue_depth to an eighth while fio runs, and raises it
again. Commands in flight are counted twice: by the target that holds them, and
in the kernel by a BPF probe, in parentheses where that differs. The prediction comes from the
rules (see "lunlab rules") that fit what the kernel shows of itself.

Other scenarios show more; --list --scenario '*' names them. Those of ata have
disks that libata drives, on hosts that QEMU emulates, in guests of their own.

A kernel of User-Mode Linux (--uml) has one CPU and virtqueues of 256. If it has
no BTF there is no probe, and only what all rules agree on is predicted, or what
the rules say that --rules names. With --virtual-time it and its disks have a time
of their own, that goes to the next event as soon as nobody has anything to do: the
scenarios are those of error handling then, which take an instant for minutes.

Without --kernel, the distribution's kernel is downloaded once, unpacked into
the cache and never installed. KVM is used where a guest starts under it.

With --baseline, the scenarios run on two kernels in turn, and only what differs
is printed: maps, depths held or not, most in flight, errors, log lines, IOPS.

The exit status is 0 if all was as predicted, or nothing differs from the
baseline; 1 if something differs; 2 if it could not run.`,
		Example: `  lunlab ktest
  lunlab ktest --kernel ~/linux/arch/x86/boot/bzImage --modules ~/linux
  lunlab ktest --kernel bzImage --scenario 'limits/tcm_loop/1/*' --json result.json
  lunlab ktest --scenario limits/tcm_loop/2/100/25
  lunlab ktest --list --scenario '*'
  lunlab ktest --scenario '*' --repeat 5 --shuffle 0 --timeout 1h
  lunlab ktest --kernel patched/bzImage --baseline stock/bzImage --repeat 3 --html report.html
  lunlab ktest --uml linux --virtual-time
  sudo lunlab ktest --here`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ss, err := choose(patterns)
			if err != nil {
				return err
			}
			if uml != "" {
				cfg.Kernel, cfg.Accel = uml, kernel.UML
			}
			if opts.VirtualTime {
				if cfg.Kernel == "" {
					return errors.New("--virtual-time is for a kernel of User-Mode Linux: name one with --uml")
				}
				if !cmd.Flags().Changed("scenario") {
					ss = scenario.Virtual()
				}
			}
			if opts.Rules != "" {
				if _, err := queue.Lookup(opts.Rules); err != nil {
					return fmt.Errorf("--rules: %w", err)
				}
			}
			if ss, err = order.apply(cmd.Flags(), ss); err != nil {
				return err
			}
			if order.seed != 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "order: --shuffle %d\n", order.seed)
			}
			if list {
				return listScenarios(cmd.OutOrStdout(), ss)
			}
			if here {
				for _, name := range guestFlags {
					if cmd.Flags().Changed(name) {
						return fmt.Errorf("--%s is for a guest, and --here takes none", name)
					}
				}
			}
			if cfg.SMP < 1 || cfg.Memory < 1 || timeout <= 0 {
				return fmt.Errorf("--smp %d, --mem %d, --timeout %v: each has to be above 0", cfg.SMP, cfg.Memory, timeout)
			}
			if shell {
				if !cmd.Flags().Changed("scenario") {
					ss = ss[:1]
				}
				return ktestShell(cmd, cfg, consoleFile, ss)
			}
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout, fmt.Errorf("not done after %v (--timeout)", timeout))
			defer cancel()
			opts.Trace = traceDir != ""
			if against.baseline.Kernel != "" {
				if traceDir != "" {
					return errors.New("--trace is for one kernel")
				}
				if ktap || junitFile != "" {
					return errors.New("--ktap and --junit are reports of one kernel; of two there is the table, --json and --html")
				}
				against.repeat = order.repeat
				against.kernel, against.console, against.opts = cfg, consoleFile, opts
				base := cfg
				base.Kernel, base.Modules = against.baseline.Kernel, against.baseline.Modules
				against.baseline = base
			}
			traces, err := newTraces(traceDir)
			if err != nil {
				return err
			}
			out, err := openReports(cmd.OutOrStdout(), ktap, jsonFile, junitFile, htmlFile)
			if err != nil {
				return err
			}
			if against.baseline.Kernel != "" {
				p := newProgress(cmd.ErrOrStderr(), 2*against.repeat*len(ss))
				defer p.clear()
				return against.run(ctx, ss, out, p)
			}
			report := &scenario.Report{Started: time.Now(), Repeat: order.repeat, Seed: order.seed}
			ss = slices.Repeat(ss, order.repeat)
			p := newProgress(cmd.ErrOrStderr(), len(ss))
			defer p.clear()
			take := func(e scenario.Event) {
				p.event(e)
				report.Take(e)
				traces.event(e)
			}
			if here {
				err = ktestHere(ctx, ss, opts, take)
			} else {
				err = ktestGuest(ctx, cfg, consoleFile, p.logf, ss, opts, report, take)
			}
			err = errors.Join(err, traces.close())
			report.End(ss, err)
			p.clear()
			if werr := out.write(report); werr != nil {
				return errors.Join(err, werr)
			}
			if err != nil {
				return err
			}
			if s := report.ExitStatus(); s != 0 {
				return exitStatus(s)
			}
			return nil
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&cfg.Kernel, "kernel", "", "kernel `image` to boot (bzImage); default: the distribution's")
	f.StringVar(&cfg.Modules, "modules", "", "`folder` of its modules; default: modules beside the image, or /lib/modules/VERSION for vmlinuz-VERSION")
	f.StringVar(&uml, "uml", "", "kernel of User-Mode Linux (ARCH=um) to boot, which takes no QEMU and half a second; --kernel takes one too")
	f.BoolVar(&opts.VirtualTime, "virtual-time", false, "with User-Mode Linux: time passes only when nobody has anything to do, so that time-outs take no time and runs can be repeated exactly")
	f.StringVar(&opts.Rules, "rules", "", "`name` of the rules (see lunlab rules) that a kernel has which doesn't show them: without BTF")
	f.StringVar(&against.baseline.Kernel, "baseline", "", "run on this kernel `image` too, in turn, and print only what differs")
	f.StringVar(&against.baseline.Modules, "baseline-modules", "", "`folder` of its modules, as for --modules")
	f.BoolVar(&here, "here", false, "use the running kernel instead of a guest (root; tcm_loop, target_core_user, scsi_debug and iscsi_tcp)")
	f.StringSliceVar(&patterns, "scenario", []string{"limits"}, "the scenarios that match a shell `pattern`, or begin with it; also limits/HOST/QUEUES/CAN_QUEUE/CMD_PER_LUN of your own")
	order.flags(f)
	f.BoolVar(&list, "list", false, "list the scenarios, and what each shows, and do nothing")
	f.StringVar(&jsonFile, "json", "", "write the report as JSON to `file`, - for standard output instead of the table")
	f.StringVar(&junitFile, "junit", "", "write the report as JUnit XML to `file`")
	f.StringVar(&htmlFile, "html", "", "write the report as a page with pictures, and the console's log, to `file`")
	f.BoolVar(&ktap, "ktap", false, "print the report as KTAP instead of the table")
	f.StringVar(&traceDir, "trace", "", "keep what the tracepoints of the block layer and the SCSI core said at last, trace-SCENARIO.txt of each scenario, in `folder`")
	f.BoolVar(&shell, "shell", false, "run a shell (busybox) in the guest, on this terminal, with the disk of one limits scenario attached, and nothing else")
	f.DurationVar(&timeout, "timeout", 15*time.Minute, "give up after this time")
	f.StringVar(&cfg.Accel, "accel", "auto", "auto, kvm or tcg; auto takes KVM where a guest starts under it")
	f.IntVar(&cfg.SMP, "smp", 4, "the guest's CPUs; they cap hardware queues")
	f.IntVar(&cfg.Memory, "mem", 1536, "the guest's memory in MiB")
	f.StringVar(&cfg.Append, "append", "", "more of a kernel command line")
	f.StringVar(&cfg.QEMU, "qemu", "qemu-system-x86_64", "QEMU to run")
	f.DurationVar(&cfg.BootTimeout, "boot-timeout", 90*time.Second, "give a guest up that isn't in userspace after this time")
	f.StringVar(&consoleFile, "console", "", "keep the guest's console in `file`; default: console.log in the cache")
	for _, name := range []string{"list", "baseline", "repeat", "trace", "json", "junit", "html", "ktap", "timeout"} {
		c.MarkFlagsMutuallyExclusive("shell", name)
	}
	return c
}

// choose returns the scenarios that the patterns match, each once.
func choose(patterns []string) ([]scenario.Scenario, error) {
	var out []scenario.Scenario
	for _, p := range patterns {
		found, err := scenario.Find(p)
		if err != nil {
			return nil, fmt.Errorf("--scenario: %w", err)
		}
		for _, s := range found {
			if !slices.ContainsFunc(out, func(o scenario.Scenario) bool { return o.Name == s.Name }) {
				out = append(out, s)
			}
		}
	}
	return out, nil
}

func ktestHere(ctx context.Context, ss []scenario.Scenario, opts scenario.Options, take func(scenario.Event)) error {
	if no := scenario.Refusals(ss); len(no) > 0 {
		return fmt.Errorf("can't run on this kernel:\n%w", errors.Join(no...))
	}
	return scenario.Run(ctx, ss, opts, take)
}

func ktestGuest(ctx context.Context, cfg kernel.Config, consoleFile string, logf func(string, ...any), ss []scenario.Scenario, opts scenario.Options, report *scenario.Report, take func(scenario.Event)) error {
	cfg.Logf = logf
	consoleFile, console, err := prepareGuest(ctx, &cfg, consoleFile)
	if err != nil {
		return err
	}
	report.Complaints, err = scenario.RunGuest(ctx, cfg, ss, opts, take)
	var cerr error
	report.Console, cerr = ends(console, maxConsole)
	if cerr = errors.Join(cerr, keepConsole(console, consoleFile)); cerr != nil {
		return errors.Join(err, cerr)
	}
	var lost *kernel.GuestError
	if errors.As(err, &lost) && len(lost.Console) > 0 {
		err = fmt.Errorf("%w\n  the whole console: %s", err, consoleFile)
	}
	return err
}

// maxConsole is how much of a console's log a report has, in bytes: the ends are
// what is worth reading of a longer one.
const maxConsole = 512 << 10

// ends reads a file, but of one that is longer than most only its beginning and
// its end, and says so in between.
func ends(f *os.File, most int64) (string, error) {
	fi, err := f.Stat()
	if err != nil {
		return "", err
	}
	size := fi.Size()
	if size <= most {
		b, err := io.ReadAll(io.NewSectionReader(f, 0, size))
		return string(b), err
	}
	head, err := io.ReadAll(io.NewSectionReader(f, 0, most/4))
	if err != nil {
		return "", err
	}
	tail, err := io.ReadAll(io.NewSectionReader(f, size-(most-most/4), most-most/4))
	return fmt.Sprintf("%s\n[... %d bytes are left out here ...]\n%s", head, size-most, tail), err
}

// prepareGuest finds the kernel and its modules, and opens the file that the console
// goes to, which [keepConsole] gives its name.
func prepareGuest(ctx context.Context, cfg *kernel.Config, consoleFile string) (string, *os.File, error) {
	cache, err := kernel.CacheDir()
	if err != nil {
		return "", nil, err
	}
	if cfg.Kernel == "" {
		img, err := kernel.Distribution(ctx, cache, cfg.Logf)
		if err != nil {
			return "", nil, err
		}
		cfg.Kernel = img.Kernel
		if cfg.Modules == "" {
			cfg.Modules = img.Modules
		}
	} else if cfg.Modules == "" {
		cfg.Modules = kernel.ModulesOf(cfg.Kernel)
	}
	if consoleFile == "" {
		consoleFile = filepath.Join(filepath.Dir(cache), "console.log")
		if err := os.MkdirAll(filepath.Dir(consoleFile), 0o755); err != nil {
			return "", nil, err
		}
	}
	if fi, err := os.Stat(consoleFile); err == nil && !fi.Mode().IsRegular() {
		return "", nil, fmt.Errorf("--console %s is no file, and one would be put in its place", consoleFile)
	}
	// Of two runs at once, the one that ends last is kept.
	console, err := os.CreateTemp(filepath.Dir(consoleFile), filepath.Base(consoleFile)+".")
	if err != nil {
		return "", nil, err
	}
	cfg.Console = console
	return consoleFile, console, nil
}

func keepConsole(console *os.File, as string) error {
	return errors.Join(console.Chmod(0o644), console.Close(), os.Rename(console.Name(), as))
}

// guestFlags are the flags that say what guest to boot.
var guestFlags = []string{"kernel", "uml", "virtual-time", "modules", "baseline", "baseline-modules", "accel", "smp", "mem", "append", "qemu", "boot-timeout", "console", "shell"}

// listScenarios prints the names, and what each of those shows that isn't a
// configuration like others.
func listScenarios(w io.Writer, ss []scenario.Scenario) error {
	shown := ""
	for _, s := range ss {
		line := s.Name
		if s.Shows != shown {
			shown = s.Shows
			line = fmt.Sprintf("%-35s  %s", s.Name, shown)
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

// reports are where a run's reports go, of one kernel or two. Their files are made
// before the run.
type reports struct {
	stdout            io.Writer
	ktap, onlyJSON    bool // on standard output, instead of the table
	json, junit, html *os.File
}

// openReports makes the files of those that have a name.
func openReports(stdout io.Writer, ktap bool, jsonFile, junitFile, htmlFile string) (*reports, error) {
	o := &reports{stdout: stdout, ktap: ktap}
	if jsonFile == "-" {
		if ktap {
			return nil, errors.New("--ktap and --json - both go to standard output: name a file for the JSON")
		}
		o.onlyJSON, jsonFile = true, ""
	}
	for _, f := range []struct {
		to   **os.File
		name string
	}{{&o.json, jsonFile}, {&o.junit, junitFile}, {&o.html, htmlFile}} {
		if f.name == "" {
			continue
		}
		var err error
		if *f.to, err = os.Create(f.name); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// write writes the report of one kernel.
func (o *reports) write(r *scenario.Report) error {
	table := r.WriteTable
	if o.ktap {
		table = r.WriteKTAP
	}
	return errors.Join(o.common(table, r.WriteJSON, r.WriteHTML), to(o.junit, r.WriteJUnit))
}

// common writes what there is of two kernels, too.
func (o *reports) common(table, json, html func(io.Writer) error) error {
	if o.onlyJSON {
		table = json
	}
	return errors.Join(table(o.stdout), to(o.json, json), to(o.html, html))
}

// to writes a file, if there is one, and closes it.
func to(f *os.File, write func(io.Writer) error) error {
	if f == nil {
		return nil
	}
	return errors.Join(write(f), f.Close())
}

// agentCommand is the guest's side of ktest.
func agentCommand() *cobra.Command {
	var opts scenario.Options
	c := &cobra.Command{
		Use:    scenario.AgentCommand + " [NAME...]",
		Short:  "Carry out scenarios and write events as JSON lines",
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			w := cmd.OutOrStdout()
			err := scenario.Agent(cmd.Context(), opts, args, func(b []byte) error {
				_, err := w.Write(b)
				return err
			}, cmd.InOrStdin())
			if errors.Is(err, scenario.ErrStuck) {
				return exitStatus(scenario.ExitStuck)
			}
			return err
		},
	}
	c.Flags().StringVar(&opts.Rules, "rules", "", "the kernel's rules")
	c.Flags().BoolVar(&opts.VirtualTime, "virtual-time", false, "time isn't real")
	c.Flags().BoolVar(&opts.Trace, "trace", false, "emit traces")
	return c
}

// targetCommand is the process that a scenario of ktest kills.
func targetCommand() *cobra.Command {
	return &cobra.Command{
		Use:    scenario.TargetCommand + " HOW FILE",
		Short:  "Serve a LUN for a scenario, until killed",
		Hidden: true,
		Args:   cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return scenario.ServeTarget(cmd.Context(), args[0], args[1], cmd.OutOrStdout())
		},
	}
}
