package queue

import "fmt"

// sbitmap is as much of the kernel's struct sbitmap as its rules depend on.
type sbitmap struct {
	mapped bool
	depth  int
	shift  int
	words  int // survives a free, as the kernel's map_nr does
	hint   bool
}

// MapShift is the number of bits that a word of a map of that depth holds, as a
// power of two: sbitmap_calculate_shift on a 64-bit kernel.
func MapShift(depth int) int {
	shift := 6
	if depth >= 4 {
		for 4<<shift > depth {
			shift--
		}
	}
	return shift
}

// resize is sbitmap_resize. It reports false where the kernel reads the words
// of a map that isn't there.
func (b *sbitmap) resize(depth int) bool {
	ok := b.mapped || b.words == 0
	b.depth = depth
	b.words = (depth + 1<<b.shift - 1) >> b.shift
	return ok
}

// Device is a device of a host, as a kernel with given rules would have it.
// It is not safe for concurrent use.
type Device struct {
	rules  Rules
	limits Limits

	budget sbitmap
	depth  int
	reason string
	// doubleFree: the map's per-CPU hint was freed and is still pointed to.
	doubleFree bool
	oops       bool
}

// Attach makes a device as the kernel's LUN scan does. Its error is
// [Limits.Validate]'s.
func (r Rules) Attach(l Limits) (*Device, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	d := &Device{rules: r, limits: l}
	depth := l.HostCmdPerLUN()
	if depth == 0 {
		depth = 1
	}
	d.reason = d.lookAtMap(depth)
	d.change(depth)
	if l.Configures {
		if l.ConfiguredDepth > 0 {
			d.change(l.ConfiguredDepth)
		}
		was := d.budget.mapped
		second := d.lookAtMap(d.depth)
		if was != d.budget.mapped {
			d.reason = second + "; at first " + d.reason
		} else if d.budget.mapped {
			d.reason = second
		}
	}
	return d, nil
}

// lookAtMap is scsi_realloc_sdev_budget_map.
func (d *Device) lookAtMap(depth int) string {
	action, reason := d.rules.MapAtLook(d.limits, depth, d.budget.mapped, d.budget.shift)
	switch action {
	case MapFreed:
		d.free()
	case MapAllocated:
		depth = min(depth, d.limits.DeviceMax())
		d.budget = sbitmap{mapped: true, shift: MapShift(depth), hint: true, words: 1}
		d.budget.resize(depth)
		d.doubleFree = false
	}
	return reason
}

// change is scsi_change_queue_depth: it reports whether the kernel accepts.
func (d *Device) change(depth int) bool {
	if d.rules.DepthNeedsMap && !d.budget.mapped {
		return false
	}
	depth = min(depth, d.limits.DeviceMax())
	if depth > 0 {
		d.depth = depth
	}
	switch d.rules.MapAtChange(d.limits, depth, d.budget.mapped) {
	case MapFreed:
		d.free()
	case MapResized:
		if !d.budget.resize(d.depth) {
			d.oops = true
		}
	}
	return true
}

// free is sbitmap_free, which leaves the pointer to the hint.
func (d *Device) free() {
	d.doubleFree = d.doubleFree || d.budget.hint
	d.budget.mapped = false
}

// Mapped says whether the device has a budget map.
func (d *Device) Mapped() bool { return d.budget.mapped }

// MapDepth is the number of commands the map holds the device to; 0 without.
func (d *Device) MapDepth() int {
	if !d.budget.mapped {
		return 0
	}
	return d.budget.depth
}

// MapShift is the map's bits a word as a power of two; 0 without a map.
func (d *Device) MapShift() int {
	if !d.budget.mapped {
		return 0
	}
	return d.budget.shift
}

// QueueDepth is what queue_depth reads in sysfs.
func (d *Device) QueueDepth() int { return d.depth }

// Reason says why the device has a map or has none.
func (d *Device) Reason() string { return d.reason }

// MaxInFlight is the most commands of this device in flight at once, if no
// other device of the host is busy. An I/O scheduler's nr_requests can hold a
// disk to less.
func (d *Device) MaxInFlight() int {
	if !d.budget.mapped {
		return d.limits.HostMax()
	}
	return min(d.budget.depth, d.limits.HostMax())
}

// Stuck says that no command of the device can start any more: its map holds
// it to none.
func (d *Device) Stuck() bool { return d.budget.mapped && d.budget.depth == 0 }

// Oopsed says that the kernel has used memory that isn't there.
func (d *Device) Oopsed() bool { return d.oops }

// HintFreedTwice says that the map's per-CPU hint, freed with the map, will
// be freed again when the device goes.
func (d *Device) HintFreedTwice() bool { return d.doubleFree && !d.budget.mapped }

// DepthWrite is what a write to queue_depth in sysfs does, if no command ends
// meanwhile.
//
// The kernel lowers the depth first and its ceiling (max_queue_depth) after. On
// a host with track_queue_depth, such as tcm_loop's, virtio_scsi's and
// scsi_debug's, a command that ends in between raises both by one, on each CPU
// that has not yet seen another do so. It does that once in two minutes, so a
// depth that reads higher than it was written can be written again.
type DepthWrite struct {
	Requested int    `json:"requested"`
	Accepted  bool   `json:"accepted"`
	Error     string `json:"error,omitempty"` // the errno's name
	// QueueDepth is what reads back.
	QueueDepth int `json:"queue_depth"`
	// Held says that no more than QueueDepth commands of the device will be
	// in flight, once those that were have ended.
	Held        bool   `json:"held"`
	MaxInFlight int    `json:"max_in_flight"`
	Reason      string `json:"reason"`
	Oops        bool   `json:"oops,omitempty"`
}

// WriteDepth writes queue_depth in sysfs.
func (d *Device) WriteDepth(depth int) DepthWrite {
	w := DepthWrite{Requested: depth}
	cut := depth
	if d.limits.ClampsDepth {
		cut = min(depth, d.limits.HostCmdPerLUN())
	}
	switch {
	case depth < 1 || depth > d.limits.CanQueue:
		w.Error = "EINVAL"
		w.Reason = fmt.Sprintf("refused: outside 1 to can_queue %d", d.limits.CanQueue)
	case d.limits.KeepsDepth && cut == d.depth:
		w.Accepted = true
	case !d.change(cut):
		w.Error = "EINVAL"
		w.Reason = "refused: this kernel changes no depth without a map"
	default:
		w.Accepted = true
	}
	w.QueueDepth, w.MaxInFlight, w.Oops = d.depth, d.MaxInFlight(), d.oops
	w.Held = w.MaxInFlight <= w.QueueDepth
	if w.Accepted {
		switch {
		case w.Oops:
			w.Reason = "oops: the words of a map that isn't there are read"
		case d.budget.mapped:
			w.Reason = fmt.Sprintf("held: the map is resized to %d", d.budget.depth)
		case w.Held:
			w.Reason = fmt.Sprintf("held: not by a map, but by the host's %d tags", d.limits.HostMax())
		default:
			w.Reason = fmt.Sprintf("stored, not held: without a map only the host's %d tags bound the device", d.limits.HostMax())
		}
		if d.depth != depth {
			w.Reason += fmt.Sprintf(" (%d cut to %d)", depth, d.depth)
		}
	}
	return w
}
