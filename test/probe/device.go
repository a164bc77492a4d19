package probe

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"lunlab/queue"
)

// MapState says whether a device has a budget map.
type MapState string

const (
	MapUnknown   MapState = "unknown" // no command of the device was seen yet
	MapAllocated MapState = "allocated"
	MapElided    MapState = "elided"
)

// Device is what was seen of a SCSI device whose commands were seen. A number
// that the kernel has no field for is -1, a truth nil: see [Probe.Missing]. So
// are all of a device of which only ends were seen.
type Device struct {
	Address string `json:"address"` // "6:0:1:0"
	Host    int    `json:"host"`
	Channel int    `json:"channel"`
	ID      int    `json:"id"`
	LUN     uint64 `json:"lun"`
	// Present says that sysfs still has the device. If so, Driver is its host's
	// proc_name, and Disks are its block devices.
	Present bool     `json:"present"`
	Driver  string   `json:"driver,omitempty"`
	Disks   []string `json:"disks,omitempty"`

	// The host's limits, as of the current phase's first commands.
	CanQueue  int `json:"can_queue"`
	CmdPerLUN int `json:"cmd_per_lun"`
	// HWQueues is the tag set's number of hardware queues, which the kernel's
	// rules look at; AskedQueues is what the driver asked for.
	HWQueues         int   `json:"nr_hw_queues"`
	AskedQueues      int   `json:"asked_hw_queues"`
	HostTagset       *bool `json:"host_tagset"`
	NeedsBudgetToken *bool `json:"needs_budget_token"`

	// The device's depth and map, as of its last command.
	QueueDepth int      `json:"queue_depth"`
	Map        MapState `json:"map"`
	MapDepth   int      `json:"map_depth"`
	MapShift   int      `json:"map_shift"`
	// MapChanges counts how often the map came or went between two commands.
	MapChanges uint64 `json:"map_changes"`

	// InFlight is what is in flight now.
	InFlight int    `json:"in_flight"`
	Dones    uint64 `json:"dones"`
	// Rejected commands were not taken by the driver and started again.
	Rejected uint64 `json:"rejected"`
	// TimedOut counts time-outs, Ended those commands that the error handler
	// then took back from the driver.
	TimedOut uint64 `json:"timed_out"`
	Ended    uint64 `json:"ended_by_error_handler"`
	// Unmatched commands ended without a start that was seen: they began
	// before the watch, or were never given to the driver.
	Unmatched uint64 `json:"unmatched"`
	// Stale commands were started anew without an end that was seen.
	Stale uint64 `json:"stale"`
	// Earlier is the most commands from before the watch that may still be in
	// flight and are not counted: while it is not 0, InFlight and MaxInFlight
	// may be that much too low.
	Earlier int `json:"earlier"`

	// Queues counts starts by hardware queue; OtherQueues those of queues
	// beyond the 64th.
	Queues      []uint64 `json:"queues"`
	OtherQueues uint64   `json:"other_queues,omitempty"`

	// Activity is of the whole watch, Phases between the marks.
	Activity
	Phases []Activity `json:"phases"`

	hostID uint64
}

// Activity is what a device did in a time. Without a start, the rest is 0.
type Activity struct {
	Starts uint64 `json:"starts"`
	// MaxInFlight is the most commands in flight right after any start, that
	// one included. A command is in flight until the driver has ended it, which
	// is before its tag and its token are free for another.
	MaxInFlight int `json:"max_in_flight"`
	// The request tags and budget tokens that were seen. The token is
	// queue.NoToken where there is no map. -1 where the kernel has no field.
	MinTag   int `json:"min_tag"`
	MaxTag   int `json:"max_tag"`
	MinToken int `json:"min_token"`
	MaxToken int `json:"max_token"`
	// WithMap and WithoutMap count starts by whether the device had a map.
	WithMap    uint64 `json:"with_map"`
	WithoutMap uint64 `json:"without_map"`
}

func (a Activity) plus(b Activity) Activity {
	switch {
	case a.Starts == 0:
		return b
	case b.Starts == 0:
		return a
	}
	return Activity{
		Starts:      a.Starts + b.Starts,
		MaxInFlight: max(a.MaxInFlight, b.MaxInFlight),
		MinTag:      min(a.MinTag, b.MinTag),
		MaxTag:      max(a.MaxTag, b.MaxTag),
		MinToken:    min(a.MinToken, b.MinToken),
		MaxToken:    max(a.MaxToken, b.MaxToken),
		WithMap:     a.WithMap + b.WithMap,
		WithoutMap:  a.WithoutMap + b.WithoutMap,
	}
}

// Allocated says whether the device had a map at its last command.
func (d *Device) Allocated() bool { return d.Map == MapAllocated }

// Limits are the host's, to predict from.
func (d *Device) Limits() queue.Limits {
	yes := func(b *bool) bool { return b != nil && *b }
	return queue.Limits{
		CanQueue:         d.CanQueue,
		CmdPerLUN:        d.CmdPerLUN,
		HWQueues:         d.HWQueues,
		HostTagset:       yes(d.HostTagset),
		NeedsBudgetToken: yes(d.NeedsBudgetToken),
	}
}

// Snapshot returns what has been seen so far, by address, and where host
// numbers were given again, by age: all but the last of one address are then
// not Present. While commands run it is not of one instant.
func (p *Probe) Snapshot() ([]Device, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed
	}
	byKey := map[deviceKey]*Device{}
	var (
		rawKey [keySize]byte
		raw    [devSize]byte
	)
	it := p.devices.Iterate()
	for it.Next(&rawKey, &raw) {
		k, err := decode[deviceKey](rawKey[:])
		if err != nil {
			return nil, err
		}
		r, err := decode[deviceRecord](raw[:])
		if err != nil {
			return nil, err
		}
		d := p.device(k, r)
		d.Phases = make([]Activity, p.phase+1)
		byKey[k] = &d
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("probe: devices: %w", err)
	}
	add := func(k phaseKey, a Activity) {
		d := byKey[k.Device]
		if d == nil || k.Phase > p.phase {
			return // it began after the devices were read
		}
		d.Phases[k.Phase] = d.Phases[k.Phase].plus(a)
		d.Activity = d.Activity.plus(a)
	}
	for k, a := range p.folded {
		add(k, a)
	}
	if err := p.eachPhase(add); err != nil {
		return nil, err
	}
	devices := make([]Device, 0, len(byKey))
	for k, d := range byKey {
		d.lookAround(k.HostID)
		p.settle(d)
		devices = append(devices, *d)
	}
	slices.SortFunc(devices, func(a, b Device) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Channel, b.Channel), cmp.Compare(a.ID, b.ID), cmp.Compare(a.LUN, b.LUN), cmp.Compare(a.hostID, b.hostID))
	})
	return devices, nil
}

// device makes a Device of a record, without its activity.
func (p *Probe) device(k deviceKey, r deviceRecord) Device {
	number := func(field string, v int) int {
		if !p.layout.has(field) || r.MapState == mapUnknown {
			return -1
		}
		return v
	}
	truth := func(field string, v uint8) *bool {
		if !p.layout.has(field) || r.MapState == mapUnknown {
			return nil
		}
		b := v&p.layout.bit(field) != 0
		return &b
	}
	d := Device{
		hostID:           k.HostID,
		Address:          fmt.Sprintf("%d:%d:%d:%d", r.HostNo, k.Channel, k.ID, k.LUN),
		Host:             int(r.HostNo),
		Channel:          int(k.Channel),
		ID:               int(k.ID),
		LUN:              k.LUN,
		CanQueue:         number("Scsi_Host.can_queue", int(int32(r.CanQueue))),
		CmdPerLUN:        number("Scsi_Host.cmd_per_lun", int(r.CmdPerLUN)),
		HWQueues:         number("Scsi_Host.tag_set.nr_hw_queues", int(r.TagQueues)),
		AskedQueues:      number("Scsi_Host.nr_hw_queues", int(r.HWQueues)),
		HostTagset:       truth("Scsi_Host.host_tagset", r.HostTagset),
		NeedsBudgetToken: truth("Scsi_Host.needs_budget_token", r.NeedsToken),
		QueueDepth:       number("scsi_device.queue_depth", int(r.QueueDepth)),
		Map:              MapUnknown,
		MapChanges:       r.MapChanges,
		InFlight:         int(r.InFlight),
		Dones:            r.Dones,
		Rejected:         r.Rejected,
		TimedOut:         r.TimedOut,
		Ended:            r.Ended,
		Unmatched:        r.Unmatched,
		Stale:            r.Stale,
		OtherQueues:      r.Queues[maxQueues],
	}
	switch r.MapState {
	case mapAllocated:
		d.Map, d.MapDepth, d.MapShift = MapAllocated, int(r.MapDepth), int(r.MapShift)
	case mapElided:
		d.Map = MapElided
	}
	for n, starts := range r.Queues[:maxQueues] {
		if starts > 0 || n < min(d.HWQueues, maxQueues) {
			d.Queues = append(d.Queues, make([]uint64, n+1-len(d.Queues))...)
			d.Queues[n] = starts
		}
	}
	return d
}

// activity makes an Activity of one CPU's record.
func (p *Probe) activity(r phaseRecord) Activity {
	a := Activity{
		Starts:      r.Starts,
		MaxInFlight: int(r.Peak),
		MinTag:      int(r.MinTag),
		MaxTag:      int(r.MaxTag),
		MinToken:    int(r.MinToken),
		MaxToken:    int(r.MaxToken),
		WithMap:     r.WithMap,
		WithoutMap:  r.WithoutMap,
	}
	if r.Starts > 0 && !p.layout.has("request.tag") {
		a.MinTag, a.MaxTag = -1, -1
	}
	if r.Starts > 0 && !p.layout.has("scsi_cmnd.budget_token") {
		a.MinToken, a.MaxToken = -1, -1
	}
	return a
}

const sysDevices = "/sys/class/scsi_device"

// lookAround adds what sysfs says of the device now.
func (d *Device) lookAround(hostID uint64) {
	// The inode number of a folder of sysfs is its kernfs_node's.
	host, err := os.Stat(fmt.Sprintf("/sys/bus/scsi/devices/host%d", d.Host))
	if err != nil {
		return
	}
	if st, ok := host.Sys().(*syscall.Stat_t); ok && hostID != 0 && st.Ino != hostID {
		return // another host has its number now
	}
	dir := filepath.Join(sysDevices, d.Address, "device")
	if _, err := os.Stat(dir); err != nil {
		return
	}
	d.Present = true
	disks, _ := filepath.Glob(filepath.Join(dir, "block", "*"))
	for _, disk := range disks {
		d.Disks = append(d.Disks, filepath.Base(disk))
	}
	d.Driver = readLine(fmt.Sprintf("/sys/class/scsi_host/host%d/proc_name", d.Host))
}

// noteEarlier remembers how many commands each device had when the programs
// were attached: some of them may have been started before.
func (p *Probe) noteEarlier() {
	devices, _ := filepath.Glob(filepath.Join(sysDevices, "*"))
	for _, dir := range devices {
		if n := deviceBusy(filepath.Base(dir)); n > 0 {
			p.earlier[filepath.Base(dir)] = n
		}
	}
}

// settle says how many commands from before the watch may be left. They are
// gone when as many unseen ones have ended, or when the device was idle once.
func (p *Probe) settle(d *Device) {
	n, ok := p.earlier[d.Address]
	if !ok {
		return
	}
	if d.Unmatched >= uint64(n) || deviceBusy(d.Address) <= 0 {
		delete(p.earlier, d.Address)
		return
	}
	d.Earlier = n - int(d.Unmatched)
}

// deviceBusy reads a device's device_busy; -1 if it can't be read.
func deviceBusy(address string) int {
	n, err := strconv.Atoi(readLine(filepath.Join(sysDevices, address, "device", "device_busy")))
	if err != nil {
		return -1
	}
	return n
}

func readLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
