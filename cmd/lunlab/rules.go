package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"lunlab/queue"
)

func rulesCommand() *cobra.Command {
	var (
		limits  queue.Limits
		names   []string
		lowerTo int
		asJSON  bool
	)
	c := &cobra.Command{
		Use:   "rules",
		Short: "Show what each known kernel does about budget maps, for given host limits",
		Long: `Show, for a SCSI host with the given limits, what each known kernel makes of
them: whether a new device gets a budget map (the bitmap that holds the device
to its queue_depth), how many of its commands can be in flight, and what happens
when queue_depth is lowered afterwards. It is a model: no kernel is touched.
"lunlab ktest" holds a real kernel against it, "lunlab probe" looks at one.

A driver says can_queue (commands at once: in each hardware queue, or in all of
them with --host-tagset), cmd_per_lun (the depth a new device starts with) and
its hardware queues. The series of patches that these rules come from leaves the
map out where it could not limit anything: the tags are shared by all hardware
queues, or there is one queue, and the depth is at least can_queue.

MAX is the most commands of one device in flight at once. LOWERED is what a
write of --lower-to to queue_depth does: "held at 8", "stored, 64 in flight" (it
reads back, and nothing enforces it) or the error.

A driver with a device_configure method (--configures; libata, scsi_debug,
iscsi_tcp) makes the kernel look at the map a second time. AHCI with an NCQ
drive is --can-queue 32 --cmd-per-lun 1 --configured-depth 32.`,
		Example: `  lunlab rules --can-queue 64 --cmd-per-lun 64
  lunlab rules --can-queue 64 --cmd-per-lun 32 --hw-queues 4 --host-tagset
  lunlab rules --rules v4 --needs-budget-token --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			limits.Configures = limits.Configures || limits.ConfiguredDepth > 0
			sets := queue.All()
			if len(names) > 0 {
				sets = nil
				for _, n := range names {
					r, err := queue.Lookup(n)
					if err != nil {
						return err
					}
					sets = append(sets, r)
				}
			}
			if !cmd.Flags().Changed("lower-to") {
				lowerTo = min(lowerTo, limits.CanQueue)
			}
			preds := make([]queue.Prediction, 0, len(sets))
			for _, r := range sets {
				p, err := r.Predict(limits, lowerTo)
				if err != nil {
					return err
				}
				preds = append(preds, p)
			}
			if asJSON {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetEscapeHTML(false)
				e.SetIndent("", "  ")
				return e.Encode(preds)
			}
			return printRules(cmd.OutOrStdout(), limits, sets, preds)
		},
	}
	f := c.Flags()
	f.IntVar(&limits.CanQueue, "can-queue", 64, "commands the host takes at once, in each hardware queue or in all (1 to 2147483647)")
	f.IntVar(&limits.CmdPerLUN, "cmd-per-lun", 64, "queue depth of a new device (0 to 32767; 0 is taken as 1)")
	f.IntVar(&limits.HWQueues, "hw-queues", 1, "hardware queues that the driver asks for (1 to 65536)")
	f.BoolVar(&limits.HostTagset, "host-tagset", false, "all hardware queues share one set of tags")
	f.BoolVar(&limits.NeedsBudgetToken, "needs-budget-token", false, "the driver uses the budget token (v4 and later look at it)")
	f.IntVar(&limits.CPUs, "cpus", 0, "CPUs, which cap the hardware queues (0: no cap)")
	f.BoolVar(&limits.Configures, "configures", false, "the driver has a device_configure method")
	f.IntVar(&limits.ConfiguredDepth, "configured-depth", 0, "queue depth that device_configure sets (0: it leaves the depth alone)")
	f.BoolVar(&limits.ClampsDepth, "clamps-depth", false, "the driver cuts a written depth to cmd_per_lun, as virtio_scsi does")
	f.IntVar(&lowerTo, "lower-to", 8, "depth to write to queue_depth afterwards (0: none)")
	f.StringSliceVar(&names, "rules", nil, "only these rules, by name (default: all)")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func printRules(w io.Writer, l queue.Limits, sets []queue.Rules, preds []queue.Prediction) error {
	tags := "tags of its own each"
	switch {
	case l.HostTagset:
		tags = "host-wide tags"
	case l.Queues() == 1:
		tags = "one set of tags"
	}
	fmt.Fprintf(w, "host: can_queue %d, cmd_per_lun %d, %d hardware queue(s), %s, up to %d commands in flight\n\n",
		l.CanQueue, l.HostCmdPerLUN(), l.Queues(), tags, l.HostMax())
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RULES\tMAP\tDEPTH\tMAX\tLOWERED\tWHY")
	for _, p := range preds {
		state := "allocated"
		if !p.Allocated {
			state = "elided"
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%s\n", p.Rules, state, p.QueueDepth, p.MaxInFlight, lowered(p), p.Reason)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for i, r := range sets {
		fmt.Fprintf(w, "%s: %s\n", r.Name, r.Title)
		if preds[i].HintFreedTwice {
			fmt.Fprintln(w, "  Here the map's per-CPU hint is freed with the map, and again with the device.")
		}
		for _, n := range r.Notes {
			fmt.Fprintf(w, "  %s\n", n)
		}
	}
	return nil
}

func lowered(p queue.Prediction) string {
	w := p.Lowered
	switch {
	case p.Stuck:
		return "hangs in the scan"
	case w == nil:
		return "-"
	case w.Oops:
		return "oops"
	case !w.Accepted:
		return fmt.Sprintf("%s, stays %d", w.Error, w.QueueDepth)
	case w.Held:
		return fmt.Sprintf("held at %d", w.QueueDepth)
	}
	return fmt.Sprintf("stored, %d in flight", w.MaxInFlight)
}
