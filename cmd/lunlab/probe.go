package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"lunlab/queue"
	"lunlab/test/probe"
)

// probeReport is what lunlab probe prints as JSON.
type probeReport struct {
	Time     time.Time       `json:"time"`
	Rules    probe.Detection `json:"rules"`
	Missing  []string        `json:"missing_fields"`
	Lost     probe.Lost      `json:"lost"`
	Devices  []probe.Device  `json:"devices"`
	Unseen   []string        `json:"unseen,omitempty"` // devices without a command so far
	NoDetect string          `json:"rules_error,omitempty"`
}

func probeCommand() *cobra.Command {
	var (
		asJSON   bool
		interval time.Duration
		duration time.Duration
	)
	c := &cobra.Command{
		Use:   "probe [DEVICE...]",
		Short: "Watch this kernel's SCSI devices: budget maps, tags, commands in flight",
		Long: `Watch the running kernel's SCSI devices with BPF, until Ctrl-C or for --for, and
print for each: whether it has a budget map (the bitmap that holds it to its
queue_depth), the map's depth, the host's limits, the most commands in flight,
the request tags and budget tokens seen, and the starts of each hardware queue.
It also says which known kernel's rules about budget maps this kernel has.

A device shows up with its first command: read from it if nothing else does.
DEVICE is a disk (sda, /dev/sda) or an address (6:0:1:0); without one, all.

On a terminal the table is shown again at every --interval; into a file, once at
the end unless --interval is given. With --json, one line of JSON each time.

It needs root, Linux 5.13 or later, and BTF (CONFIG_DEBUG_INFO_BTF).`,
		Example: `  lunlab probe --for 10s
  lunlab probe --json --interval 1s sda`,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			if duration < 0 || interval < 0 {
				return errors.New("probe: --for and --interval: want a time of 0 or more")
			}
			out := cmd.OutOrStdout()
			live := isTerminal(out) && !asJSON
			if !cmd.Flags().Changed("interval") && !live {
				interval = 0
			}
			return watch(ctx, out, args, watchOptions{asJSON, live, interval, duration})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON, a line each time")
	c.Flags().DurationVar(&interval, "interval", time.Second, "how often to print (0: only at the end)")
	c.Flags().DurationVar(&duration, "for", 0, "how long to watch (0: until Ctrl-C)")
	return c
}

type watchOptions struct {
	asJSON, live       bool
	interval, duration time.Duration
}

func watch(ctx context.Context, out io.Writer, args []string, o watchOptions) error {
	if os.Geteuid() != 0 {
		return errors.New("probe: it reads the kernel's memory, which takes root: sudo lunlab probe")
	}
	wanted, err := addresses(args)
	if err != nil {
		return err
	}
	p, err := probe.Open(probe.Options{})
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("%w (in a container without CAP_BPF, or with the kernel locked down?)", err)
		}
		return err
	}
	defer p.Close()
	detection, detectErr := probe.DetectRules(p.Layout())

	var tick, end <-chan time.Time
	if o.interval > 0 {
		t := time.NewTicker(o.interval)
		defer t.Stop()
		tick = t.C
	}
	if o.duration > 0 {
		t := time.NewTimer(o.duration)
		defer t.Stop()
		end = t.C
	}
	for last := false; ; {
		select {
		case <-ctx.Done():
			last = true
		case <-end:
			last = true
		case <-tick:
		}
		r, err := report(p, detection, detectErr, wanted)
		if err != nil {
			return err
		}
		if o.asJSON {
			e := json.NewEncoder(out)
			e.SetEscapeHTML(false)
			err = e.Encode(r)
		} else {
			if o.live {
				fmt.Fprint(out, "\033[H\033[2J")
			}
			err = printProbe(out, r)
		}
		if err != nil || last {
			return err
		}
	}
}

func report(p *probe.Probe, d probe.Detection, detectErr error, wanted []string) (*probeReport, error) {
	devices, err := p.Snapshot()
	if err != nil {
		return nil, err
	}
	lost, err := p.Lost()
	if err != nil {
		return nil, err
	}
	r := &probeReport{Time: time.Now().UTC(), Rules: d, Missing: p.Missing(), Lost: lost, Devices: []probe.Device{}}
	if detectErr != nil {
		r.NoDetect = detectErr.Error()
	}
	var seen []string
	for _, d := range devices {
		if wanted == nil || slices.Contains(wanted, d.Address) {
			r.Devices = append(r.Devices, d)
			seen = append(seen, d.Address)
		}
	}
	if wanted == nil {
		wanted, err = addresses(nil)
	}
	for _, a := range wanted {
		if !slices.Contains(seen, a) {
			r.Unseen = append(r.Unseen, a)
		}
	}
	return r, err
}

// addresses turns the names of devices to addresses; without a name, all of
// this kernel's. Nil means that there was no name and there is no device yet.
func addresses(names []string) ([]string, error) {
	const class = "/sys/class/scsi_device"
	dirs, err := filepath.Glob(class + "/*")
	if err != nil {
		return nil, err
	}
	var all []string
	for _, d := range dirs {
		all = append(all, filepath.Base(d))
	}
	if len(names) == 0 {
		return all, nil
	}
	var found []string
	for _, n := range names {
		if slices.Contains(all, n) {
			found = append(found, n)
			continue
		}
		disk := strings.TrimPrefix(n, "/dev/")
		link, err := os.Readlink(filepath.Join("/sys/class/block", filepath.Base(disk), "device"))
		if err != nil || !slices.Contains(all, filepath.Base(link)) {
			return nil, fmt.Errorf("probe: %s is neither a SCSI disk nor the address of a SCSI device here; there are: %s", n, strings.Join(all, ", "))
		}
		found = append(found, filepath.Base(link))
	}
	return found, nil
}

func printProbe(out io.Writer, r *probeReport) error {
	switch {
	case r.NoDetect != "":
		fmt.Fprintf(out, "kernel rules: not known: %s\n", r.NoDetect)
	default:
		fmt.Fprintf(out, "kernel rules: %s\n", r.Rules)
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "DEVICE\tDISK\tDRIVER\tCAN_QUEUE\tCMD_PER_LUN\tQUEUES\tHOST_TAGS\tDEPTH\tMAP\tIN FLIGHT\tMOST\tTAGS\tTOKENS\tSTARTS\tBY QUEUE")
	for _, d := range r.Devices {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\t%d\t%s\n",
			d.Address, orDash(strings.Join(d.Disks, ",")), orDash(d.Driver), number(d.CanQueue), number(d.CmdPerLUN), number(d.HWQueues),
			truth(d.HostTagset), number(d.QueueDepth), mapText(d), d.InFlight, d.MaxInFlight,
			span(d.Starts, d.MinTag, d.MaxTag), span(d.Starts, d.MinToken, d.MaxToken), d.Starts, strings.Trim(fmt.Sprint(d.Queues), "[]"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, d := range r.Devices {
		if d.Earlier > 0 {
			fmt.Fprintf(out, "%s: up to %d commands from before the watch may be in flight beyond those counted\n", d.Address, d.Earlier)
		}
		if d.TimedOut > 0 {
			fmt.Fprintf(out, "%s: %d time-outs; the error handler took %d commands back\n", d.Address, d.TimedOut, d.Ended)
		}
		if d.MapChanges > 0 {
			fmt.Fprintf(out, "%s: the map came or went %d times\n", d.Address, d.MapChanges)
		}
		if d.Stale > 0 {
			fmt.Fprintf(out, "%s: the end of %d commands was not seen\n", d.Address, d.Stale)
		}
	}
	if len(r.Unseen) > 0 {
		fmt.Fprintf(out, "no command seen yet: %s\n", strings.Join(r.Unseen, ", "))
	}
	if len(r.Devices)+len(r.Unseen) == 0 {
		fmt.Fprintln(out, "this kernel has no SCSI device")
	}
	if r.Lost.Any() {
		fmt.Fprintf(out, "NOT EXACT: lost %+v\n", r.Lost)
	}
	if m := slices.DeleteFunc(slices.Clone(r.Missing), optionalEverywhere); len(m) > 0 {
		fmt.Fprintf(out, "not known, since this kernel has no such field: %s\n", strings.Join(m, ", "))
	}
	return nil
}

// optionalEverywhere is of fields that most kernels don't have; their absence
// is part of the rules line.
func optionalEverywhere(field string) bool {
	return field == "Scsi_Host.needs_budget_token" || field == "Scsi_Host.pseudo_sdev"
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func number(n int) string {
	if n < 0 {
		return "?"
	}
	return fmt.Sprint(n)
}

func truth(b *bool) string {
	switch {
	case b == nil:
		return "?"
	case *b:
		return "yes"
	}
	return "no"
}

func mapText(d probe.Device) string {
	if d.Map != probe.MapAllocated {
		return string(d.Map)
	}
	return fmt.Sprintf("%s(%d)", d.Map, d.MapDepth)
}

func span(starts uint64, lo, hi int) string {
	switch {
	case starts == 0:
		return "-"
	case lo < 0 && hi < 0:
		return "?"
	case lo == queue.NoToken && hi == queue.NoToken:
		return "none"
	case lo == hi:
		return fmt.Sprint(lo)
	}
	return fmt.Sprintf("%d-%d", lo, hi)
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	fi, err := f.Stat()
	return err == nil && fi.Mode()&os.ModeCharDevice != 0
}
