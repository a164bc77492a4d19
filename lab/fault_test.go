package lab_test

import (
	"strings"
	"testing"

	"lunlab/lab"
	"lunlab/lun"
)

const faultFile = `targets:
- name: a
  luns:
  - lun: 0
    count: 2
    store: {kind: mem, size: 1MiB}
    faults:
    - cmd=read10 status=busy
    - "lba=7 medium-error"
`

func TestFaults(t *testing.T) {
	l, err := load(t, faultFile).Build(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	read := lun.Command{Nexus: &lun.Nexus{}, CDB: []byte{0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0}}
	l.LUNs[0].Faults.Execute(&read)
	if read.Status != lun.Busy {
		t.Errorf("status %#x, want BUSY", read.Status)
	}
	for i, want := range []uint64{1, 0} { // each LUN counts by itself
		rules := l.LUNs[i].Faults.Rules()
		if len(rules) != 2 || rules[0].Rule != "cmd=read10 status=busy" || rules[0].Fired != want || rules[1].Bad != 1 {
			t.Errorf("rules of LUN %d: %+v", i, rules)
		}
	}
}

// TestFaultMistakes shows that a mistake in a rule is told with its own place.
func TestFaultMistakes(t *testing.T) {
	for _, tt := range []struct{ old, new, want string }{
		{`status=busy`, `status=bussy`, `8:18: faults: status=bussy: want good,`},
		{`cmd=read10`, `cmd=reed`, `8:7: faults: cmd=reed: no command is called "reed"`},
		{`"lba=7 medium-error"`, `"lba=7  medium-eror"`, `9:15: faults: unknown word "medium-eror"`},
		{`"lba=7 medium-error"`, `'lba=x medium-error'`, `9:8: faults: lba=x: want a block N`},
		{`"lba=7 medium-error"`, "|\n      lba=7\n      medium-eror", `9:7: faults: unknown word "medium-eror"`},
		{`"lba=7 medium-error"`, `[]`, `9:7: faults is an empty list; want a rule such as`},
		{`"lba=7 medium-error"`, `medium-error`, `9:7: faults: medium-error is for a rule with lba=…`},
	} {
		if _, err := lab.Load(write(t, strings.Replace(faultFile, tt.old, tt.new, 1))); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("with %s for %s: %v, want %s", tt.new, tt.old, err, tt.want)
		}
	}
}
