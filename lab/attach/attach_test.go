package attach_test

import (
	"regexp"
	"testing"

	"lunlab/lab"
	"lunlab/lab/attach"
)

// What an attachment does to a kernel is tested in guests, with lunlab attach.
func TestLoopConfig(t *testing.T) {
	// The initiator's name is made of the host's with one bit set, which the
	// host's has to have clear.
	own := regexp.MustCompile(`^naa\.5001405[0-7][0-9a-f]{8}$`)
	seen := map[string]string{}
	for _, name := range []string{"a", "b", "disks", "lunlab-1", "lunlab-2"} {
		c := attach.LoopConfig(&lab.Target{Name: name, Limits: lab.Limits{CanQueue: 64, CmdPerLUN: 32, HWQueues: 2}})
		if !own.MatchString(c.WWN) || c.Initiator != "" || c.CanQueue != 64 || c.CmdPerLUN != 32 || c.HWQueues != 2 {
			t.Errorf("%s: %+v", name, c)
		}
		if other, ok := seen[c.WWN]; ok {
			t.Errorf("%s and %s both have WWN %s", name, other, c.WWN)
		}
		seen[c.WWN] = name
	}
	c := attach.LoopConfig(&lab.Target{Name: "a", Loop: lab.Loop{WWN: "naa.5001405000000101", Initiator: "naa.5001405000000102"}})
	if c.WWN != "naa.5001405000000101" || c.Initiator != "naa.5001405000000102" {
		t.Errorf("with names: %+v", c)
	}
}
