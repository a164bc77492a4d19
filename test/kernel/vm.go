// Package kernel boots a Linux kernel with the running program as its init, and
// runs commands in it: in QEMU, with KVM where a guest really starts under it and
// TCG elsewhere, or as a program if it is User-Mode Linux.
package kernel

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Config says what to boot and with what.
type Config struct {
	// Kernel is a bzImage or any file that QEMU's -kernel takes, or a kernel of
	// User-Mode Linux; see [IsUML].
	Kernel string

	// Modules is a folder with the kernel's modules, "" if it has none.
	Modules string

	// Load names the modules that init loads; Carry those that are only
	// brought along, for modprobe in the guest. Dependencies come by
	// themselves. What QEMU's devices need is always there.
	Load, Carry []string
	// Optional names modules to carry if the folder has them.
	Optional []string

	// Files go into the guest, guest path -> host path. See [Program].
	Files map[string]string

	// Init is the program that runs as init and calls [Main]; by default the
	// running one.
	Init string

	Accel  string // "auto" (the default), "kvm" or "tcg"; UML has none
	SMP    int    // CPUs, by default 2; UML has one
	Memory int    // MiB, by default 1,024

	// SCSI are virtio-scsi devices that somebody else serves.
	SCSI []SCSIDevice

	// Clock, if it isn't nil, is the time of the guest, which has to be User-Mode
	// Linux. It ends with the guest.
	Clock *Clock

	// Append is added to the kernel's command line, QEMUArgs to QEMU's.
	Append   string
	QEMUArgs []string

	// QEMU is the program, by default qemu-system-x86_64 from the PATH.
	QEMU string

	// BootTimeout bounds the time to userspace, by default 90 s (a kernel
	// with many drivers takes 4 s under TCG on an idle machine).
	BootTimeout time.Duration

	// Silence is the longest that a guest may say nothing while a command runs
	// in it; 0 is no limit.
	Silence time.Duration

	// Console gets all that the guest prints on its serial console; may be nil.
	Console io.Writer

	// Logf tells of choices that were made ("using TCG: ..."); may be nil.
	Logf func(format string, args ...any)
}

// SCSIDevice is a virtio-scsi device whose back end, as vhost-user has it, listens
// on a unix socket. QEMU gives the driver these limits; UML's driver has the back
// end's, and a QueueSize of 256.
type SCSIDevice struct {
	Socket    string
	Queues    int // for requests
	QueueSize int // can_queue to the driver
	CmdPerLUN int
}

const virtioSCSI = 8 // the device's number in virtio

var kvmDevice = "/dev/kvm" // tests have another

// guestDrivers is what the guest's side of our QEMU devices needs.
var guestDrivers = []string{"virtio_pci", "virtio_console"}

// GuestError says that a guest failed, with what its console said last.
type GuestError struct {
	What       string
	Late       bool // its time to boot was over
	Complaints []Complaint
	Console    []string // the last lines
	QEMU       string   // what QEMU itself printed, apart from the guest
}

func (e *GuestError) Error() string {
	var b strings.Builder
	b.WriteString(e.What)
	for _, c := range e.Complaints {
		fmt.Fprintf(&b, "\n  kernel %s: %s", c.Kind, c.Line)
	}
	if e.QEMU != "" {
		fmt.Fprintf(&b, "\n  qemu: %s", e.QEMU)
	}
	if len(e.Console) > 0 {
		b.WriteString("\n  the console's last lines:")
		for _, l := range e.Console {
			b.WriteString("\n  | " + l)
		}
	}
	return b.String()
}

// VM is a running guest. One command runs in it at a time; its methods are not
// for concurrent use, but for [VM.Complaints].
type VM struct {
	// Guest is what the guest said when it was up; Accel is "kvm", "tcg" or [UML].
	Guest Guest
	Accel string

	cmd     *exec.Cmd
	silence time.Duration
	dir     string // of the initramfs and the socket
	clock   *Clock // nil in real time
	conn    net.Conn
	port    *clockedPort // conn, nil in real time
	out     messageWriter
	in      chan guestMessage
	console console
	stderr  tailBuffer
	exited  chan struct{} // closed when it has been waited for
	readers sync.WaitGroup
}

// Boot starts a guest and returns when its init is ready. The guest ends with
// ctx, or by [VM.Close].
//
// A guest that does not come up is a *[GuestError].
func Boot(ctx context.Context, cfg Config) (*VM, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "lunlab-vm-")
	if err != nil {
		return nil, fmt.Errorf("kernel: %w", err)
	}
	vm, err := boot(ctx, cfg, dir)
	if err != nil {
		if cfg.Clock != nil {
			cfg.Clock.close()
		}
		os.RemoveAll(dir)
		return nil, err
	}
	return vm, nil
}

func boot(ctx context.Context, cfg Config, dir string) (*VM, error) {
	initrd := filepath.Join(dir, "initramfs.cpio")
	if err := cfg.writeInitramfs(initrd); err != nil {
		return nil, err
	}
	try := func(accel string, timeout time.Duration) (*VM, error) {
		return start(ctx, cfg, dir, initrd, accel, timeout)
	}
	emulated := func() (vm *VM, err error) {
		for range 3 {
			if vm, err = try("tcg", cfg.BootTimeout); !EmulatorFault(err) {
				break
			}
			cfg.Logf("booting again: QEMU's emulation ran code that another CPU was patching (mended in QEMU 8.1)")
		}
		return vm, err
	}
	switch cfg.Accel {
	case "kvm", UML:
		return try(cfg.Accel, cfg.BootTimeout)
	case "tcg":
		return emulated()
	}
	if f, err := os.OpenFile(kvmDevice, os.O_RDWR, 0); err != nil {
		cfg.Logf("using TCG, QEMU's emulation, which is about ten times slower than KVM: %v", err)
	} else {
		f.Close()
		vm, err := try("kvm", min(cfg.BootTimeout, 20*time.Second))
		var lost *GuestError
		if err == nil || ctx.Err() != nil || errors.As(err, &lost) && len(lost.Complaints) > 0 {
			return vm, err // a kernel that panics is not KVM's fault
		}
		what, _, _ := strings.Cut(err.Error(), "\n")
		cfg.Logf("using TCG: %s is there, but no guest starts under it: %s", kvmDevice, what)
	}
	return emulated()
}

func (cfg *Config) defaults() error {
	if cfg.Kernel == "" {
		return errors.New("kernel: no kernel image named")
	}
	uml, err := IsUML(cfg.Kernel)
	if err != nil {
		return err
	}
	switch cfg.Accel {
	case "":
		cfg.Accel = "auto"
	case "auto", "kvm", "tcg", UML:
	default:
		return fmt.Errorf("kernel: accelerator %q: must be auto, kvm or tcg", cfg.Accel)
	}
	if uml {
		err = cfg.umlDefaults()
	} else {
		err = cfg.qemuDefaults()
	}
	if err != nil {
		return err
	}
	if cfg.SMP == 0 {
		cfg.SMP = 2
	}
	if cfg.Memory == 0 {
		cfg.Memory = 1024
	}
	if cfg.SMP < 1 || cfg.SMP > 255 || cfg.Memory < 128 {
		return fmt.Errorf("kernel: %d CPUs and %d MiB: need 1 to 255 CPUs and at least 128 MiB", cfg.SMP, cfg.Memory)
	}
	if cfg.Init == "" {
		if cfg.Init, err = os.Executable(); err != nil {
			return fmt.Errorf("kernel: %w", err)
		}
	}
	if cfg.BootTimeout == 0 {
		cfg.BootTimeout = 90 * time.Second
	}
	if cfg.Logf == nil {
		cfg.Logf = func(string, ...any) {}
	}
	return nil
}

func (cfg *Config) qemuDefaults() error {
	if cfg.Accel == UML {
		return fmt.Errorf("kernel: %s is no kernel of User-Mode Linux (ARCH=um)", cfg.Kernel)
	}
	if cfg.Clock != nil {
		return fmt.Errorf("kernel: virtual time is User-Mode Linux's alone, and %s is none", cfg.Kernel)
	}
	if cfg.QEMU == "" {
		cfg.QEMU = "qemu-system-x86_64"
	}
	path, err := exec.LookPath(cfg.QEMU)
	if err != nil {
		return fmt.Errorf("kernel: no QEMU: %w; on Debian and Ubuntu: apt-get install qemu-system-x86", err)
	}
	cfg.QEMU = path
	return nil
}

func (cfg *Config) writeInitramfs(file string) error {
	set, err := OpenModules(cfg.Modules)
	if err != nil {
		return err
	}
	load := append(guestDrivers[:len(guestDrivers):len(guestDrivers)], cfg.Load...)
	mods, err := set.Resolve(slices.Concat(load, cfg.Carry, set.those(cfg.Optional))...)
	if err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("kernel: %w", err)
	}
	err = writeInitramfs(f, cfg.Init, mods, load, cfg.Files)
	return errors.Join(err, f.Close())
}

// allCPUs on the kernel's command line has init take all CPUs in. An emulated
// guest boots with one: QEMU before 8.1 may translate code that another CPU is
// just patching, which a kernel does most of while it boots, and then the guest
// dies of an int3 that nobody knows of, or hangs.
const allCPUs = "lunlab.cpus=all"

// EmulatorFault says that a guest was lost to QEMU's emulation, as with allCPUs,
// and not to its kernel.
func EmulatorFault(err error) bool {
	var lost *GuestError
	return errors.As(err, &lost) && slices.ContainsFunc(lost.Complaints, func(c Complaint) bool { return strings.Contains(c.Line, "Oops: int3") })
}

// qemuArgs is the machine: no firmware devices but what we talk through.
func (cfg *Config) qemuArgs(initrd, socket, accel string) []string {
	cpu, acc := "max", "tcg,thread=multi"
	if accel == "kvm" {
		cpu, acc = "host", "kvm"
	}
	// The time-outs of the kernel's own watchdogs assume a CPU of one's own, and so
	// does its check of the timer, which panics where no tick came in time.
	line := "console=ttyS0 loglevel=5 panic=-1 rcupdate.rcu_cpu_stall_timeout=120 workqueue.watchdog_thresh=120 no_timer_check "
	if accel == "tcg" && !strings.Contains(cfg.Append, "maxcpus=") {
		line += "maxcpus=1 " + allCPUs + " "
	}
	line += cfg.Append
	args := []string{
		"-accel", acc, "-cpu", cpu, "-machine", "q35", "-smp", fmt.Sprint(cfg.SMP), "-m", fmt.Sprint(cfg.Memory),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", cfg.Kernel, "-initrd", initrd, "-append", line,
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-device", "virtio-serial-pci", "-chardev", "socket,id=port,path=" + socket,
		"-device", "virtserialport,chardev=port,name=" + portName,
	}
	if len(cfg.SCSI) > 0 { // whose back ends share the guest's memory
		args = append(args, "-object", fmt.Sprintf("memory-backend-memfd,id=mem,size=%dM,share=on", cfg.Memory), "-numa", "node,memdev=mem")
	}
	for i, d := range cfg.SCSI {
		args = append(args, "-chardev", fmt.Sprintf("socket,id=scsi%d,path=%s", i, d.Socket), "-device",
			fmt.Sprintf("vhost-user-scsi-pci,chardev=scsi%d,num_queues=%d,virtqueue_size=%d,cmd_per_lun=%d,t10_pi=on", i, d.Queues, d.QueueSize, d.CmdPerLUN))
	}
	return slices.Concat(args, cfg.QEMUArgs)
}

// machine is what a guest runs in, to be started.
type machine struct {
	cmd    *exec.Cmd
	start  func() error
	accept func() (net.Conn, error) // the host's end of the port, when the guest begins
	close  func()                   // what is of no use once it has begun, or ended
	apart  bool                     // the program's stderr isn't the guest's
}

func (cfg *Config) qemuMachine(ctx context.Context, dir, initrd, accel string, deadline time.Time) (*machine, error) {
	socket := filepath.Join(dir, accel+".sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err == nil {
		err = l.SetDeadline(deadline)
	}
	if err != nil {
		return nil, fmt.Errorf("kernel: %w", err)
	}
	cmd := exec.CommandContext(ctx, cfg.QEMU, cfg.qemuArgs(initrd, socket, accel)...)
	return &machine{cmd: cmd, start: cmd.Start, accept: l.Accept, close: func() { l.Close() }, apart: true}, nil
}

func (cfg *Config) machine(ctx context.Context, dir, initrd, accel string, deadline time.Time) (*machine, error) {
	if accel == UML {
		return cfg.umlMachine(ctx, dir, initrd)
	}
	return cfg.qemuMachine(ctx, dir, initrd, accel, deadline)
}

func start(ctx context.Context, cfg Config, dir, initrd, accel string, timeout time.Duration) (*VM, error) {
	deadline := time.Now().Add(timeout)
	m, err := cfg.machine(ctx, dir, initrd, accel, deadline)
	if err != nil {
		return nil, err
	}
	defer m.close()

	vm := &VM{Accel: accel, cmd: m.cmd, clock: cfg.Clock, silence: cfg.Silence, dir: dir, in: make(chan guestMessage, 64), exited: make(chan struct{})}
	vm.console.log = cfg.Console
	vm.cmd.Stdout, vm.cmd.Stderr = &vm.console, &vm.console
	if m.apart {
		vm.cmd.Stderr = &vm.stderr
	}
	// A guest does not outlive the program that booted it, however that ends.
	vm.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	vm.cmd.Cancel = vm.signal
	vm.cmd.WaitDelay = 2 * time.Second
	started := make(chan error)
	go func() {
		// Pdeathsig is for the thread that forks, so this one has to stay.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := m.start()
		started <- err
		if err == nil {
			vm.cmd.Wait()
			vm.signal() // what it left of its group
			m.close()   // ends an accept that nobody will answer
		}
		close(vm.exited)
	}()
	if err := <-started; err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("kernel: %s: %w", vm.cmd.Path, err)
	}
	if vm.conn, err = m.accept(); err != nil {
		vm.kill()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, vm.failed(fmt.Sprintf("QEMU has not begun with the guest after %v", timeout))
		}
		return nil, vm.failed("QEMU ended before the guest began")
	}
	m.close()
	if vm.clock != nil {
		if vm.port, err = newClockedPort(vm.conn.(*net.UnixConn), vm.clock); err != nil {
			vm.kill()
			return nil, fmt.Errorf("kernel: %w", err)
		}
		vm.conn = vm.port
	}
	vm.out.w = vm.conn
	vm.readers.Go(vm.read)

	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case m, ok := <-vm.in:
		if ok && m.Ready != nil {
			vm.port.setTurn(false)
			vm.port.seen()
			vm.Guest = *m.Ready
			for name, why := range vm.Guest.Modules {
				cfg.Logf("module %s did not load in the guest: %s", name, why)
			}
			return vm, nil
		}
		vm.kill()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, vm.failed("the guest ended before its init was ready")
	case <-timer.C:
		vm.kill()
		late := vm.failed(fmt.Sprintf("the guest's init was not ready after %v", timeout))
		late.Late = true
		return nil, late
	}
}

// read takes the guest's messages until the guest is gone.
func (vm *VM) read() {
	defer close(vm.in)
	lines := bufio.NewScanner(vm.conn)
	lines.Buffer(nil, maxMessage) // a broken guest may send anything
	for lines.Scan() {
		var m guestMessage
		if json.Unmarshal(lines.Bytes(), &m) != nil {
			return
		}
		vm.port.came()
		vm.in <- m
	}
}

// Run runs a command in the guest and returns its exit status. Its output goes
// to stdout and stderr, either of which may be nil.
//
// A guest that ends, panics or is silent for too long is a *[GuestError]. When ctx ends
// first, the guest is ended too.
func (vm *VM) Run(ctx context.Context, argv, env []string, stdout, stderr io.Writer) (int, error) {
	return vm.run(ctx, runRequest{Argv: argv, Env: env}, stdout, stderr)
}

// Talk is [VM.Run] for a command that reads what [VM.Input] is given.
func (vm *VM) Talk(ctx context.Context, argv, env []string, stdout, stderr io.Writer) (int, error) {
	return vm.run(ctx, runRequest{Argv: argv, Env: env, Talks: true}, stdout, stderr)
}

// Input gives input to the command of [VM.Talk], which has to read it before it
// exits. It may be called by that one's stdout.
func (vm *VM) Input(b []byte) error { return vm.out.send(hostMessage{Input: b}) }

func (vm *VM) run(ctx context.Context, req runRequest, stdout, stderr io.Writer) (int, error) {
	argv := req.Argv
	if err := vm.out.send(hostMessage{Run: &req}); err != nil {
		return 0, vm.failed("the guest is gone")
	}
	vm.port.setTurn(true)
	var silent <-chan time.Time
	for {
		if vm.silence > 0 {
			silent = time.After(vm.silence)
		}
		select {
		case <-silent:
			vm.kill()
			return 0, vm.failed(fmt.Sprintf("the guest has said nothing for %v while it ran %s", vm.silence, argv[0]))
		case m, ok := <-vm.in:
			switch {
			case !ok:
				vm.kill()
				if ctx.Err() != nil {
					return 0, context.Cause(ctx)
				}
				return 0, vm.failed("the guest ended while it ran " + argv[0])
			case m.Stdout != nil && stdout != nil:
				stdout.Write(m.Stdout)
			case m.Stderr != nil && stderr != nil:
				stderr.Write(m.Stderr)
			}
			if m.Exit != nil {
				vm.port.setTurn(false)
			}
			vm.port.seen()
			switch {
			case m.Exit != nil && m.Exit.Error != "":
				return 0, fmt.Errorf("kernel: in the guest: %s", m.Exit.Error)
			case m.Exit != nil:
				return m.Exit.Code, nil
			}
		case <-ctx.Done():
			vm.kill()
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return 0, vm.failed(fmt.Sprintf("the guest did not end %s in time: %v", argv[0], context.Cause(ctx)))
			}
			return 0, context.Cause(ctx)
		}
	}
}

// Complaints returns what the kernel has complained of so far.
func (vm *VM) Complaints() []Complaint { return vm.console.Complaints() }

// Console returns the console's last lines, at most n.
func (vm *VM) Console(n int) []string { return vm.console.Tail(n) }

// Close powers the guest off, by force if it takes longer than five seconds,
// and removes what it needed on the host.
func (vm *VM) Close() error {
	if vm.out.send(hostMessage{PowerOff: true}) == nil {
		vm.port.setTurn(true)
		select {
		case <-vm.exited:
		case <-time.After(5 * time.Second):
		}
	}
	vm.kill()
	return os.RemoveAll(vm.dir)
}

// signal kills the guest: QEMU, also one that a wrapper has started, or all the
// processes of UML.
func (vm *VM) signal() error { return syscall.Kill(-vm.cmd.Process.Pid, syscall.SIGKILL) }

// kill ends the guest and waits for all that goes with it.
func (vm *VM) kill() {
	select {
	case <-vm.exited: // its id may be another's by now
	default:
		vm.signal()
		<-vm.exited
	}
	if vm.clock != nil {
		vm.clock.close()
	}
	if vm.conn != nil {
		vm.conn.Close()
		go func() { // the reader may be at a send that nobody takes
			for range vm.in {
			}
		}()
		vm.readers.Wait()
	}
}

func (vm *VM) failed(what string) *GuestError {
	return &GuestError{
		What:       what,
		Complaints: vm.Complaints(),
		Console:    vm.Console(15),
		QEMU:       strings.TrimSpace(vm.stderr.String()),
	}
}

// tailBuffer keeps the last 4 KiB of what is written to it.
type tailBuffer struct {
	mu sync.Mutex
	b  []byte
}

func (t *tailBuffer) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if n := len(t.b) - 4096; n > 0 {
		t.b = append(t.b[:0], t.b[n:]...)
	}
	return len(p), nil
}

func (t *tailBuffer) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}
