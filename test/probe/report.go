package probe

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"lunlab/queue"
)

// Report is what a probe has seen at one time, with all that says how far it
// can be relied on.
type Report struct {
	Time time.Time `json:"time"`
	// Rules is nil where they could not be looked for; RulesError says why.
	Rules      *Detection `json:"rules"`
	RulesError string     `json:"rules_error,omitempty"`
	// Missing are structure members that this kernel doesn't have.
	Missing []string `json:"missing_fields"`
	Lost    Lost     `json:"lost"`
	Devices []Device `json:"devices"`
	// Unseen are devices of which no command was seen, by address.
	Unseen []string `json:"unseen"`
}

// Report makes a report of the devices with the given addresses; of all if
// there is none.
func (p *Probe) Report(only ...string) (*Report, error) {
	devices, err := p.Snapshot()
	if err != nil {
		return nil, err
	}
	lost, err := p.Lost()
	if err != nil {
		return nil, err
	}
	r := &Report{Time: time.Now().UTC(), Missing: p.Missing(), Lost: lost, Devices: []Device{}, Unseen: []string{}}
	seen := map[string]bool{}
	for _, d := range devices {
		if len(only) == 0 || slices.Contains(only, d.Address) {
			r.Devices = append(r.Devices, d)
			seen[d.Address] = true
		}
	}
	if len(only) == 0 {
		if only, err = Addresses(); err != nil {
			return nil, err
		}
	}
	for _, a := range only {
		if !seen[a] {
			r.Unseen = append(r.Unseen, a)
		}
	}
	return r, nil
}

// Addresses turns names of SCSI devices, which are those of disks (sda,
// /dev/sda) or addresses (6:0:1:0), to addresses. Without a name it returns
// those of all devices that there are.
func Addresses(names ...string) ([]string, error) {
	dirs, err := filepath.Glob(filepath.Join(sysDevices, "*"))
	if err != nil {
		return nil, fmt.Errorf("probe: %w", err)
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
		a := n
		if !slices.Contains(all, a) {
			link, err := os.Readlink(filepath.Join("/sys/class/block", filepath.Base(n), "device"))
			if err != nil {
				link = n
			}
			a = filepath.Base(link)
		}
		if !slices.Contains(all, a) {
			there := strings.Join(all, ", ")
			if there == "" {
				there = "none"
			}
			return nil, fmt.Errorf("probe: %s is no SCSI disk and no address of a SCSI device; addresses here: %s", n, there)
		}
		found = append(found, a)
	}
	return found, nil
}

// WriteText writes the report as a table with remarks.
func (r *Report) WriteText(w io.Writer) error {
	if r.Rules != nil {
		fmt.Fprintf(w, "kernel rules: %s\n", r.Rules)
	} else {
		fmt.Fprintf(w, "kernel rules: not known: %s\n", r.RulesError)
	}
	if len(r.Devices) > 0 {
		if err := r.writeTable(w); err != nil {
			return err
		}
	}
	for i := range r.Devices {
		r.Devices[i].writeRemarks(w)
	}
	switch {
	case len(r.Unseen) > 0:
		fmt.Fprintf(w, "no command seen yet: %s (--poke sends one)\n", strings.Join(r.Unseen, ", "))
	case len(r.Devices) == 0:
		fmt.Fprintln(w, "this kernel has no SCSI device")
	}
	if r.Lost.Any() {
		fmt.Fprintf(w, "NOT EXACT: %s\n", r.Lost)
	}
	// These two are missing from most kernels, which the rules speak of.
	missing := slices.DeleteFunc(slices.Clone(r.Missing), func(f string) bool {
		return f == "Scsi_Host.needs_budget_token" || f == "Scsi_Host.pseudo_sdev"
	})
	if len(missing) > 0 {
		fmt.Fprintf(w, "not known, since this kernel has no such field: %s\n", strings.Join(missing, ", "))
	}
	return nil
}

func (r *Report) writeTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "DEVICE\tDISK\tDRIVER\tCAN_QUEUE\tCMD_PER_LUN\tQUEUES\tHOST_TAGS\tDEPTH\tMAP\tIN FLIGHT\tMOST\tTAGS\tTOKENS\tSTARTS\tBY QUEUE")
	for _, d := range r.Devices {
		state := string(d.Map)
		if d.Allocated() {
			state += fmt.Sprintf("(%d)", d.MapDepth)
		}
		fmt.Fprintln(t, strings.Join([]string{
			d.Address, orDash(strings.Join(d.Disks, ",")), orDash(d.Driver),
			known(d.CanQueue), known(d.CmdPerLUN), known(d.HWQueues), yesNo(d.HostTagset), known(d.QueueDepth), state,
			fmt.Sprint(d.InFlight), fmt.Sprint(d.MaxInFlight), d.span(d.MinTag, d.MaxTag), d.span(d.MinToken, d.MaxToken),
			fmt.Sprint(d.Starts), orDash(strings.Trim(fmt.Sprint(d.Queues), "[]")),
		}, "\t"))
	}
	return t.Flush()
}

// writeRemarks says what a reader of the numbers has to know.
func (d *Device) writeRemarks(w io.Writer) {
	for _, r := range []struct {
		of   bool
		text string
	}{
		{d.Earlier > 0, fmt.Sprintf("up to %d commands from before the watch may be in flight beyond those counted", d.Earlier)},
		{d.TimedOut > 0, fmt.Sprintf("%d time-outs; the error handler took %d commands back", d.TimedOut, d.Ended)},
		{d.Rejected > 0, fmt.Sprintf("the driver was busy and refused %d times", d.Rejected)},
		{d.MapChanges > 0, fmt.Sprintf("the map came or went %d times between commands", d.MapChanges)},
		{d.Stale > 0, fmt.Sprintf("the end of %d commands was not seen", d.Stale)},
	} {
		if r.of {
			fmt.Fprintf(w, "%s: %s\n", d.Address, r.text)
		}
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// known is a number, or "?" for the -1 of a field that isn't there.
func known(n int) string {
	if n < 0 {
		return "?"
	}
	return fmt.Sprint(n)
}

func yesNo(b *bool) string {
	switch {
	case b == nil:
		return "?"
	case *b:
		return "yes"
	}
	return "no"
}

// span is a range of tags or tokens.
func (d *Device) span(lo, hi int) string {
	switch {
	case d.Starts == 0:
		return "-"
	case lo == -1 && hi == -1:
		return "?"
	case lo == queue.NoToken && hi == queue.NoToken:
		return "none"
	case lo == hi:
		return fmt.Sprint(lo)
	case hi == queue.NoToken:
		return fmt.Sprintf("%d-none", lo)
	}
	return fmt.Sprintf("%d-%d", lo, hi)
}
