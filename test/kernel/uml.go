package kernel

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// timeSocket is what the clock listens on.
const timeSocket = "time"

// UML is the accelerator's name of User-Mode Linux.
const UML = "uml"

// IsUML tells whether a file is a kernel of User-Mode Linux (ARCH=um), which is a
// program.
func IsUML(file string) (bool, error) {
	f, err := os.Open(file)
	if err != nil {
		return false, fmt.Errorf("kernel: %w", err)
	}
	defer f.Close()
	var magic [len(elf.ELFMAG)]byte
	if _, err := f.ReadAt(magic[:], 0); err != nil || string(magic[:]) != elf.ELFMAG {
		return false, nil
	}
	e, err := elf.NewFile(f)
	if err != nil {
		return false, fmt.Errorf("kernel: %s: %w", file, err)
	}
	return e.Section(".uml.setup.init") != nil, nil
}

// umlDefaults is for what is different from QEMU. One CPU is all there is.
func (cfg *Config) umlDefaults() error {
	if len(cfg.QEMUArgs) > 0 {
		return errors.New("kernel: QEMU's arguments for a kernel that is User-Mode Linux")
	}
	cfg.Accel, cfg.SMP = UML, 1
	return nil
}

// umlMachine is the kernel as a program. The port is its first serial line, at a
// socket that it inherits.
func (cfg *Config) umlMachine(ctx context.Context, dir, initrd string) (*machine, error) {
	program, err := filepath.Abs(cfg.Kernel)
	if err != nil {
		return nil, fmt.Errorf("kernel: %w", err)
	}
	args, err := cfg.umlArgs(dir, initrd)
	if err != nil {
		return nil, err
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("kernel: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "port"), os.NewFile(uintptr(fds[1]), "port")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, fmt.Errorf("kernel: %w", err)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	// UML dies of a glibc that has registered restartable sequences.
	cmd.Env = append(os.Environ(), "GLIBC_TUNABLES=glibc.pthread.rseq=0", "TMPDIR="+cfg.umlMemory(dir))
	cmd.Dir = dir // for a core dump
	cmd.ExtraFiles = []*os.File{theirs}
	return &machine{
		cmd:    cmd,
		start:  func() error { return withoutASLR(cmd.Start) },
		accept: func() (net.Conn, error) { return conn, nil },
		close:  func() { theirs.Close() },
	}, nil
}

// umlArgs is the kernel's command line, which is that of a program too. It is the
// same in each run: what is named lies in the folder that the program runs in.
func (cfg *Config) umlArgs(dir, initrd string) ([]string, error) {
	args := []string{
		fmt.Sprintf("mem=%dM", cfg.Memory), "initrd=" + filepath.Base(initrd), "con=null", "con0=null,fd:1", "ssl=null", "ssl0=fd:3",
		"uml_dir=./", "umid=uml", "noreboot", "loglevel=5", portArg + "/dev/ttyS0",
	}
	for _, d := range cfg.SCSI {
		args = append(args, fmt.Sprintf("virtio_uml.device=%s:%d", d.Socket, virtioSCSI))
	}
	if cfg.Clock != nil {
		if err := cfg.Clock.listen(filepath.Join(dir, timeSocket)); err != nil {
			return nil, err
		}
		args = append(args, "time-travel=ext:1:"+timeSocket)
	}
	return append(args, strings.Fields(cfg.Append)...), nil
}

var sharedMemory = "/dev/shm" // tests have another

// umlMemory is where the file lies that is the guest's memory: in memory itself, if
// there is room for all of it and it may be executed, as in many a container it
// can't; else in dir. A guest that finds no room while it runs is killed.
func (cfg *Config) umlMemory(dir string) string {
	var fs unix.Statfs_t
	if unix.Statfs(sharedMemory, &fs) == nil && fs.Flags&unix.ST_NOEXEC == 0 && fs.Bavail*uint64(fs.Bsize) >= uint64(cfg.Memory)<<20 {
		return sharedMemory
	}
	return dir
}

// withoutASLR has f start a process without address space layout randomization.
// It is called by a goroutine that is locked to its thread.
func withoutASLR(f func() error) error {
	const keep, noRandomize = 0xffffffff, 0x0040000 // ADDR_NO_RANDOMIZE
	old, _, no := syscall.RawSyscall(syscall.SYS_PERSONALITY, keep, 0, 0)
	if no != 0 {
		return fmt.Errorf("personality: %w", no)
	}
	if _, _, no := syscall.RawSyscall(syscall.SYS_PERSONALITY, old|noRandomize, 0, 0); no != 0 {
		return fmt.Errorf("personality: %w", no)
	}
	defer syscall.RawSyscall(syscall.SYS_PERSONALITY, old, 0, 0)
	return f()
}
