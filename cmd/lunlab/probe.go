package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"lunlab/test/probe"
)

func probeCommand() *cobra.Command {
	var (
		asJSON   bool
		poke     bool
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
It also says which known kernel's rules about budget maps this kernel has:
"lunlab rules" tells what they are.

A device shows up with its first command. --poke sends each that has not shown
up a TEST UNIT READY. That leaves what is stored as it is, but takes a unit
attention that the device may have for this kernel; a device that it can't be
sent to is told of once.
DEVICE is a disk (sda, /dev/sda) or an address (6:0:1:0); without one, all.

On a terminal the table is shown again at every --interval; into a file, once at
the end unless --interval is given. With --json, one line of JSON each time.
Commands that can't be counted are said; without such a word, counts are exact.

It needs root, Linux 5.13 or later, and BTF (CONFIG_DEBUG_INFO_BTF).`,
		Example: `  lunlab probe --for 10s
  lunlab probe --json --interval 1s sda`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if duration < 0 || interval < 0 {
				return errors.New("probe: --for and --interval: want a time of 0 or more")
			}
			out := cmd.OutOrStdout()
			live := !asJSON && isTerminal(out)
			if !cmd.Flags().Changed("interval") && !live {
				interval = 0
			}
			ctx := cmd.Context()
			if duration > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, duration)
				defer cancel()
			}
			warn := func(err error) { fmt.Fprintln(cmd.ErrOrStderr(), "lunlab:", err) }
			return watchDevices(ctx, args, interval, poke, warn, func(r *probe.Report) error {
				if asJSON {
					e := json.NewEncoder(out)
					e.SetEscapeHTML(false)
					return e.Encode(r)
				}
				if live {
					fmt.Fprint(out, "\033[H\033[2J") // home, clear
				}
				return r.WriteText(out)
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON, a line each time")
	c.Flags().BoolVar(&poke, "poke", false, "send each device that wasn't seen yet a TEST UNIT READY")
	c.Flags().DurationVar(&interval, "interval", time.Second, "how often to print (0: only at the end)")
	c.Flags().DurationVar(&duration, "for", 0, "how long to watch (0: until Ctrl-C)")
	return c
}

// watchDevices shows a report at each interval, and a last one when ctx ends.
// Devices that can't be poked are told to warn, once.
func watchDevices(ctx context.Context, names []string, interval time.Duration, poke bool, warn func(error), show func(*probe.Report) error) error {
	if os.Geteuid() != 0 {
		return errors.New("probe: reading the kernel's memory takes root: sudo lunlab probe")
	}
	var only []string
	if len(names) > 0 {
		var err error
		if only, err = probe.Addresses(names...); err != nil {
			return err
		}
	}
	p, err := probe.Open(probe.Options{})
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w (it takes CAP_BPF and CAP_PERFMON, which containers lack, and a kernel that isn't locked down)", err)
	}
	if err != nil {
		return err
	}
	defer p.Close()
	rules, rulesErr := probe.DetectRules(p.Layout())
	var tick <-chan time.Time
	if interval > 0 {
		t := time.NewTicker(interval)
		defer t.Stop()
		tick = t.C
	}
	failed := map[string]bool{} // addresses that couldn't be poked
	for last := false; !last; {
		select {
		case <-ctx.Done():
			last = true
		case <-tick:
		}
		r, err := p.Report(only...)
		if err == nil && poke && len(r.Unseen) > 0 {
			for _, a := range r.Unseen {
				if failed[a] {
					continue
				}
				if err := probe.Poke(a); err != nil {
					failed[a] = true
					warn(err)
				}
			}
			r, err = p.Report(only...)
		}
		if err != nil {
			return err
		}
		if rulesErr != nil {
			r.RulesError = rulesErr.Error()
		} else {
			r.Rules = &rules
		}
		if err := show(r); err != nil {
			return err
		}
	}
	return nil
}
