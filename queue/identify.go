package queue

import "fmt"

// Answer is what was found about a kernel.
type Answer int

const (
	Unknown Answer = iota
	No
	Yes
)

// YesNo makes an Answer of a truth.
func YesNo(b bool) Answer {
	if b {
		return Yes
	}
	return No
}

// Facts are what was seen of a kernel that has budget maps.
type Facts struct {
	// NeedsBudgetToken: Scsi_Host has needs_budget_token.
	NeedsBudgetToken Answer
	// PseudoDevice: Scsi_Host has pseudo_sdev.
	PseudoDevice Answer
	// WalkV1 and Walk: device_busy can be counted by a walk over the tags,
	// with the structure that v1 has for it (sdev_in_flight_data), or with the
	// later versions' (sdev_cmds_allocated_data).
	WalkV1, Walk Answer
	// WalkUnknown: there are the functions that a walk needs, with neither
	// structure, as a version that isn't known here may have them.
	WalkUnknown Answer
	// DepthNeedsMap: scsi_change_queue_depth can fail.
	DepthNeedsMap Answer
	// LibataRequestTag: libata takes the request tag on a SAS host too.
	LibataRequestTag Answer
}

// Identify returns the rules that a kernel with these facts can have, oldest
// first, and what spoke for them, in words. Several are returned where the
// facts don't tell them apart.
func Identify(f Facts) ([]Rules, []string) {
	var (
		rules []Rules
		why   []string
	)
	say := func(a Answer, yes, no string) {
		switch {
		case a == Yes && yes != "":
			why = append(why, yes)
		case a == No && no != "":
			why = append(why, no)
		}
	}
	say(f.WalkV1, "device_busy has v1's walk over the tags", "")
	say(f.Walk, "device_busy can walk the tags", "")
	say(f.WalkUnknown, "device_busy walks the tags as in no version that is known", "")
	if f.WalkV1 == No && f.Walk == No && f.WalkUnknown != Yes {
		why = append(why, "device_busy is the map's weight")
	}
	say(f.NeedsBudgetToken, "Scsi_Host has needs_budget_token", "")
	if f.Walk == Yes {
		say(f.NeedsBudgetToken, "", "Scsi_Host has no needs_budget_token")
		say(f.DepthNeedsMap, "scsi_change_queue_depth refuses without a map", "scsi_change_queue_depth never refuses")
		say(f.LibataRequestTag, "libata takes the request tag", "libata takes the budget token on SAS hosts")
	} else {
		say(f.PseudoDevice, "a host has a pseudo device", "")
	}
	for _, r := range all {
		if r.fits(f) {
			rules = append(rules, r)
		}
	}
	if len(rules) > 1 {
		why = append(why, fmt.Sprintf("%d sets of rules look the same by this", len(rules)))
	}
	return rules, why
}

// fits says whether a kernel with the facts can have the rules.
func (r Rules) fits(f Facts) bool {
	can := func(a Answer, has bool) bool { return a == Unknown || (a == Yes) == has }
	elides := r.Elides != ElideNever
	later := r.Elides == ElideHostTagsetOrOneQueue
	if f.WalkUnknown == Yes || !can(f.WalkV1, elides && !later) || !can(f.Walk, later) || !can(f.NeedsBudgetToken, r.KnowsNeedsBudgetToken) {
		return false
	}
	switch {
	case later:
		// Every version of the series can be applied to a kernel with or
		// without pseudo devices.
		return can(f.DepthNeedsMap, r.DepthNeedsMap) && can(f.LibataRequestTag, r.LibataTag == LibataRequestTag)
	case !elides:
		return can(f.PseudoDevice, r.DepthNeedsMap)
	}
	return true
}
