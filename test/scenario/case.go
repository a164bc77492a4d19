// Package scenario exercises a kernel's SCSI core with chosen limits and says
// of each thing that it saw whether the kernel's rules predict it.
package scenario

import (
	"fmt"
	"slices"

	"lunlab/queue"
)

// The kinds of host that a case can have.
const (
	TCMLoop   = "tcm_loop"   // a memory LUN of ours through TCMU
	SCSIDebug = "scsi_debug" // the kernel's own, the yardstick for host-wide tags
)

// Case is one host configuration to try.
type Case struct {
	Host string `json:"host"`
	queue.Limits
}

// Name tells cases apart: host/queues/can_queue/cmd_per_lun, as in
// "tcm_loop/1/64/32", with "/host-wide" where the tags are.
func (c Case) Name() string {
	s := fmt.Sprintf("%s/%d/%d/%d", c.Host, c.HWQueues, c.CanQueue, c.CmdPerLUN)
	if c.HostTagset {
		s += "/host-wide"
	}
	return s
}

// LowerTo is the queue depth that the case writes while I/O runs: an eighth of
// what the device has at first, 0 where there is nothing to lower.
func (c Case) LowerTo() int {
	depth := min(c.HostCmdPerLUN(), c.DeviceMax())
	if depth < 2 {
		return 0
	}
	return max(1, depth/8)
}

// fioDepth is how many I/Os are offered to each hardware queue: more than the
// host takes.
func (c Case) fioDepth() int { return c.CanQueue + c.CanQueue/8 + 8 }

// hasHost says whether any of the cases has a host of that kind.
func hasHost(cases []Case, host string) bool {
	return slices.ContainsFunc(cases, func(c Case) bool { return c.Host == host })
}

// modulesOf are the modules that the cases need, to be loaded at first and
// when a case comes.
func modulesOf(cases []Case) (load, carry []string) {
	load = []string{"sd_mod"}
	if hasHost(cases, TCMLoop) {
		load = append(load, "configfs", "target_core_user", "tcm_loop")
	}
	if hasHost(cases, SCSIDebug) {
		carry = append(carry, "scsi_debug")
	}
	return load, carry
}

// Cases are what a run tries if it isn't told otherwise: each number of
// queues with cmd_per_lun below, at and above can_queue, the extremes, and
// scsi_debug for the host-wide tags that tcm_loop can't have.
func Cases() []Case {
	var cs []Case
	loop := func(queues, canQueue, cmdPerLUN int) {
		cs = append(cs, Case{Host: TCMLoop, Limits: queue.Limits{HWQueues: queues, CanQueue: canQueue, CmdPerLUN: cmdPerLUN}})
	}
	for _, queues := range []int{1, 2, 4} {
		for _, cmdPerLUN := range []int{32, 64, 128} {
			loop(queues, 64, cmdPerLUN)
		}
	}
	loop(1, 1, 1)
	loop(1, 8192, 8192)
	debug := func(queues int, hostWide bool) {
		cs = append(cs, Case{Host: SCSIDebug, Limits: queue.Limits{
			HWQueues: queues, CanQueue: 64, CmdPerLUN: 64, HostTagset: hostWide, Configures: true,
		}})
	}
	debug(1, false)
	debug(2, false)
	debug(2, true)
	return cs
}
