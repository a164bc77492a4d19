package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// server is a process that serves a LUN in memory.
type server struct {
	name    string
	address string
	target  string
	lun     byte
	echo    bool
	note    string // about its memory
	cmd     *exec.Cmd
	cleanup func()
}

// notInstalled says that a server can't be measured, and what would help.
type notInstalled struct{ name, pkg string }

func (e notInstalled) Error() string {
	return fmt.Sprintf("%s is left out, as it isn't installed: apt-get install %s", e.name, e.pkg)
}

const targetName = "iqn.2026-01.example.lunlab:bench"

// run starts the process and waits until it listens.
func (s *server) run(name string, env []string, args ...string) error {
	s.cmd = exec.Command(name, args...)
	s.cmd.Env = append(os.Environ(), env...)
	// It does not outlive the benchmark, however that ends. The signal is for the
	// end of the thread that starts it, which main keeps.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log := &strings.Builder{}
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		return err
	}
	for range 200 {
		c, err := net.Dial("tcp", s.address)
		if err == nil {
			c.Close()
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	s.stop()
	return fmt.Errorf("%s doesn't listen on %s\n%s", s.name, s.address, log)
}

func (s *server) pid() int { return s.cmd.Process.Pid }

func (s *server) stop() {
	s.cmd.Process.Kill()
	s.cmd.Wait()
	if s.cleanup != nil {
		s.cleanup()
	}
}

func freeAddress() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}

// sharedFile makes a file in memory for the targets that serve files.
func sharedFile() (path string, err error) {
	f, err := os.CreateTemp("/dev/shm", "lunlab-bench-")
	if err != nil {
		return "", err
	}
	defer f.Close()
	return f.Name(), f.Truncate(lunSize)
}

func startLunlab(dir string) (*server, error) {
	program := filepath.Join(dir, "lunlab")
	build := exec.Command("go", "build", "-o", program, "lunlab/cmd/lunlab")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build lunlab: %w\n%s", err, out)
	}
	config := filepath.Join(dir, "lab.yaml")
	err := os.WriteFile(config, fmt.Appendf(nil, "targets:\n  - name: bench\n    iscsi: {name: %q}\n    luns:\n      - {lun: 0, store: {kind: mem, size: %d}}\n", targetName, lunSize), 0o644)
	if err != nil {
		return nil, err
	}
	a, err := freeAddress()
	if err != nil {
		return nil, err
	}
	s := &server{name: subject, address: a, target: targetName}
	return s, s.run(program, nil, "serve", "-f", config, "--listen", a, "--socket", "none")
}

func startTgt(dir string) (*server, error) {
	for _, p := range []string{"tgtd", "tgtadm"} {
		if _, err := exec.LookPath(p); err != nil {
			return nil, notInstalled{"tgt", "tgt"}
		}
	}
	file, err := sharedFile()
	if err != nil {
		return nil, err
	}
	a, err := freeAddress()
	if err != nil {
		return nil, err
	}
	s := &server{name: "tgt", address: a, target: targetName, lun: 1, note: ", which isn't in it", cleanup: func() { os.Remove(file) }}
	env := []string{"TGT_IPC_SOCKET=" + filepath.Join(dir, "tgt")}
	if err := s.run("tgtd", env, "-f", "--iscsi", "portal="+a); err != nil {
		return nil, err
	}
	for _, args := range [][]string{
		{"--op", "new", "--mode", "target", "--tid", "1", "-T", targetName},
		{"--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", file},
		{"--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"},
	} {
		cmd := exec.Command("tgtadm", append([]string{"--lld", "iscsi"}, args...)...)
		cmd.Env = append(os.Environ(), env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			s.stop()
			return nil, fmt.Errorf("tgtadm %v: %w\n%s", args, err, out)
		}
	}
	return s, nil
}

func startIstgt(dir string) (*server, error) {
	program, err := exec.LookPath("istgt")
	if err != nil {
		return nil, notInstalled{"istgt", "istgt"}
	}
	file, err := sharedFile()
	if err != nil {
		return nil, err
	}
	a, err := freeAddress()
	if err != nil {
		return nil, err
	}
	control, err := freeAddress()
	if err != nil {
		return nil, err
	}
	base, name, _ := strings.Cut(targetName, ":")
	auth, config := filepath.Join(dir, "auth.conf"), filepath.Join(dir, "istgt.conf")
	if err := os.WriteFile(auth, nil, 0o600); err != nil {
		return nil, err
	}
	err = os.WriteFile(config, fmt.Appendf(nil, `[Global]
  NodeBase %q
  PidFile %s
  AuthFile %s
  MediaDirectory %s
  Timeout 60
  NopInInterval 60
  DiscoveryAuthMethod None
  MaxSessions 64
  MaxConnections 4
  MaxR2T 32
  MaxOutstandingR2T 16
  FirstBurstLength 262144
  MaxBurstLength 1048576
  MaxRecvDataSegmentLength 262144
  ImmediateData Yes
[UnitControl]
  AuthMethod None
  Portal UC1 %s
  Netmask 127.0.0.1
[PortalGroup1]
  Portal DA1 %s
[InitiatorGroup1]
  InitiatorName "ALL"
  Netmask 127.0.0.0/8
[LogicalUnit1]
  TargetName %s
  Mapping PortalGroup1 InitiatorGroup1
  AuthMethod None
  UseDigest Auto
  UnitType Disk
  QueueDepth 128
  LUN0 Storage %s %dMB
`, base, filepath.Join(dir, "istgt.pid"), auth, dir, control, a, name, file, lunSize>>20), 0o600)
	if err != nil {
		return nil, err
	}
	s := &server{name: "istgt", address: a, target: targetName, note: ", which isn't in it", cleanup: func() { os.Remove(file) }}
	return s, s.run(program, nil, "-D", "-c", config)
}

func startEcho(dir string) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	a, err := freeAddress()
	if err != nil {
		return nil, err
	}
	s := &server{name: ceilingName, address: a, echo: true}
	return s, s.run(self, nil, echoCommand, a)
}

// cpuTime is the CPU time that a process has used, of all its threads, those that
// have ended among them.
func cpuTime(pid int) (time.Duration, error) {
	// A process's CPU clock is named by its id: clock_getcpuclockid(3).
	const perProcess = 2 // CPUCLOCK_SCHED
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|perProcess), &t); err != nil {
		return 0, fmt.Errorf("CPU clock of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// peakRSS is the most resident memory that a process has had, in bytes.
func peakRSS(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		var kib int64
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kib); err == nil {
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no VmHWM", pid)
}
