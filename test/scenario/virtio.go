package scenario

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"lunlab/lun"
	"lunlab/lun/fault"
	"lunlab/lun/store/mem"
	"lunlab/target"
	"lunlab/target/vhostuser"
	"lunlab/test/kernel"
)

// umlQueueSize is the size of all virtqueues that User-Mode Linux makes.
const umlQueueSize = 256

// validVirtIO tells whether a virtio_scsi host can have the case's limits.
func (c Case) validVirtIO() error {
	if n := c.CanQueue; n < 4 || n > vhostuser.MaxQueueSize || n&(n-1) != 0 {
		return fmt.Errorf("virtio_scsi has for can_queue a virtqueue's size, a power of two from 4 to %d", vhostuser.MaxQueueSize)
	}
	if c.HWQueues > vhostuser.MaxQueues || c.HostTagset {
		return fmt.Errorf("virtio_scsi has 1 to %d hardware queues, each with tags of its own", vhostuser.MaxQueues)
	}
	return nil
}

// errNoHost says that nobody serves virtio_scsi hosts.
var errNoHost = errors.New("a virtio_scsi host is a guest's, and this kernel is none that lunlab has booted")

// virtIO is the virtio_scsi host that the scenario has; its Host is empty if it has
// none.
func (s Scenario) virtIO() Case {
	for _, c := range []Case{s.limits, s.served} {
		if c.Host == VirtIOSCSI {
			return c
		}
	}
	return Case{}
}

// virtioSerial is the serial number of the disk of a scenario, which it is known by
// in the guest.
func virtioSerial(scenario string) string {
	return fmt.Sprintf("ktest-%08x", crc32.ChecksumIEEE([]byte(scenario)))
}

// virtioHosts are the virtio_scsi hosts of a guest, by scenario: each a target of
// ours in this process, with a memory LUN.
type virtioHosts struct {
	clock   *kernel.Clock // nil in real time
	dir     string        // of the sockets
	luns    map[string]*virtioLUN
	devices []kernel.SCSIDevice
	undo    []func()
}

// virtioLUN is the LUN of one.
type virtioLUN struct {
	meter   *target.Meter
	witness *witness
}

// answer does what a guest asks.
func (l *virtioLUN) answer(do string) Answer {
	m := l.meter
	switch do {
	case "":
	case askHold:
		m.Hold()
	case askRelease:
		m.Release()
	case askMark:
		m.Mark()
	default:
		return Answer{Error: fmt.Sprintf("%q can't be asked for", do)}
	}
	return Answer{InFlight: m.InFlight(), Holds: m.Holds(), Most: m.Most(), Done: m.Done(), Aborted: l.witness.abortions()}
}

// serveVirtIO makes the hosts that the scenarios need.
func serveVirtIO(ss []Scenario, clock *kernel.Clock) (_ *virtioHosts, err error) {
	v := &virtioHosts{clock: clock, luns: map[string]*virtioLUN{}}
	defer func() {
		if err != nil {
			v.close()
		}
	}()
	if v.dir, err = os.MkdirTemp("", "lunlab-scsi-"); err != nil {
		return nil, err
	}
	for _, s := range ss {
		if s.virtIO().Host == "" || v.luns[s.Name] != nil { // repeated
			continue
		}
		if err := v.serve(s); err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	return v, nil
}

func (v *virtioHosts) serve(s Scenario) error {
	store, err := mem.New(diskSize)
	if err != nil {
		return err
	}
	unit, err := lun.NewDisk(store, lun.DiskOptions{Serial: virtioSerial(s.Name)})
	if err != nil {
		return err
	}
	v.undo = append(v.undo, func() { unit.Close() })
	o := vhostuser.Options{Name: s.Name}
	clock := lun.RealTime
	if v.clock != nil {
		clock, o.Clock = v.clock, v.clock
	}
	faulty := fault.NewAt(unit, clock)
	for _, text := range s.faults {
		rule, err := fault.Parse(text)
		if err != nil {
			return err
		}
		if _, err := faulty.Add(rule); err != nil {
			return err
		}
	}
	w := &witness{Unit: faulty}
	m := target.NewMeterAt(w, clock)
	tg := target.New()
	if _, err := tg.Add(0, m, target.Limits{}); err != nil {
		return err
	}
	l := s.virtIO().Limits
	o.Target, o.Queues, o.QueueSize, o.CmdPerLUN = tg, l.HWQueues, l.CanQueue, l.CmdPerLUN
	dev, err := vhostuser.New(o)
	if err != nil {
		return err
	}
	socket := filepath.Join(v.dir, strconv.Itoa(len(v.devices)))
	ln, err := vhostuser.Listen(socket)
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		dev.Serve(ln)
		close(ended)
	}()
	v.undo = append(v.undo, func() {
		m.Release()
		dev.Close()
		<-ended
	})
	v.luns[s.Name] = &virtioLUN{m, w}
	v.devices = append(v.devices, kernel.SCSIDevice{Socket: socket, Queues: l.HWQueues, QueueSize: l.CanQueue, CmdPerLUN: l.CmdPerLUN})
	return nil
}

// answer does what the guest asks.
func (v *virtioHosts) answer(a Ask) Answer {
	l := v.luns[a.Scenario]
	if l == nil {
		return Answer{Error: fmt.Sprintf("no LUN is served for %q", a.Scenario)}
	}
	return l.answer(a.Do)
}

func (v *virtioHosts) close() {
	for i := len(v.undo) - 1; i >= 0; i-- {
		v.undo[i]()
	}
	os.RemoveAll(v.dir)
}

// attachVirtIO finds the disk that the host serves for the scenario.
func (r *run) attachVirtIO(ctx context.Context) (*disk, error) {
	want := virtioSerial(r.Name)
	// An earlier run may have taken the disk away.
	for _, h := range entries("/sys/class/scsi_host") {
		if name, err := hostDriver(h); err == nil && name == VirtIOSCSI {
			if err := writeFile("/sys/class/scsi_host/"+h+"/scan", "0 0 0"); err != nil {
				return nil, err
			}
		}
	}
	wait, cancel := context.WithTimeoutCause(ctx, 20*time.Second, errors.New("no disk of virtio_scsi came that has the serial number "+want))
	defer cancel()
	for {
		pages, _ := filepath.Glob("/sys/bus/scsi/devices/*:*:*:*/vpd_pg80")
		for _, p := range pages {
			// The page has its own header of 4 bytes.
			if b, err := os.ReadFile(p); err != nil || len(b) < 4 || string(b[4:]) != want {
				continue
			}
			d := &disk{device: filepath.Base(filepath.Dir(p)), meter: &hostMeter{hostLink: r.host, scenario: r.Name}}
			var err error
			if d.name, err = r.appear(ctx, d.device); err != nil {
				return nil, err
			}
			if name, err := hostDriver(d.host()); err != nil || name != VirtIOSCSI {
				return nil, fmt.Errorf("%s is a disk of %s, not of virtio_scsi (%w)", d.device, name, err)
			}
			d.remove = func() error { return writeFile("/sys/bus/scsi/devices/"+d.device+"/delete", "1") }
			return d, nil
		}
		if err := sleep(wait, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// onVirtIO is the run of a scenario on the disk that the host serves for it.
func onVirtIO(steps func(*run, context.Context, *disk, *hostMeter) error) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		if r.host == nil {
			r.Verdict = Skipped
			return errNoHost
		}
		r.step("attach")
		d, err := r.attachVirtIO(ctx)
		if err != nil {
			return err
		}
		return errors.Join(steps(r, ctx, d, d.meter.(*hostMeter)), d.remove())
	}
}

func hostDriver(host string) (string, error) {
	b, err := os.ReadFile("/sys/class/scsi_host/" + host + "/proc_name")
	return strings.TrimSpace(string(b)), err
}
