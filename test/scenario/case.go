// Package scenario exercises a kernel's SCSI core with chosen limits and says
// of each thing that it saw whether the kernel's rules predict it.
package scenario

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"lunlab/queue"
)

// The kinds of host that a case can have.
const (
	TCMLoop   = "tcm_loop"   // a memory LUN of ours through TCMU
	SCSIDebug = "scsi_debug" // the kernel's own, the yardstick for host-wide tags
	ISCSITCP  = "iscsi_tcp"  // a memory LUN of ours over iSCSI

	// VirtIOSCSI is a guest's, with a memory LUN of ours that the host serves.
	VirtIOSCSI = "virtio_scsi"
)

var hosts = []string{TCMLoop, SCSIDebug, ISCSITCP, VirtIOSCSI} // with limits to choose

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

// title is the kind of host, and what isn't in numbers.
func (c Case) title() string {
	switch {
	case c.HostTagset:
		return c.Host + " host-wide"
	case c.Host == ISCSITCP:
		return fmt.Sprintf("%s cmds_max %d", c.Host, c.cmdsMax())
	}
	return c.Host
}

// LowerTo is the queue depth that the case writes while I/O runs: an eighth of
// what the device has at first, 0 where there is nothing to lower.
func (c Case) LowerTo() int {
	depth := min(cmp.Or(c.ConfiguredDepth, c.HostCmdPerLUN()), c.DeviceMax())
	if depth < 2 {
		return 0
	}
	return max(1, depth/8)
}

// fioDepth is how many I/Os are offered to each hardware queue: more than the
// host takes.
func (c Case) fioDepth() int { return c.CanQueue + c.CanQueue/8 + 8 }

// limitsPrefix begins the names of the scenarios that are cases.
const limitsPrefix = "limits/"

// Scenario is the case as a scenario.
func (c Case) Scenario() Scenario {
	return Scenario{
		Name:    limitsPrefix + c.Name(),
		Shows:   "which limits and budget map the kernel makes of these, and whether it holds a lowered queue_depth",
		Hosts:   []string{c.Host},
		Timeout: 90 * time.Second,
		limits:  c,
		run:     func(ctx context.Context, r *run) error { return r.limits(ctx) },
	}
}

// ParseCase is the case that has the name.
func ParseCase(name string) (Case, error) {
	f := strings.Split(name, "/")
	bad := func(why string) (Case, error) {
		return Case{}, fmt.Errorf("limits %q: %s; want HOST/QUEUES/CAN_QUEUE/CMD_PER_LUN, as in tcm_loop/2/64/32", name, why)
	}
	c := Case{Host: f[0]}
	if !slices.Contains(hosts, c.Host) {
		return bad(fmt.Sprintf("no host %q: want one of %s", c.Host, strings.Join(hosts, ", ")))
	}
	if len(f) == 5 && f[4] == "host-wide" {
		c.HostTagset, f = true, f[:4]
	}
	if len(f) != 4 {
		return bad("that isn't three numbers")
	}
	for i, n := range []*int{&c.HWQueues, &c.CanQueue, &c.CmdPerLUN} {
		v, err := strconv.Atoi(f[i+1])
		if err != nil || v < 1 {
			return bad(fmt.Sprintf("%q is not a number above 0", f[i+1]))
		}
		*n = v
	}
	switch {
	case c.Host == TCMLoop && c.HostTagset:
		return bad("tcm_loop has no host-wide tags")
	case c.Host == SCSIDebug && c.CmdPerLUN != c.CanQueue:
		return bad("scsi_debug has can_queue for cmd_per_lun")
	}
	var err error
	switch c.Host {
	case ISCSITCP:
		err = c.validISCSI()
	case VirtIOSCSI:
		err = c.validVirtIO()
	}
	if err != nil {
		return bad(err.Error())
	}
	c.Configures = c.Host == SCSIDebug || c.Host == ISCSITCP
	c.ClampsDepth = c.Host == VirtIOSCSI
	if err := c.Validate(); err != nil {
		return bad(err.Error())
	}
	return c, nil
}

// Cases are what a run tries if it isn't told otherwise: each number of
// queues with cmd_per_lun below, at and above can_queue, the extremes, and
// scsi_debug for the host-wide tags that tcm_loop can't have; iscsi_tcp with
// cmds_max and queue_depth 64; and virtio_scsi with virtqueues of the size that
// User-Mode Linux has.
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
	cs = append(cs, Case{Host: ISCSITCP, Limits: queue.Limits{
		HWQueues: 1, CanQueue: 64 - iscsiManagement, CmdPerLUN: 64, Configures: true,
	}})
	virtio := func(queues, canQueue, cmdPerLUN int) {
		cs = append(cs, Case{Host: VirtIOSCSI, Limits: queue.Limits{
			HWQueues: queues, CanQueue: canQueue, CmdPerLUN: cmdPerLUN, ClampsDepth: true,
		}})
	}
	virtio(1, umlQueueSize, 64)
	virtio(1, umlQueueSize, umlQueueSize)
	virtio(4, umlQueueSize, umlQueueSize)
	return cs
}
