package probe

import (
	"encoding/hex"
	"strings"
	"testing"

	"lunlab/queue"
)

func code(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The beginning and the end of scsi_change_queue_depth, as compiled from 6.12
// with the series of 2025-11-17, which returns -EINVAL, and of 2025-11-24.
func TestReturnsEINVAL(t *testing.T) {
	for _, c := range []struct {
		name, code string
		want       bool
	}{
		{"2025-11-17", "f3 0f 1e fa 48 83 7f 40 00 74 5e 53 b8 00 10 00 00 48 8b 17 0f b7 43 70 5b c3 b8 ea ff ff ff c3", true},
		{"2025-11-24", "f3 0f 1e fa 53 48 8b 07 48 89 fb 8b 80 c4 01 00 00 39 c6 0f 4e c6 be 00 10 00 00 0f b7 43 70 5b c3", false},
		{"nothing", "", false},
	} {
		if got := returnsEINVAL(code(t, c.code)); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

// The part of __ata_scsi_queuecmd that takes the tag, as compiled from 6.12
// without and with libata's patch.
func TestLibataTag(t *testing.T) {
	const (
		token  = "41 f6 44 24 1b 01 74 10 8b 85 84 00 00 00 83 f8 1f"
		queues = "83 ba 1c 01 00 00 01 77 20 41 f6 44 24 1b 01 83 f8 1f"
	)
	short := layout612()
	short.Fields["scsi_cmnd.budget_token"] = Field{Offset: 100, Size: 4}
	for _, c := range []struct {
		name, code string
		layout     *Layout
		want       queue.Answer
	}{
		{"budget token", token, layout612(), queue.No},
		{"request tag", queues, layout612(), queue.Yes},
		{"both", token + queues, layout612(), queue.Unknown},
		{"neither", "90 90 c3", layout612(), queue.Unknown},
		{"libata isn't there", "", layout612(), queue.Unknown},
		{"an offset that is one byte", queues, short, queue.Unknown},
	} {
		if got := libataTag(code(t, c.code), c.layout); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

func TestFactsOfLayout(t *testing.T) {
	l := layout612()
	f := l.facts()
	want := queue.Facts{NeedsBudgetToken: queue.No, PseudoDevice: queue.No, WalkV1: queue.No, Walk: queue.No, WalkUnknown: queue.No}
	if f.Facts != want {
		t.Errorf("got %+v, want %+v", f.Facts, want)
	}
	l.Types = []string{"blk_mq_tagset_iter", "scsi_device_busy"}
	if f := l.facts(); f.WalkUnknown != queue.Yes {
		t.Errorf("with functions of no known version: got %+v", f)
	}
	l.Types = []string{"blk_mq_tagset_iter", "sdev_cmds_allocated_data"}
	l.Fields["Scsi_Host.needs_budget_token"] = Field{Offset: 506, Size: 1, Bits: 1}
	f = l.facts()
	want.NeedsBudgetToken, want.Walk, want.WalkUnknown = queue.Yes, queue.Yes, queue.Unknown
	if f.Facts != want {
		t.Errorf("got %+v, want %+v", f.Facts, want)
	}
}

func TestDetectionString(t *testing.T) {
	rules, why := queue.Identify(queue.Facts{NeedsBudgetToken: queue.No, PseudoDevice: queue.No, WalkV1: queue.No, Walk: queue.Yes})
	d := Detection{Candidates: rules, Evidence: why, PerCPUCounters: true}
	got := d.String()
	for _, want := range []string{"v2 or v3 or v3-scsi", "per-CPU iorequest_cnt", "device_busy can walk the tags", "3 sets of rules look the same"} {
		if !strings.Contains(got, want) {
			t.Errorf("got %q, want %q in it", got, want)
		}
	}
	if got := (Detection{}).String(); !strings.HasPrefix(got, "none that is known") {
		t.Errorf("no candidates: got %q", got)
	}
}
