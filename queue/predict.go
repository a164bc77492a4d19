package queue

// How a kernel counts the commands allocated for a device.
const (
	BusyMapWeight = "map weight"
	BusyTagWalk   = "tag walk"
)

// Prediction is what a kernel with given rules will do with a device of a
// host with given limits.
type Prediction struct {
	Rules  string `json:"rules"`
	Limits Limits `json:"limits"`

	// Allocated says whether the device has a budget map after the scan.
	Allocated bool   `json:"allocated"`
	Reason    string `json:"reason"`
	MapDepth  int    `json:"map_depth"`
	MapShift  int    `json:"map_shift"`

	// HWQueues, CmdPerLUN and QueueDepth are what sysfs shows after the scan.
	HWQueues   int `json:"nr_hw_queues"`
	CmdPerLUN  int `json:"cmd_per_lun"`
	QueueDepth int `json:"queue_depth"`

	// MaxInFlight is the most commands of the device at once: see
	// [Device.MaxInFlight].
	MaxInFlight int `json:"max_in_flight"`
	// MinToken and MaxToken bound the budget tokens of its commands.
	MinToken int `json:"min_token"`
	MaxToken int `json:"max_token"`
	// DeviceBusy says how device_busy is counted: BusyMapWeight, or
	// BusyTagWalk, a walk over all requests of the host.
	DeviceBusy string `json:"device_busy"`
	// Stuck: no command can start after the scan; the scan hangs.
	Stuck bool `json:"stuck,omitempty"`
	// HintFreedTwice: see [Device.HintFreedTwice].
	HintFreedTwice bool `json:"hint_freed_twice,omitempty"`

	// Lowered is what then happens when queue_depth is written, and Raised when
	// QueueDepth is written again; nil if the device is stuck.
	Lowered *DepthWrite `json:"lowered,omitempty"`
	Raised  *DepthWrite `json:"raised,omitempty"`
}

// Predict says what a kernel with these rules does with a device of a host
// with these limits, and when lowerTo and the depth that it had are then written
// to its queue_depth. lowerTo 0 writes nothing. Its error is [Limits.Validate]'s.
func (r Rules) Predict(l Limits, lowerTo int) (Prediction, error) {
	d, err := r.Attach(l)
	if err != nil {
		return Prediction{}, err
	}
	p := Prediction{
		Rules:          r.Name,
		Limits:         l,
		Allocated:      d.Mapped(),
		Reason:         d.Reason(),
		MapDepth:       d.MapDepth(),
		MapShift:       d.MapShift(),
		HWQueues:       l.Queues(),
		CmdPerLUN:      l.HostCmdPerLUN(),
		QueueDepth:     d.QueueDepth(),
		MaxInFlight:    d.MaxInFlight(),
		MinToken:       NoToken,
		MaxToken:       NoToken,
		DeviceBusy:     BusyTagWalk,
		Stuck:          d.Stuck(),
		HintFreedTwice: d.HintFreedTwice(),
	}
	if p.Allocated {
		p.MinToken, p.MaxToken, p.DeviceBusy = 0, max(p.MapDepth-1, 0), BusyMapWeight
	}
	if lowerTo != 0 && !p.Stuck {
		lowered, raised := d.WriteDepth(lowerTo), d.WriteDepth(p.QueueDepth)
		p.Lowered, p.Raised = &lowered, &raised
	}
	return p, nil
}

// Agree says whether all of the rule sets predict the same, but for their
// names and reasons. It is for a kernel whose rules could be any of several:
// where they agree, it doesn't matter which.
func Agree(rules []Rules, l Limits, lowerTo int) (bool, error) {
	type facts struct {
		Prediction
		lowered, raised DepthWrite
	}
	var first facts
	for i, r := range rules {
		p, err := r.Predict(l, lowerTo)
		if err != nil {
			return false, err
		}
		f := facts{Prediction: p}
		if p.Lowered != nil {
			f.lowered, f.raised = *p.Lowered, *p.Raised
		}
		f.Rules, f.Reason, f.lowered.Reason, f.raised.Reason = "", "", "", ""
		f.Lowered, f.Raised = nil, nil
		if i == 0 {
			first = f
		}
		if f != first {
			return false, nil
		}
	}
	return true, nil
}
