package scenario

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"lunlab/test/kernel"
)

// ShellCommand is the subcommand of this program that a guest is told to run, with
// the name of a limits scenario; see [GuestShell].
const ShellCommand = "ktest-shell"

// shellTTY is the guest's end of the second serial port.
const shellTTY = "/dev/ttyS1"

// Shell boots a guest, attaches the disk of a limits scenario there, and gives it a
// shell, which reads in and writes to out until it exits. It returns the shell's
// exit status.
func Shell(ctx context.Context, cfg kernel.Config, s Scenario, in io.Reader, out io.Writer) (int, error) {
	if s.limits.Host == "" || s.limits.Host == VirtIOSCSI {
		return 0, fmt.Errorf("%s has no disk for a shell: name a limits scenario whose host isn't virtio_scsi", s.Name)
	}
	if uml, err := kernel.IsUML(cfg.Kernel); err != nil {
		return 0, err
	} else if uml {
		return 0, errors.New("a shell is on a serial port, which User-Mode Linux has none of: it needs a kernel for QEMU")
	}
	cfg.Files = maps.Clone(cfg.Files)
	if cfg.Files == nil {
		cfg.Files = map[string]string{}
	}
	if err := takePrograms(cfg.Files, append(programsOf([]Scenario{s}), program{"busybox", "busybox-static"})); err != nil {
		return 0, err
	}
	load, carry := modulesOf([]Scenario{s})
	cfg.Load, cfg.Carry = append(cfg.Load, load...), append(cfg.Carry, carry...)
	dir, err := os.MkdirTemp("", "lunlab-ktest-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if cfg, err = withMachine(cfg, machineOf(s), dir); err != nil {
		return 0, err
	}
	// QEMU listens: each guest that is tried makes the socket anew.
	socket := filepath.Join(dir, "shell")
	cfg.QEMUArgs = append(slices.Clone(cfg.QEMUArgs), "-chardev", "socket,id=shell,server=on,wait=off,path="+socket, "-serial", "chardev:shell")
	vm, err := kernel.Boot(ctx, cfg)
	if err != nil {
		return 0, err
	}
	line, err := net.Dial("unix", socket)
	if err != nil {
		return 0, errors.Join(fmt.Errorf("the guest's second serial port: %w", err), vm.Close())
	}
	defer line.Close()
	var reader sync.WaitGroup
	reader.Go(func() {
		if _, err := io.CopyN(out, line, 1); err != nil {
			return
		}
		// What comes before the guest has opened its end would be lost.
		go func() { // ends with the program, since in may never end
			if _, err := io.Copy(line, in); err == nil {
				line.Write([]byte{endOfFile})
			}
		}()
		io.Copy(out, line)
	})
	said := &limitedBuffer{left: 64 << 10}
	code, err := vm.Run(ctx, []string{"/bin/lunlab", ShellCommand, s.Name}, []string{"TERM=" + cmp.Or(os.Getenv("TERM"), "dumb")}, nil, said)
	if err == nil && said.Len() > 0 {
		err = fmt.Errorf("in the guest: %s", bytes.TrimSpace(said.Bytes()))
	}
	err = errors.Join(err, vm.Close())
	reader.Wait() // for what QEMU has sent
	return code, err
}

// endOfFile is what a terminal takes for the end of its input: Ctrl-D.
const endOfFile = 4

// GuestShell is the guest's side of [Shell].
func GuestShell(ctx context.Context, name string) (err error) {
	s, err := lookup(name)
	if err != nil {
		return err
	}
	rn := &runner{emit: func(Event) {}, Options: Options{Disposable: true}}
	if err := rn.open(ctx, []Scenario{s}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rn.close()) }()
	r := &run{runner: rn, scenario: s, Result: Result{Name: s.Name}}
	d, err := r.attach(ctx, s.limits)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.remove()) }()
	if err := d.waitQueue(ctx); err != nil {
		return err
	}
	return shellOn(shellTTY, fmt.Sprintf("%s is %s, of %s; the shell's exit ends the guest", d.path(), d.device, s.Name))
}

// shellOn runs a shell on a terminal until it exits.
func shellOn(tty, banner string) error {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	const applets = "/run/busybox"
	if err := os.MkdirAll(applets, 0o755); err != nil {
		return err
	}
	if out, err := exec.Command(busybox, "--install", "-s", applets).CombinedOutput(); err != nil {
		return fmt.Errorf("busybox --install: %w: %s", err, out)
	}
	f, err := os.OpenFile(tty, os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return fmt.Errorf("the second serial port: %w (CONFIG_SERIAL_8250, at least two ports)", err)
	}
	defer f.Close()
	fmt.Fprintf(f, "%s\r\n", banner)
	sh := exec.Command(busybox, "sh")
	// This program's own modprobe, in /sbin, comes before busybox's.
	sh.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":"+applets, "PS1=guest# ")
	sh.Stdin, sh.Stdout, sh.Stderr = f, f, f
	sh.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = sh.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return ShellExit(exit.ExitCode())
	}
	return err
}

// ShellExit is a shell's exit status other than 0.
type ShellExit int

func (e ShellExit) Error() string { return fmt.Sprintf("the shell ended with status %d", int(e)) }
