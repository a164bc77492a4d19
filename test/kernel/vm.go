// Package kernel boots a Linux kernel in QEMU with the running program as its
// init, and runs commands in it. KVM is used where a guest really starts under
// it, TCG elsewhere.
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
	// Kernel is a bzImage or any file that QEMU's -kernel takes.
	Kernel string

	// Modules is a folder with the kernel's modules, "" if it has none.
	Modules string

	// Load names the modules that init loads; Carry those that are only
	// brought along, for modprobe in the guest. Dependencies come by
	// themselves. What QEMU's devices need is always there.
	Load, Carry []string

	// Files go into the guest, guest path -> host path. See [Program].
	Files map[string]string

	// Init is the program that runs as init and calls [Main]; by default the
	// running one.
	Init string

	Accel  string // "auto" (the default), "kvm" or "tcg"
	SMP    int    // CPUs, by default 2
	Memory int    // MiB, by default 1,024

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

var kvmDevice = "/dev/kvm" // tests have another

// guestDrivers is what the guest's side of our QEMU devices needs.
var guestDrivers = []string{"virtio_pci", "virtio_console"}

// GuestError says that a guest failed, with what its console said last.
type GuestError struct {
	What       string
	Late       bool // its time to boot was over
	Complaints []Complaint
	Console    []string // the last lines
	QEMU       string   // what QEMU itself printed
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
	// Guest is what the guest said when it was up; Accel is "kvm" or "tcg".
	Guest Guest
	Accel string

	cmd     *exec.Cmd
	silence time.Duration
	dir     string // of the initramfs and the socket
	conn    net.Conn
	out     messageWriter
	in      chan guestMessage
	console console
	stderr  tailBuffer
	exited  chan struct{} // closed when QEMU has been waited for
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
	case "kvm":
		return try("kvm", cfg.BootTimeout)
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
	switch cfg.Accel {
	case "":
		cfg.Accel = "auto"
	case "auto", "kvm", "tcg":
	default:
		return fmt.Errorf("kernel: accelerator %q: must be auto, kvm or tcg", cfg.Accel)
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
	if cfg.QEMU == "" {
		cfg.QEMU = "qemu-system-x86_64"
	}
	path, err := exec.LookPath(cfg.QEMU)
	if err != nil {
		return fmt.Errorf("kernel: no QEMU: %w; on Debian and Ubuntu: apt-get install qemu-system-x86", err)
	}
	cfg.QEMU = path
	if cfg.Kernel == "" {
		return errors.New("kernel: no kernel image named")
	}
	if _, err := os.Stat(cfg.Kernel); err != nil {
		return fmt.Errorf("kernel: %w", err)
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

func (cfg *Config) writeInitramfs(file string) error {
	set, err := OpenModules(cfg.Modules)
	if err != nil {
		return err
	}
	load := append(guestDrivers[:len(guestDrivers):len(guestDrivers)], cfg.Load...)
	mods, err := set.Resolve(append(load[:len(load):len(load)], cfg.Carry...)...)
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
	// The time-outs of the kernel's own watchdogs assume a CPU of one's own.
	append := "console=ttyS0 loglevel=5 panic=-1 rcupdate.rcu_cpu_stall_timeout=120 "
	if accel == "tcg" && !strings.Contains(cfg.Append, "maxcpus=") {
		append += "maxcpus=1 " + allCPUs + " "
	}
	append += cfg.Append
	args := []string{
		"-accel", acc, "-cpu", cpu, "-machine", "q35", "-smp", fmt.Sprint(cfg.SMP), "-m", fmt.Sprint(cfg.Memory),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", cfg.Kernel, "-initrd", initrd, "-append", append,
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-device", "virtio-serial-pci", "-chardev", "socket,id=port,path=" + socket,
		"-device", "virtserialport,chardev=port,name=" + portName,
	}
	return slices.Concat(args, cfg.QEMUArgs)
}

func start(ctx context.Context, cfg Config, dir, initrd, accel string, timeout time.Duration) (*VM, error) {
	socket := filepath.Join(dir, accel+".sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("kernel: %w", err)
	}
	defer l.Close()

	vm := &VM{Accel: accel, silence: cfg.Silence, dir: dir, in: make(chan guestMessage, 64), exited: make(chan struct{})}
	vm.console.log = cfg.Console
	vm.cmd = exec.CommandContext(ctx, cfg.QEMU, cfg.qemuArgs(initrd, socket, accel)...)
	vm.cmd.Stdout, vm.cmd.Stderr = &vm.console, &vm.stderr
	// A guest does not outlive the program that booted it, however that ends.
	vm.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	vm.cmd.Cancel = vm.signal
	vm.cmd.WaitDelay = 2 * time.Second
	deadline := time.Now().Add(timeout)
	if err := l.(*net.UnixListener).SetDeadline(deadline); err != nil {
		return nil, fmt.Errorf("kernel: %w", err)
	}
	started := make(chan error)
	go func() {
		// Pdeathsig is for the thread that forks, so this one has to stay.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := vm.cmd.Start()
		started <- err
		if err == nil {
			vm.cmd.Wait()
			l.Close() // ends an Accept that nobody will answer
		}
		close(vm.exited)
	}()
	if err := <-started; err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("kernel: %s: %w", cfg.QEMU, err)
	}
	if vm.conn, err = l.Accept(); err != nil {
		vm.kill()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, vm.failed(fmt.Sprintf("QEMU has not begun with the guest after %v", timeout))
		}
		return nil, vm.failed("QEMU ended before the guest began")
	}
	vm.out.w = vm.conn
	vm.readers.Go(vm.read)

	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case m, ok := <-vm.in:
		if ok && m.Ready != nil {
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
		vm.in <- m
	}
}

// Run runs a command in the guest and returns its exit status. Its output goes
// to stdout and stderr, either of which may be nil.
//
// A guest that ends, panics or is silent for too long is a *[GuestError]. When ctx ends
// first, the guest is ended too.
func (vm *VM) Run(ctx context.Context, argv, env []string, stdout, stderr io.Writer) (int, error) {
	if err := vm.out.send(hostMessage{Run: &runRequest{Argv: argv, Env: env}}); err != nil {
		return 0, vm.failed("the guest is gone")
	}
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
		select {
		case <-vm.exited:
		case <-time.After(5 * time.Second):
		}
	}
	vm.kill()
	return os.RemoveAll(vm.dir)
}

// signal kills QEMU, also one that a wrapper has started.
func (vm *VM) signal() error { return syscall.Kill(-vm.cmd.Process.Pid, syscall.SIGKILL) }

// kill ends QEMU and waits for all that goes with it.
func (vm *VM) kill() {
	vm.signal()
	<-vm.exited
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
