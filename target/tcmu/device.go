package tcmu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"lunlab/lun"
)

var (
	// ErrExists says that configfs has an object of that name already: another
	// process's, or one that a killed process left, which [Engine.Cleanup]
	// removes and [Engine.Adopt] takes over.
	ErrExists = errors.New("exists already")

	// ErrInUse says that a living process serves the device.
	ErrInUse = errors.New("is served by another process")
)

// owner marks our devices, in dev_config: "lunlab/NAME".
const owner = "lunlab"

// Config describes a TCMU device.
type Config struct {
	HBA  int    // the device is core/user_HBA/NAME in configfs
	Name string // letters, digits, '.', '_' and '-', up to 64

	// Size in bytes and BlockSize are what the kernel's own accounts show. The
	// disk's capacity is what the unit says.
	Size      uint64
	BlockSize uint32 // 0: 512

	MaxSectors    uint32 // hw_max_sectors; 0: the kernel's default, 128
	MaxDataAreaMB uint32 // room for the data of commands in flight; 0: the kernel's default, 1024

	// RingMB is the size of the ring, 1 to 8; the kernel holds it in memory for
	// each device. 1 has room for 8,000 commands of a few buffers each; more
	// commands wait in the kernel. 0: the kernel's default, 8. Kernels that
	// can't be told make it 8.
	RingMB uint32

	// CommandTimeout is how long the kernel waits for an answer before it fails
	// a command by itself. 0: the kernel's default, 30 s; negative: no limit.
	// Whole seconds.
	CommandTimeout time.Duration

	// Nexus is what the unit sees as the path its commands come by. If nil, one
	// with the SAS address of no known port is made up.
	Nexus *lun.Nexus

	// Reconfigure is asked when somebody writes to dev_size,
	// emulate_write_cache or dev_config of the device in configfs. An error
	// refuses it: a syscall.Errno is passed on. If nil, all is refused.
	Reconfigure func(Reconfig) error

	// OnTMR is called for each task management request, after the commands that
	// it names were aborted and the unit was notified.
	OnTMR func(TMRType)
}

var nameRE = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

func (c *Config) check() error {
	if c.BlockSize == 0 {
		c.BlockSize = 512
	}
	switch {
	case c.HBA < 0:
		return fmt.Errorf("tcmu: HBA %d is negative", c.HBA)
	case !nameRE.MatchString(c.Name):
		return fmt.Errorf("tcmu: device name %q: want 1 to 64 letters, digits, '.', '_' or '-'", c.Name)
	case c.BlockSize < 512 || c.BlockSize&(c.BlockSize-1) != 0 || c.BlockSize > 65536:
		return fmt.Errorf("tcmu: block size %d: want a power of two from 512 to 65536", c.BlockSize)
	case c.Size == 0 || c.Size%uint64(c.BlockSize) != 0:
		return fmt.Errorf("tcmu: size %d is not a number of %d-byte blocks", c.Size, c.BlockSize)
	case c.RingMB > 8:
		return fmt.Errorf("tcmu: ring of %d MiB: want 1 to 8", c.RingMB)
	case c.CommandTimeout > 0 && c.CommandTimeout < time.Second:
		return fmt.Errorf("tcmu: command timeout %v: want whole seconds", c.CommandTimeout)
	}
	return nil
}

func (c *Config) key() string { return fmt.Sprintf("%d/%s", c.HBA, c.Name) }

// Device is a TCMU device that this process serves. It is safe for concurrent
// use.
type Device struct {
	e    *Engine
	cfg  Config
	dir  string // in configfs
	uio  *uio
	gate *gate

	// removing has room for the one caller that removes the device. It owns uio,
	// when the ring isn't served any more, and removed.
	removing chan struct{}
	removed  bool

	closing atomic.Bool
	stopped chan struct{} // closed when nothing serves the ring any more
	done    chan struct{} // closed with err set

	mu     sync.Mutex
	ring   *ring
	ending bool // the ring was told to stop
	err    error
}

// Create makes a device in configfs, maps its ring, and serves it with unit
// until Close. On an error, nothing is left.
func (e *Engine) Create(ctx context.Context, cfg Config, unit lun.Unit) (_ *Device, err error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	d := e.device(cfg, unit)
	if err := e.claim(d); err != nil {
		return nil, err
	}
	if err := e.step(ctx, "make device "+cfg.Name, func() error { return e.mkdirIn(d.dir) }); err != nil {
		e.disclaim(d)
		if errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("tcmu: device %s %w", d.dir, ErrExists)
		}
		return nil, err
	}
	defer func() {
		if err != nil {
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			err = errors.Join(err, d.remove(undo))
		}
	}()
	if err := e.configure(ctx, d); err != nil {
		return nil, err
	}
	if err := d.open(ctx, 0); err != nil {
		return nil, err
	}
	return d, nil
}

// Adopt serves a device that exists and that no living process serves, such as
// that of a process which was killed. Commands that were in flight end with
// BUSY, so that the initiator sends them again. Of cfg, it uses HBA, Name,
// Nexus, Reconfigure and OnTMR.
func (e *Engine) Adopt(ctx context.Context, cfg Config, unit lun.Unit) (*Device, error) {
	cfg.Size, cfg.BlockSize = 512, 512
	if err := cfg.check(); err != nil {
		return nil, err
	}
	d := e.device(cfg, unit)
	if err := e.claim(d); err != nil {
		return nil, err
	}
	if err := d.open(ctx, resetBusy); err != nil {
		e.disclaim(d)
		return nil, err
	}
	return d, nil
}

func (e *Engine) device(cfg Config, unit lun.Unit) *Device {
	if c := lun.TaskControllerOf(unit); c != nil {
		// What tcm_loop and the kernel's target have between them.
		c.TaskControl().Offer(lun.AbortTaskFunction | lun.LogicalUnitResetFunction)
	}
	if cfg.Nexus == nil {
		cfg.Nexus = &lun.Nexus{Initiator: SASTransportID(0x6001405000000000), TargetPort: 1, Name: "tcmu," + cfg.Name}
	}
	return &Device{
		e: e, cfg: cfg, gate: &gate{Unit: unit},
		dir:      e.core(fmt.Sprintf("user_%d", cfg.HBA), cfg.Name),
		removing: make(chan struct{}, 1),
		stopped:  make(chan struct{}), done: make(chan struct{}),
	}
}

func (e *Engine) claim(d *Device) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.devices[d.cfg.key()] != nil {
		return fmt.Errorf("tcmu: device %s %w", d.dir, ErrExists)
	}
	if e.events != nil {
		// The kernel would wait for an answer in vain.
		if err := e.events.failed(); err != nil {
			return fmt.Errorf("tcmu: device %s: %w", d.dir, err)
		}
		e.events.add(d.cfg.key(), d.cfg.Reconfigure)
	}
	e.devices[d.cfg.key()] = d
	return nil
}

func (e *Engine) disclaim(d *Device) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.devices, d.cfg.key())
	if e.events != nil {
		e.events.remove(d.cfg.key())
	}
}

// configure sets the device's attributes and enables it.
func (e *Engine) configure(ctx context.Context, d *Device) error {
	c := &d.cfg
	control := []string{
		fmt.Sprintf("dev_config=%s/%s", owner, c.Name),
		fmt.Sprintf("dev_size=%d", c.Size),
		fmt.Sprintf("hw_block_size=%d", c.BlockSize),
	}
	if c.MaxSectors > 0 {
		control = append(control, fmt.Sprintf("hw_max_sectors=%d", c.MaxSectors))
	}
	if c.RingMB > 0 {
		control = append(control, fmt.Sprintf("cmd_ring_size_mb=%d", c.RingMB))
	}
	if c.MaxDataAreaMB > 0 {
		control = append(control, fmt.Sprintf("max_data_area_mb=%d", c.MaxDataAreaMB))
	}
	if e.events == nil {
		control = append(control, "nl_reply_supported=-1")
	}
	set := func(attr, value string, optional bool) error {
		return e.step(ctx, fmt.Sprintf("set %s of device %s", attr, c.Name), func() error {
			err := e.sys.write(filepath.Join(d.dir, attr), value)
			if optional && errors.Is(err, os.ErrNotExist) {
				return nil
			}
			return err
		})
	}
	if err := set("control", strings.Join(control, ","), false); err != nil {
		return err
	}
	if c.CommandTimeout != 0 {
		s := max(0, int64(c.CommandTimeout/time.Second))
		if err := set("attrib/cmd_time_out", strconv.FormatInt(s, 10), false); err != nil {
			return err
		}
	}
	// Kernels before 5.9 don't tell of task management.
	if err := set("attrib/tmr_notification", "1", true); err != nil {
		return err
	}
	if err := set("enable", "1", false); err != nil {
		return err
	}
	// Let reservations and target port groups reach the unit. Older kernels
	// can't be told to, and answer such commands themselves.
	for _, a := range []string{"attrib/pgr_support", "attrib/alua_support"} {
		if err := set(a, "0", true); err != nil && !isErrno(errors.Unwrap(err), syscall.EINVAL, syscall.ENOSYS, syscall.EACCES) {
			return err
		}
	}
	return nil
}

// open maps the device's ring and starts to serve it. What is in the ring is
// thrown out if reset isn't 0; it is the value for reset_ring.
func (d *Device) open(ctx context.Context, reset int) error {
	path, size, err := d.e.findUIO(d.cfg.key())
	if err != nil {
		return err
	}
	u, err := boundedValue(ctx, func() (*uio, error) { return d.e.sys.openUIO(path, size) }, func(u *uio) { u.close() })
	if isErrno(err, syscall.EBUSY) {
		err = fmt.Errorf("%s %w", d.dir, ErrInUse)
	}
	if err != nil {
		return fmt.Errorf("tcmu: open the ring of device %s: %w", d.cfg.Name, err)
	}
	fail := func(err error) error {
		return errors.Join(err, u.close())
	}
	if reset != 0 {
		if err := d.resetRing(ctx, reset); err != nil {
			return fail(err)
		}
	}
	d.uio = u
	r, err := d.newRing()
	if err != nil {
		d.uio = nil
		return fail(fmt.Errorf("tcmu: device %s: %w", d.cfg.Name, err))
	}
	d.ring = r
	go d.serve()
	return nil
}

func (d *Device) resetRing(ctx context.Context, how int) error {
	return d.e.step(ctx, "reset the ring of device "+d.cfg.Name, func() error {
		return d.e.sys.write(filepath.Join(d.dir, "action/reset_ring"), strconv.Itoa(how))
	})
}

func (d *Device) newRing() (*ring, error) {
	mb, err := openMailbox(d.uio.mem)
	if err != nil {
		return nil, err
	}
	r, err := newRing(mb, d.uio.bell, d.gate, d.cfg.Nexus)
	if err == nil {
		r.onTMR = d.cfg.OnTMR
	}
	return r, err
}

// serve runs the ring until the device is closed. A ring that was dropped is set up
// anew, and the kernel ends what was in it with BUSY, which the initiator sends
// again. One that is broken is too, once, but to refuse all commands at once, as they
// would have to time out one after the other else.
func (d *Device) serve() {
	defer close(d.stopped)
	r := d.ring
	for {
		err := r.serve()
		if err == errDropped {
			next, rerr := d.restart(r, resetBusy)
			if rerr == nil {
				r = next
				continue
			}
			err = errors.Join(err, rerr)
		}
		if errors.Is(err, errStopped) || d.closing.Load() || d.Err() != nil {
			return
		}
		d.mu.Lock()
		d.err = fmt.Errorf("tcmu: device %s: %w", d.cfg.Name, err)
		d.mu.Unlock()
		d.gate.shut.Store(true)
		close(d.done)
		if r, err = d.restart(r, resetFailed); err != nil {
			return
		}
	}
}

// What the kernel answers the commands with that are in a ring which it resets.
const (
	resetBusy   = 1 // BUSY
	resetFailed = 2 // CHECK CONDITION
)

// restart resets the ring in the kernel and sets it up anew, in the place of old.
func (d *Device) restart(old *ring, how int) (*ring, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := d.resetRing(ctx, how); err != nil {
		return nil, err
	}
	next, err := d.newRing()
	if err != nil {
		return nil, err
	}
	next.stats = old.snapshot()
	next.stats.InFlight = 0
	next.doorbells.Store(next.stats.Doorbells)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ending {
		return nil, errStopped // the old one was told, which had ended by itself
	}
	d.uio.SetReadDeadline(time.Time{})
	d.ring = next
	return next, nil
}

// findUIO returns the UIO device node of a TCMU device and the mapping's size.
func (e *Engine) findUIO(key string) (path string, size int, err error) {
	uios, err := e.sys.list(e.sysfs("class/uio"))
	if err != nil {
		return "", 0, fmt.Errorf("tcmu: look for UIO devices: %w", err)
	}
	err = os.ErrNotExist
	for _, u := range uios {
		name, rerr := e.sys.read(e.sysfs("class/uio", u, "name"))
		if rerr != nil {
			err = rerr // perhaps that one
			continue
		}
		if deviceKey(name) != key {
			continue
		}
		s, err := e.sys.read(e.sysfs("class/uio", u, "maps/map0/size"))
		if err != nil {
			return "", 0, fmt.Errorf("tcmu: size of the ring: %w", err)
		}
		n, err := strconv.ParseUint(s, 0, 47)
		if err != nil {
			return "", 0, fmt.Errorf("tcmu: size of the ring: %w", err)
		}
		return filepath.Join(e.opts.Dev, u), int(n), nil
	}
	return "", 0, fmt.Errorf("tcmu: no UIO device for tcm-user/%s: %w", key, err)
}

// Name is the device's name in configfs.
func (d *Device) Name() string { return d.cfg.Name }

// Path is the device's folder in configfs.
func (d *Device) Path() string { return d.dir }

// Stats returns the device's counts. All of them are exact when nothing is in
// flight.
func (d *Device) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ring.snapshot()
}

// Done is closed when the ring is broken or the kernel removed the device,
// never by Close. Err then says why. From then on the device answers every
// command with NOT READY, until Close.
func (d *Device) Done() <-chan struct{} { return d.done }

// Err returns nil until Done is closed.
func (d *Device) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// Offline aborts all commands and answers later ones with NOT READY, so that
// nothing keeps the device from being detached.
func (d *Device) Offline() {
	d.gate.shut.Store(true)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ring.abortAll()
}

// Close removes the device from the kernel. It fails, and the device goes on, if
// a LUN still refers to it. Once it has succeeded it does nothing.
func (d *Device) Close(ctx context.Context) error { return d.remove(ctx) }

func (d *Device) remove(ctx context.Context) error {
	select {
	case d.removing <- struct{}{}:
		defer func() { <-d.removing }()
	case <-ctx.Done():
		return fmt.Errorf("tcmu: remove device %s: %w", d.cfg.Name, context.Cause(ctx))
	}
	if d.removed {
		return nil // and the name may be another device's
	}
	d.closing.Store(true)
	err := d.e.step(ctx, "remove device "+d.cfg.Name, func() error { return d.e.sys.rmdir(d.dir) })
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		d.closing.Store(false)
		return err
	}
	d.e.sys.rmdir(filepath.Dir(d.dir)) // stays if other devices are in it
	return d.letGo(ctx)
}

// letGo ends to serve the device. The caller has removing, or d for itself.
func (d *Device) letGo(ctx context.Context) error {
	if d.uio != nil {
		d.mu.Lock()
		d.ending = true
		d.ring.stop()
		d.mu.Unlock()
		select {
		case <-d.stopped:
		case <-ctx.Done():
			return fmt.Errorf("tcmu: device %s: commands are still being carried out: %w", d.cfg.Name, context.Cause(ctx))
		}
		if err := d.uio.close(); err != nil {
			return fmt.Errorf("tcmu: unmap device %s: %w", d.cfg.Name, err)
		}
		d.uio = nil
	}
	d.removed = true
	d.e.disclaim(d)
	return nil
}

// gate is a unit that can be shut.
type gate struct {
	lun.Unit
	shut atomic.Bool
}

func (g *gate) Execute(c *lun.Command) {
	if g.shut.Load() {
		// LOGICAL UNIT NOT READY, MANUAL INTERVENTION REQUIRED: initiators
		// don't try again.
		c.Fail(lun.Sense{Key: lun.NotReady, Code: 0x0403})
		return
	}
	g.Unit.Execute(c)
}

func (g *gate) Waits(cdb []byte) bool                  { return !g.shut.Load() && lun.Waits(g.Unit, cdb) }
func (g *gate) DataLength(cdb []byte) (out, in uint64) { return g.Unit.DataLength(cdb) }

// Blocking is false when shut, so that nothing is started for a unit that may
// be gone.
func (g *gate) Blocking() bool { return !g.shut.Load() && g.Unit.Blocking() }

// SASTransportID is the TransportID of a SAS initiator port (SPC-5 7.6.4.6).
func SASTransportID(address uint64) []byte {
	b := make([]byte, 24)
	b[0] = 0x06
	for i := range 8 {
		b[4+i] = byte(address >> (56 - 8*i))
	}
	return b
}
