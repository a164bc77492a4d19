package probe

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Held is a command that is in flight, and what it holds. A number that the
// kernel has no field for is -1.
type Held struct {
	Address  string        `json:"address"` // the device's, "6:0:1:0"
	Queue    int           `json:"hw_queue"`
	Tag      int           `json:"tag"`
	Token    int           `json:"budget_token"` // queue.NoToken where there is no map
	Age      time.Duration `json:"age_ns"`       // since it was given to the driver
	TimedOut bool          `json:"timed_out,omitempty"`
}

// Held returns the commands in flight, the oldest first. While commands run it is
// not of one instant.
func (p *Probe) Held() ([]Held, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return nil, fmt.Errorf("probe: clock: %w", err)
	}
	var (
		out    []Held
		cmd    uint64
		raw    [cmdSize]byte
		rawDev [devSize]byte
	)
	it := p.commands.Iterate()
	for it.Next(&cmd, &raw) {
		c, err := decode[commandRecord](raw[:])
		if err != nil {
			return nil, err
		}
		if p.devices.Lookup(&c.Device, &rawDev) != nil {
			continue // it was never counted for the device
		}
		d, err := decode[deviceRecord](rawDev[:])
		if err != nil {
			return nil, err
		}
		out = append(out, p.held(c, d.HostNo, now.Nano()))
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("probe: commands: %w", err)
	}
	slices.SortFunc(out, func(a, b Held) int { return cmp.Compare(b.Age, a.Age) })
	return out, nil
}

func (p *Probe) held(c commandRecord, host uint32, now int64) Held {
	number := func(field string, v int) int {
		if !p.layout.has(field) {
			return -1
		}
		return v
	}
	return Held{
		Address:  fmt.Sprintf("%d:%d:%d:%d", host, c.Device.Channel, c.Device.ID, c.Device.LUN),
		Queue:    number("request.mq_hctx", int(c.Queue)),
		Tag:      number("request.tag", int(c.Tag)),
		Token:    number("scsi_cmnd.budget_token", int(c.Token)),
		Age:      time.Duration(now - int64(c.Started)),
		TimedOut: c.State != 0,
	}
}
