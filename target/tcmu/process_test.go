package tcmu_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"lunlab/target/tcmu"

	"github.com/mdlayher/genetlink"
	"golang.org/x/sys/unix"
)

const childMode = "LUNLAB_TCMU_CHILD"

// TestChild is not a test: it is another process that attaches a disk, says
// where it is, and then waits to be killed.
func TestChild(t *testing.T) {
	switch os.Getenv(childMode) {
	case "":
		t.Skip("runs as a child of other tests")
	case "mute":
		muteDevice(t)
	}
	e, err := tcmu.Open(tcmu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := attach(t, e, newRAM(64<<20), tcmu.Config{}, tcmu.LoopConfig{})
	fmt.Printf("attached %s\n", b.disk.Block)
	select {}
}

// muteDevice makes a device and doesn't answer the kernel, which then waits.
func muteDevice(t *testing.T) {
	c, err := genetlink.Dial(nil)
	if err != nil {
		t.Fatal(err)
	}
	f, err := c.GetFamily("TCM-USER")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.JoinGroup(f.Groups[0].ID); err != nil {
		t.Fatal(err)
	}
	const dir = "/sys/kernel/config/target/core/user_0/t0"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/control", []byte("dev_config=lunlab/t0,dev_size=1048576,hw_block_size=512"), 0); err != nil {
		t.Fatal(err)
	}
	fmt.Println("attached nothing")
	t.Fatalf("the kernel didn't wait: %v", os.WriteFile(dir+"/enable", []byte("1"), 0))
}

// TestInStuck kills a process while the kernel waits for it to answer a
// netlink message, for ever. Cleanup ends the wait.
func TestInStuck(t *testing.T) {
	e := guest(t)
	cmd, _ := child(t, "mute")
	uio := "/sys/class/uio/uio0"
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(uio); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no UIO device after 20 s")
		}
	}
	time.Sleep(200 * time.Millisecond)
	cmd.Process.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if removed, err := e.Cleanup(ctx); len(removed) != 1 || err != nil {
		t.Errorf("cleanup removed %v, %v; want the device", removed, err)
	}
}

// child starts TestChild and returns its disk.
func child(t *testing.T, mode string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command("/init", "-test.run", "^TestChild$")
	cmd.Env = append(os.Environ(), childMode+"="+mode)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	var disk string
	if _, err := fmt.Fscanf(out, "attached %s\n", &disk); err != nil {
		b, _ := io.ReadAll(out)
		t.Fatalf("child: %v %s", err, b)
	}
	return cmd, disk
}

// underIO waits until the kernel has sent some hundred commands to a disk.
func underIO(t *testing.T, disk string) {
	t.Helper()
	count := func() (n int64) {
		b, err := os.ReadFile("/sys/block/" + filepath.Base(disk) + "/device/iorequest_cnt")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscanf(string(b), "0x%x", &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	first := count()
	for end := time.Now().Add(30 * time.Second); count() < first+300; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no I/O after 30 s")
		}
	}
}

// TestInKilled kills a process that serves a disk, under I/O. Cleanup leaves
// the living one alone, and removes all of the dead one.
func TestInKilled(t *testing.T) {
	e := guest(t)
	cmd, disk := child(t, "attach")
	if removed, err := e.Cleanup(t.Context()); len(removed) > 0 || err != nil {
		t.Fatalf("cleanup took %v from a living process, %v", removed, err)
	}
	if _, err := e.Adopt(t.Context(), tcmu.Config{Name: "t0"}, newRAM(1<<20)); !errors.Is(err, tcmu.ErrInUse) {
		t.Errorf("adopt a living process's device: %v, want %v", err, tcmu.ErrInUse)
	}
	done := make(chan error, 1)
	go func() {
		done <- exec.Command("fio", fio(disk, "--rw=randread", "--iodepth=16", "--time_based", "--runtime=60")[1:]...).Run()
	}()
	underIO(t, disk)
	cmd.Process.Kill()
	cmd.Wait()
	start := time.Now()
	removed, err := e.Cleanup(t.Context())
	if err != nil || len(removed) != 3 {
		t.Errorf("cleanup removed %v, %v; want a LUN, a host and a device", removed, err)
	}
	if d := time.Since(start); d > 15*time.Second {
		t.Errorf("cleanup took %v", d)
	}
	if err := <-done; err == nil {
		t.Error("fio read on from a disk that is gone")
	}
	leftovers(t)
}

// TestInAdopted kills a process that serves a disk, under I/O, and serves the
// disk in its place. The initiator notices nothing.
func TestInAdopted(t *testing.T) {
	e := guest(t)
	cmd, disk := child(t, "attach")
	done := make(chan string, 1)
	go func() {
		out, err := exec.Command("fio", fio(disk, "--rw=randread", "--iodepth=16", "--time_based", "--runtime=4")[1:]...).CombinedOutput()
		done <- fmt.Sprint(string(out), err)
	}()
	underIO(t, disk)
	cmd.Process.Kill()
	cmd.Wait()
	time.Sleep(500 * time.Millisecond)
	dev, err := e.Adopt(t.Context(), tcmu.Config{Name: "t0"}, newRAM(64<<20))
	if err != nil {
		t.Fatal(err)
	}
	if out := <-done; !strings.HasSuffix(out, "<nil>") {
		t.Errorf("fio: %s", out)
	}
	if st := dev.Stats(); st.Commands < 16 {
		t.Errorf("stats: %+v", st)
	}
	// It isn't the adopter's host; the LUN goes as a stale one does.
	lunDir := "/sys/kernel/config/target/loopback/" + testWWN + "/tpgt_1/lun/lun_0"
	for _, f := range []func() error{
		func() error { return unix.Unlink(lunDir + "/t0") },
		func() error { return unix.Rmdir(lunDir) },
	} {
		if err := f(); err != nil {
			t.Error(err)
		}
	}
	if err := dev.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if removed, err := e.Cleanup(t.Context(), testWWN); len(removed) != 1 || err != nil {
		t.Errorf("cleanup removed %v, %v; want the empty host", removed, err)
	}
}

// buffer takes what a command prints, and can be read meanwhile.
type buffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// TestInCommand runs lunlab attach: with a lab.yaml, with a signal, with a
// kill, and again.
func TestInCommand(t *testing.T) {
	guest(t)
	file := filepath.Join(t.TempDir(), "lab.yaml")
	err := os.WriteFile(file, []byte(`
targets:
- name: one
  limits: {can_queue: 32, cmd_per_lun: 16, hw_queues: 1}
  luns:
  - {lun: 0, store: {kind: mem, size: 64MiB}, block_size: 4096, serial: abc}
  - {lun: 2, store: {kind: mem, size: 64MiB}, read_only: true}
- name: two
  luns:
  - {lun: 0, store: {kind: file, path: disk.img, size: 64MiB}}
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		Target   string
		LUN      int
		Block    string
		CanQueue int `json:"can_queue"`
		Depth    int `json:"queue_depth"`
	}
	start := func() (*exec.Cmd, []row, *buffer) {
		t.Helper()
		cmd := exec.Command("/opt/lunlab", "attach", "-f", file, "--json")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var stderr buffer
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var rows []row
		var text strings.Builder
		if err := json.NewDecoder(io.TeeReader(out, &text)).Decode(&rows); err != nil {
			cmd.Process.Kill()
			cmd.Wait()
			t.Fatalf("attach: %v\n%s%s", err, &text, &stderr)
		}
		return cmd, rows, &stderr
	}
	cmd, rows, first := start()
	if len(rows) != 3 || rows[0].CanQueue != 32 || rows[0].Depth != 16 || rows[1].LUN != 2 || rows[2].Target != "two" {
		t.Errorf("attached: %+v", rows)
	}
	for _, i := range []int{0, 2} {
		run(t, fio(rows[i].Block, "--rw=randwrite", "--iodepth=32", "--verify=crc32c", "--size=8m")...)
	}
	if ro, _ := os.ReadFile("/sys/block/" + filepath.Base(rows[1].Block) + "/ro"); string(ro) != "1\n" {
		t.Errorf("the read-only LUN: ro is %q", ro)
	}
	same := filepath.Join(t.TempDir(), "lab.yaml")
	if err := os.WriteFile(same, []byte("targets: [{name: one, luns: [{lun: 0, store: {kind: mem, size: 1MiB}}]}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := tryRun(t, "/opt/lunlab", "attach", "-f", same)
	if err == nil || !strings.Contains(out, "another lunlab has attached it") {
		t.Errorf("attached twice: %v, %s", err, out)
	}
	// Who has the disk for himself, as a mount does, is waited for.
	held, err := os.OpenFile(rows[0].Block, os.O_RDONLY|unix.O_EXCL, 0)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Process.Signal(syscall.SIGINT)
	want := rows[0].Block + " is in use"
	for end := time.Now().Add(10 * time.Second); !strings.Contains(first.String(), want); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("attach doesn't say that %s: %s", want, first)
		}
	}
	if _, err := os.Stat(rows[0].Block); err != nil {
		t.Errorf("a disk in use was detached: %v", err)
	}
	held.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("attach after SIGINT: %v", err)
	}
	leftovers(t)

	cmd, _, _ = start()
	cmd.Process.Kill()
	cmd.Wait()
	cmd, _, stderr := start()
	if n := strings.Count(stderr.String(), "which a killed lunlab left"); n != 8 {
		t.Errorf("after a kill: %d things removed, want 3 devices, 3 LUNs and 2 hosts:\n%s", n, stderr)
	}
	cmd.Process.Kill()
	cmd.Wait()
	if out := run(t, "/opt/lunlab", "attach", "--cleanup"); strings.Count(out, "removed ") != 8 {
		t.Errorf("cleanup: %s", out)
	}
	leftovers(t)
	if out := run(t, "/opt/lunlab", "attach", "--cleanup"); out != "nothing was left attached\n" {
		t.Errorf("cleanup again: %s", out)
	}
}

// TestInFlags runs lunlab attach without a file, twice at once, and reads its
// table.
func TestInFlags(t *testing.T) {
	guest(t)
	var cmds []*exec.Cmd
	for range 2 {
		cmd := exec.Command("/opt/lunlab", "attach", "--size", "64MiB", "--can-queue", "32", "--cmd-per-lun", "16", "--hw-queues", "2")
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cmds = append(cmds, cmd)
		t.Cleanup(func() { cmd.Process.Kill() })
		var text strings.Builder
		for lines := bufio.NewScanner(out); lines.Scan(); {
			text.WriteString(lines.Text() + "\n")
			if strings.HasPrefix(lines.Text(), "attached") {
				break
			}
		}
		t.Log("\n" + text.String())
		row := regexp.MustCompile(`(?m)^lunlab-(\d+) +0 +/dev/sd. +/dev/sg. +\d+:0:1:0 +64 MiB +512 +32 +16 +2 +16$`).FindStringSubmatch(text.String())
		if row == nil || row[1] != fmt.Sprint(cmd.Process.Pid) {
			t.Errorf("attach printed:\n%s", &text)
		}
	}
	for _, cmd := range cmds {
		cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("attach after SIGTERM: %v", err)
		}
	}
}
