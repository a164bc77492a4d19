package queue

import (
	"fmt"
	"slices"
	"strings"
)

// Elision says for which hosts a kernel leaves out the budget map of a device
// whose depth is at least can_queue.
type Elision int

const (
	ElideNever Elision = iota
	ElideHostTagset
	ElideHostTagsetOrOneQueue
)

// LibataTag says what libata takes as a queued command's NCQ tag on a SAS
// host. Elsewhere it takes the request tag in every version.
type LibataTag int

const (
	LibataBudgetToken LibataTag = iota
	LibataRequestTag
)

func (t LibataTag) String() string {
	if t == LibataRequestTag {
		return "request tag"
	}
	return "budget token"
}

// Rules is what one kernel, or one version of a patch series, does about
// budget maps. It is data: [Rules.NeedsMap] and [Rules.Attach] read it. In JSON
// it is its name.
type Rules struct {
	// Name is short and stable, for flags and reports.
	Name string
	// Aliases are further names that [Lookup] takes.
	Aliases []string
	// Title says what the rules are of, with the day of the posting.
	Title string
	// Elides says for which hosts a map may be left out.
	Elides Elision
	// KnowsNeedsBudgetToken: a host with the flag always gets maps.
	KnowsNeedsBudgetToken bool
	// DepthNeedsMap: scsi_change_queue_depth fails (EINVAL) without a map.
	DepthNeedsMap bool
	// DepthMovesMap: scsi_change_queue_depth itself frees the map at a depth
	// of at least can_queue, and resizes it below, whether it's there or not.
	DepthMovesMap bool
	// TrackingNeedsMap: TASK SET FULL lowers no depth, and nothing raises it
	// again, without a map.
	TrackingNeedsMap bool
	// LibataTag is the NCQ tag of a SAS host's ATA device.
	LibataTag LibataTag
	// Notes are further facts of this version, a sentence each.
	Notes []string
}

// MarshalText gives the name.
func (r Rules) MarshalText() ([]byte, error) { return []byte(r.Name), nil }

// UnmarshalText takes what [Lookup] takes.
func (r *Rules) UnmarshalText(name []byte) error {
	found, err := Lookup(string(name))
	*r = found
	return err
}

// all is in the order of time.
var all = []Rules{
	{
		Name:  "6.12",
		Title: "Linux 6.12 as it is: every device has a map",
	},
	{
		Name:    "v1",
		Aliases: []string{"2025-09-10"},
		Title:   "series of 2025-09-10: left out for host-wide tags",
		Elides:  ElideHostTagset, DepthMovesMap: true,
		Notes: []string{
			"As posted it frees an uninitialised sbitmap when it leaves a map out.",
			"A depth lowered twice without a map walks the words of a map that isn't there.",
		},
	},
	{
		Name:          "6.19",
		Aliases:       []string{"optional"},
		Title:         "Linux 6.19: only a host's pseudo device has no map",
		DepthNeedsMap: true, TrackingNeedsMap: true,
	},
	{
		Name:    "v2",
		Aliases: []string{"v2a", "v2-2025-11-17", "2025-11-17"},
		Title:   "series of 2025-11-17: left out for host-wide tags or one queue; a depth needs a map",
		Elides:  ElideHostTagsetOrOneQueue, DepthNeedsMap: true, TrackingNeedsMap: true,
		Notes: []string{
			"A device that is left out at first keeps queue_depth 0: scsi_change_queue_depth refuses to set one.",
			"With device_configure the second look then allocates a map of depth 0, and the LUN scan waits for ever.",
		},
	},
	{
		Name:    "v3",
		Aliases: []string{"v2b", "v2-2025-11-24", "2025-11-24"},
		Title:   "series of 2025-11-24 (posted as v2 again): as v2, depth stored without a map; libata takes the request tag",
		Elides:  ElideHostTagsetOrOneQueue, TrackingNeedsMap: true, LibataTag: LibataRequestTag,
		Notes: []string{
			"Under libsas the request tag is the HBA's and passes 31, libata's last NCQ tag.",
		},
	},
	{
		Name:    "v3-scsi",
		Aliases: []string{"no3"},
		Title:   "v3 without its libata patch",
		Elides:  ElideHostTagsetOrOneQueue, TrackingNeedsMap: true,
		Notes: []string{
			"A SAS host's ATA device without a map has no NCQ tag: libata gets 2147483647 as its token and fails the command.",
		},
	},
	{
		Name:    "v4",
		Aliases: []string{"nbt", "2025-12-16"},
		Title:   "series of 2025-12-16: as v3-scsi, and never for a host with needs_budget_token",
		Elides:  ElideHostTagsetOrOneQueue, TrackingNeedsMap: true, KnowsNeedsBudgetToken: true,
		Notes: []string{
			"The flag is set in ata_scsi_add_hosts, which hosts of libsas don't pass.",
		},
	},
}

// All returns every rule set, oldest first.
func All() []Rules { return slices.Clone(all) }

// Lookup returns the rule set of that name or alias, in any case. Its error
// lists the names there are.
func Lookup(name string) (Rules, error) {
	names := make([]string, 0, len(all))
	for _, r := range all {
		if strings.EqualFold(r.Name, name) || slices.ContainsFunc(r.Aliases, func(a string) bool { return strings.EqualFold(a, name) }) {
			return r, nil
		}
		names = append(names, r.Name)
	}
	return Rules{}, fmt.Errorf("queue: no rules named %q: there are %s", name, strings.Join(names, ", "))
}

// NeedsMap says whether a device of that depth gets a budget map, and why, in
// words that begin with "allocated" or "elided". The depth is the one the
// kernel's predicate is given: cmd_per_lun when the device is made, which is
// not yet held to 4,096, and queue_depth after device_configure.
func (r Rules) NeedsMap(l Limits, depth int) (bool, string) {
	queues := l.Queues()
	sharing := "one hardware queue"
	if l.HostTagset {
		sharing = "host-wide tags"
	}
	switch {
	case r.Elides == ElideNever:
		return true, "allocated: this kernel always allocates"
	case r.KnowsNeedsBudgetToken && l.NeedsBudgetToken:
		return true, "allocated: the host needs the budget token"
	case r.Elides == ElideHostTagset && !l.HostTagset:
		return true, "allocated: the tags are not host-wide"
	case !l.HostTagset && queues > 1:
		return true, fmt.Sprintf("allocated: %d hardware queues whose tags are not host-wide", queues)
	case depth < l.CanQueue:
		return true, fmt.Sprintf("allocated: depth %d < can_queue %d", depth, l.CanQueue)
	}
	if queues < l.HWQueues && !l.HostTagset {
		sharing += fmt.Sprintf(" (of %d asked for, on %d CPU)", l.HWQueues, l.CPUs)
	}
	return false, fmt.Sprintf("elided: %s and depth %d >= can_queue %d", sharing, depth, l.CanQueue)
}

// MapAction is what a kernel does with a device's budget map when it has reason
// to look at it.
type MapAction int

const (
	MapStays MapAction = iota
	// MapAllocated: a new map, in place of the one there may be.
	MapAllocated
	// MapResized: the same map, at the device's depth.
	MapResized
	MapFreed
)

// MapAtLook is what scsi_realloc_sdev_budget_map does, and why, in words, as
// [Rules.NeedsMap] has it. mapped and shift are of the map there is.
func (r Rules) MapAtLook(l Limits, depth int, mapped bool, shift int) (MapAction, string) {
	needs, reason := r.NeedsMap(l, depth)
	switch {
	case !needs:
		return MapFreed, reason
	case !mapped || MapShift(min(depth, l.DeviceMax())) != shift:
		return MapAllocated, reason
	}
	return MapStays, reason
}

// MapAtChange is what scsi_change_queue_depth does when it accepts the depth,
// which is [Limits.DeviceMax] at most.
func (r Rules) MapAtChange(l Limits, depth int, mapped bool) MapAction {
	switch {
	case r.DepthMovesMap && l.HostTagset && depth >= l.CanQueue:
		return MapFreed
	case r.DepthMovesMap || mapped:
		return MapResized
	}
	return MapStays
}
