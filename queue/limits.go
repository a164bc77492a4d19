// Package queue holds a SCSI host's limits, and what a Linux kernel makes of
// them: the queue depth of a new device, whether the device gets a budget map,
// how many of its commands can be in flight, and what a write to queue_depth
// does later. Kernels differ in this; each difference is a named [Rules].
//
// The package is a model. It imports nothing of the project and looks at no
// kernel; package probe finds out which rules a running kernel has.
package queue

import (
	"errors"
	"fmt"
	"math"
)

// Bounds that every kernel here has.
const (
	// MaxDepth is the largest queue_depth of a device, whatever its host can
	// take (scsi_device_max_queue_depth).
	MaxDepth = 4096
	// MaxTags is the most request tags that a hardware queue gets; a larger
	// can_queue is cut to it (BLK_MQ_MAX_DEPTH), which can_queue in sysfs
	// doesn't show.
	MaxTags = 10240
	// MaxCmdPerLUN is the largest cmd_per_lun: the kernel's field is a short.
	MaxCmdPerLUN = math.MaxInt16
	// MaxHWQueues is the most hardware queues that fit a unique tag.
	MaxHWQueues = 1 << 16
	// NoToken is the budget token of a command whose device has no budget map.
	NoToken = math.MaxInt32
)

// Limits is what a low-level driver tells the kernel of its host, before the
// kernel has clamped anything.
type Limits struct {
	// CanQueue is the number of commands the host takes at once: in each
	// hardware queue, or in all of them where the tags are host-wide.
	CanQueue int `json:"can_queue"`
	// CmdPerLUN is a new device's queue depth. 0 is taken as 1.
	CmdPerLUN int `json:"cmd_per_lun"`
	// HWQueues is nr_hw_queues as the driver asks for it.
	HWQueues int `json:"nr_hw_queues"`
	// HostTagset says that all hardware queues share one set of tags.
	HostTagset bool `json:"host_tagset"`
	// NeedsBudgetToken says that the driver uses the budget token for
	// something of its own. Only rules that know the flag look at it.
	NeedsBudgetToken bool `json:"needs_budget_token"`

	// CPUs caps the hardware queues, as the block layer does for a tag set
	// with a single map. 0 means no cap.
	CPUs int `json:"cpus,omitempty"`
	// Configures says that the driver has a device_configure (or
	// slave_configure) method: the kernel then looks at the map a second time
	// after INQUIRY, at the queue depth of that moment. scsi_debug, iscsi_tcp
	// and libata have one, tcm_loop and virtio_scsi have not.
	Configures bool `json:"configures,omitempty"`
	// ConfiguredDepth is the depth that device_configure sets; 0 if it leaves
	// the depth alone. AHCI sets 32 for a drive with NCQ.
	ConfiguredDepth int `json:"configured_depth,omitempty"`
	// ClampsDepth says that the driver cuts a written depth to cmd_per_lun
	// without a word, as virtio_scsi does.
	ClampsDepth bool `json:"clamps_depth,omitempty"`
	// KeepsDepth says that the driver asks the kernel for nothing if the depth
	// that is written is the one that there is, as libata does.
	KeepsDepth bool `json:"keeps_depth,omitempty"`
}

// Validate reports each limit that no host can have, with its range.
func (l Limits) Validate() error {
	var errs []error
	check := func(name string, v, lo, hi int) {
		if v < lo || v > hi {
			errs = append(errs, fmt.Errorf("%s %d: want %d to %d", name, v, lo, hi))
		}
	}
	check("can_queue", l.CanQueue, 1, math.MaxInt32)
	check("cmd_per_lun", l.CmdPerLUN, 0, MaxCmdPerLUN)
	check("nr_hw_queues", l.HWQueues, 1, MaxHWQueues)
	check("cpus", l.CPUs, 0, MaxHWQueues)
	check("configured_depth", l.ConfiguredDepth, 0, math.MaxInt32)
	if l.ConfiguredDepth > 0 && !l.Configures {
		errs = append(errs, fmt.Errorf("configured_depth %d: only a driver with device_configure sets one", l.ConfiguredDepth))
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("queue: limits: %w", errors.Join(errs...))
}

// Queues is the number of hardware queues the host really gets.
func (l Limits) Queues() int {
	n := max(l.HWQueues, 1)
	if l.CPUs > 0 {
		n = min(n, l.CPUs)
	}
	return n
}

// HostCmdPerLUN is cmd_per_lun after the host was added: never above
// can_queue.
func (l Limits) HostCmdPerLUN() int { return min(l.CmdPerLUN, l.CanQueue) }

// HostMax is the most commands that the host's tags let be in flight at once,
// over all of its devices.
func (l Limits) HostMax() int {
	tags := min(l.CanQueue, MaxTags)
	if l.HostTagset {
		return tags
	}
	return tags * l.Queues()
}

// DeviceMax is the largest queue_depth a device of this host can have.
func (l Limits) DeviceMax() int { return min(l.CanQueue, MaxDepth) }
