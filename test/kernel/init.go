package kernel

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Main is the guest's side: a program that may be booted calls it first. It
// returns at once unless the program is a guest's init or its modprobe, else
// never.
func Main() {
	switch {
	case filepath.Base(os.Args[0]) == "modprobe":
		if err := modprobe(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "modprobe:", err)
			os.Exit(1)
		}
		os.Exit(0)
	case os.Getpid() == 1 && os.Args[0] == "/init":
		fmt.Fprintln(os.Stderr, "lunlab init:", guestInit())
		powerOff()
	}
}

// powerOff ends the guest, whatever still runs in it.
func powerOff() {
	unix.Sync()
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}

// guestMounts are mounted in this order; all but the first three only where
// the kernel has them.
var guestMounts = []struct{ fs, dir string }{
	{"proc", "/proc"},
	{"sysfs", "/sys"},
	{"devtmpfs", "/dev"},
	{"tmpfs", "/run"},
	{"tmpfs", "/tmp"},
	{"tmpfs", "/dev/shm"},
	{"devpts", "/dev/pts"},
	{"debugfs", "/sys/kernel/debug"},
	{"tracefs", "/sys/kernel/tracing"},
	{"configfs", "/sys/kernel/config"},
	{"bpf", "/sys/fs/bpf"},
}

// guestInit makes the guest ready and serves the host; it returns only what went
// wrong.
func guestInit() error {
	os.Setenv("PATH", "/bin:/sbin:/usr/bin:/usr/sbin")
	os.Setenv("HOME", "/root")
	if err := mountAll(guestMounts[:3]); err != nil {
		return err
	}
	// A hung task is named before the host loses patience; an emulated CPU
	// that shares a core is not a locked-up one.
	os.WriteFile("/proc/sys/kernel/hung_task_timeout_secs", []byte("20"), 0)
	os.WriteFile("/proc/sys/kernel/watchdog_thresh", []byte("60"), 0)
	if err := takeCPUs(); err != nil {
		fmt.Fprintln(os.Stderr, "lunlab init:", err)
	}
	g := Guest{Modules: map[string]string{}}
	idx, err := readIndex()
	if err != nil {
		return err
	}
	for _, name := range idx.Load {
		if err := idx.load(name, ""); err != nil && !errors.Is(err, ErrNoModule) {
			g.Modules[name] = err.Error()
		}
	}
	if err := mountAll(guestMounts[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "lunlab init:", err)
	}
	port, err := openPort(10 * time.Second)
	if err != nil {
		return fmt.Errorf("%w (modules that did not load: %v)", err, g.Modules)
	}
	var u unix.Utsname
	unix.Uname(&u)
	g.Release, g.Version = unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Version[:])
	if b, err := os.ReadFile("/proc/uptime"); err == nil {
		fmt.Sscan(string(b), &g.Uptime)
	}
	return serve(port, g)
}

// takeCPUs takes the CPUs in that the guest was booted without, if it is to.
func takeCPUs() error {
	args, err := commandLine()
	if err != nil || !slices.Contains(args, allCPUs) {
		return err
	}
	var errs []error
	cpus, _ := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*/online")
	for _, c := range cpus {
		if b, err := os.ReadFile(c); err == nil && strings.TrimSpace(string(b)) == "0" {
			errs = append(errs, os.WriteFile(c, []byte("1"), 0))
		}
	}
	return errors.Join(errs...)
}

func mountAll(ms []struct{ fs, dir string }) error {
	var errs []error
	for _, m := range ms {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			continue // a folder of sysfs that this kernel doesn't have
		}
		err := unix.Mount(m.fs, m.dir, m.fs, 0, "")
		if err != nil && err != unix.EBUSY && err != unix.ENODEV {
			errs = append(errs, fmt.Errorf("mount %s: %w", m.dir, err))
		}
	}
	return errors.Join(errs...)
}

// commandLine is the kernel's, in words.
func commandLine() ([]string, error) {
	line, err := os.ReadFile("/proc/cmdline")
	return strings.Fields(string(line)), err
}

// openPort opens the serial line that the kernel's command line names, or finds the
// virtio-serial port by its name.
func openPort(wait time.Duration) (*os.File, error) {
	args, err := commandLine()
	if err != nil {
		return nil, err
	}
	for _, a := range args {
		if tty, ok := strings.CutPrefix(a, portArg); ok {
			return openRaw(tty)
		}
	}
	for end := time.Now().Add(wait); ; time.Sleep(20 * time.Millisecond) {
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, n := range names {
			if b, err := os.ReadFile(n); err == nil && strings.TrimSpace(string(b)) == portName {
				f, err := os.OpenFile("/dev/"+filepath.Base(filepath.Dir(n)), os.O_RDWR, 0)
				if err == nil || !errors.Is(err, os.ErrNotExist) {
					return f, err
				}
			}
		}
		if time.Now().After(end) {
			return nil, errors.New("no virtio-serial port: the kernel needs virtio_pci and virtio_console, built in or in the folder given as modules")
		}
	}
}

// openRaw opens a serial line that is to carry bytes as they are.
func openRaw(tty string) (*os.File, error) {
	f, err := os.OpenFile(tty, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", tty, err)
	}
	t.Iflag, t.Oflag, t.Lflag = 0, 0, 0
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t); err != nil {
		return nil, fmt.Errorf("%s: %w", tty, err)
	}
	return f, nil
}

// serve does what the host asks for until the host is gone.
func serve(port io.ReadWriter, g Guest) error {
	out := &messageWriter{w: port}
	if err := out.send(guestMessage{Ready: &g}); err != nil {
		return err
	}
	d := json.NewDecoder(bufio.NewReader(port))
	var input *os.File // of the command that runs
	for {
		var m hostMessage
		if err := d.Decode(&m); err != nil {
			return fmt.Errorf("the host is gone: %w", err)
		}
		switch {
		case m.PowerOff:
			powerOff()
		case m.Input != nil:
			if input != nil {
				input.Write(m.Input) // nobody reads it: it has exited
			}
		case m.Run != nil:
			if input != nil {
				input.Close()
				input = nil
			}
			var stdin *os.File
			if m.Run.Talks {
				r, w, err := os.Pipe()
				if err != nil {
					return err
				}
				stdin, input = r, w
			}
			go func() { // ends with the guest
				e := run(*m.Run, stdin, out)
				out.send(guestMessage{Exit: &e})
			}()
		}
	}
}

// run runs one command to its end.
func run(r runRequest, stdin *os.File, out *messageWriter) exitStatus {
	if stdin != nil {
		defer stdin.Close()
	}
	if len(r.Argv) == 0 {
		return exitStatus{Error: "no command"}
	}
	cmd := exec.Command(r.Argv[0], r.Argv[1:]...)
	cmd.Env = append(os.Environ(), r.Env...)
	if stdin != nil { // else it is a nil of *os.File, and no nil
		cmd.Stdin = stdin
	}
	cmd.Stdout = writerFunc(func(b []byte) error { return out.send(guestMessage{Stdout: b}) })
	cmd.Stderr = writerFunc(func(b []byte) error { return out.send(guestMessage{Stderr: b}) })
	cmd.WaitDelay = 2 * time.Second // for what it left running with its output open
	if err := cmd.Start(); err != nil {
		return exitStatus{Error: err.Error()}
	}
	err := cmd.Wait()
	var ee *exec.ExitError
	if errors.As(err, &ee) {
		if ws := ee.Sys().(syscall.WaitStatus); ws.Signaled() {
			return exitStatus{Code: 128 + int(ws.Signal())}
		}
		return exitStatus{Code: ee.ExitCode()}
	}
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return exitStatus{Error: err.Error()}
	}
	return exitStatus{}
}

type writerFunc func([]byte) error

func (f writerFunc) Write(b []byte) (int, error) {
	if err := f(b); err != nil {
		return 0, err
	}
	return len(b), nil
}
