package probe

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"

	"lunlab/queue"
)

// Detection is what was found of a kernel's rules about budget maps.
type Detection struct {
	// Candidates are the rules that the kernel can have, by what was seen of
	// it: one, or several that could not be told apart. A caller that has to
	// choose can ask queue.Agree whether it matters.
	Candidates []queue.Rules `json:"candidates"`
	// Evidence says what was seen, a sentence each.
	Evidence []string `json:"evidence"`
	// PerCPUCounters: iorequest_cnt and iodone_cnt are per-CPU counters, which
	// the second series made them.
	PerCPUCounters bool `json:"per_cpu_counters"`
}

// String names the candidates, with the evidence.
func (d Detection) String() string {
	var names []string
	for _, r := range d.Candidates {
		names = append(names, r.Name)
	}
	s := strings.Join(names, " or ")
	if s == "" {
		s = "none that is known"
	}
	if d.PerCPUCounters {
		s += ", with per-CPU iorequest_cnt"
	}
	return s + " (" + strings.Join(d.Evidence, "; ") + ")"
}

// DetectRules finds which rules the running kernel has, by looking at it: its
// BTF, and where that is the same for several rules, the machine code of the
// functions in which they differ. A version number plays no part. It needs
// root for the second; without, there are more candidates.
//
// The layout is the running kernel's; with nil, it is loaded.
func DetectRules(l *Layout) (Detection, error) {
	if l == nil {
		var err error
		if l, err = LoadLayout(); err != nil {
			return Detection{}, err
		}
	}
	f := l.facts()
	if f.WalksTags {
		if err := readCode(l, &f); err != nil {
			f.Unread = err.Error()
		}
	}
	rules, why := queue.Identify(f.Facts)
	d := Detection{Candidates: rules, Evidence: why, PerCPUCounters: l.PerCPUCounters}
	if f.Unread != "" {
		d.Evidence = append(d.Evidence, "the kernel's code could not be read: "+f.Unread)
	}
	return d, nil
}

type facts struct {
	queue.Facts
	WalksTags bool
	Unread    string
}

// facts are those that BTF tells.
func (l *Layout) facts() facts {
	has := func(field string) queue.Answer { return queue.YesNo(l.has(field)) }
	typ := func(name string) bool { return slices.Contains(l.Types, name) }
	f := facts{Facts: queue.Facts{
		NeedsBudgetToken: has("Scsi_Host.needs_budget_token"),
		PseudoDevice:     has("Scsi_Host.pseudo_sdev"),
		WalkV1:           queue.YesNo(typ("sdev_in_flight_data")),
		Walk:             queue.YesNo(typ("sdev_cmds_allocated_data")),
	}}
	f.WalksTags = f.Walk == queue.Yes
	if f.Walk == queue.No && f.WalkV1 == queue.No {
		f.WalkUnknown = queue.YesNo(typ("scsi_device_busy") && typ("blk_mq_tagset_iter"))
	}
	return f
}

// readCode answers what only the code tells.
func readCode(l *Layout, f *facts) error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("its code is only understood on amd64, not on %s", runtime.GOARCH)
	}
	file, err := os.Open("/proc/kallsyms")
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return errors.New("no /proc/kallsyms: the kernel needs CONFIG_KALLSYMS")
		}
		return err
	}
	defer file.Close()
	libata := []string{"ata_scsi_qc_new", "ata_scsi_translate", "__ata_scsi_queuecmd"}
	syms, err := readSymbols(file, append([]string{"scsi_change_queue_depth"}, libata...)...)
	if err != nil {
		return err
	}
	r, err := newCodeReader()
	if err != nil {
		return err
	}
	defer r.Close()
	if s, ok := syms["scsi_change_queue_depth"]; ok {
		code, err := r.read(s)
		if err != nil {
			return err
		}
		f.DepthNeedsMap = queue.YesNo(returnsEINVAL(code))
	}
	var code []byte
	for _, name := range libata {
		if s, ok := syms[name]; ok {
			part, err := r.read(s)
			if err != nil {
				return err
			}
			code = append(code, part...)
		}
	}
	f.LibataRequestTag = libataTag(code, l)
	return nil
}

// returnsEINVAL looks for the constant -22 in x86-64 code. In the few dozen
// instructions of scsi_change_queue_depth it is there only where the function
// can fail.
func returnsEINVAL(code []byte) bool {
	return bytes.Contains(code, []byte{0xea, 0xff, 0xff, 0xff})
}

// libataTag tells from libata's x86-64 code which tag it takes for a SAS host:
// it reads cmd->budget_token, or it warns if the tag set has more than one
// queue. Either is seen as the member's offset in an instruction, if that
// takes the long form.
func libataTag(code []byte, l *Layout) queue.Answer {
	uses := func(field string) (used, known bool) {
		f, ok := l.Fields[field]
		if !ok || f.Offset < 128 { // a short offset is a byte like any other
			return false, false
		}
		n := uint32(f.Offset)
		return bytes.Contains(code, []byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)}), true
	}
	token, tokenKnown := uses("scsi_cmnd.budget_token")
	queues, queuesKnown := uses("Scsi_Host.tag_set.nr_hw_queues")
	switch {
	case len(code) == 0 || !tokenKnown || !queuesKnown || token == queues:
		return queue.Unknown
	case queues:
		return queue.Yes
	}
	return queue.No
}
