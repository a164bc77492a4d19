package conformance

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lunlab/test/need"
)

// faulty is a server with a LUN 0 of 64 MiB whose faults are added and removed by
// the command line.
type faulty struct {
	t           *testing.T
	url, socket string
}

func serveFaulty(t *testing.T) *faulty {
	t.Helper()
	dir := t.TempDir()
	config, socket := filepath.Join(dir, "lab.yaml"), filepath.Join(dir, "socket")
	err := os.WriteFile(config, []byte("targets: [{name: lab, limits: {hw_queues: 2}, luns: [{lun: 0, store: {kind: mem, size: 64MiB}}]}]\n"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	return &faulty{t, url(serve(t, "-f", config, "--socket", socket), 0), socket}
}

func (f *faulty) lunlab(args ...string) string {
	f.t.Helper()
	path, err := program()
	if err != nil {
		f.t.Fatal(err)
	}
	return run(f.t, path, append([]string{"fault", "--socket", f.socket}, args...)...)
}

// only makes rule the only one.
func (f *faulty) only(rule string) {
	f.t.Helper()
	f.lunlab("clear", "--all")
	f.lunlab("add", "lab/0", rule)
}

// client runs a client, which may fail, with the LUN's URL at the end.
func (f *faulty) client(name string, args ...string) string {
	f.t.Helper()
	cmd := exec.Command(name, append(args, f.url)...)
	kill := time.AfterFunc(3*time.Minute, func() {
		if cmd.Process != nil {
			cmd.Process.Kill()
		}
	})
	defer kill.Stop()
	out, _ := cmd.CombinedOutput()
	return string(out)
}

// fired wants the only rule to have fired so many times.
func (f *faulty) fired(n string) {
	f.t.Helper()
	lines := strings.Split(f.lunlab("list"), "\n")
	if len(lines) != 3 || strings.Fields(lines[1])[3] != n {
		f.t.Errorf("want one rule that has fired %s times:\n%s", n, strings.Join(lines, "\n"))
	}
}

// TestFaults has QEMU's initiator meet faults: what it retries goes well, and what it
// can't help comes to its user.
func TestFaults(t *testing.T) {
	needQEMU(t)
	f := serveFaulty(t)
	io := func(commands ...string) string {
		args := []string{"-f", "raw"}
		for _, c := range commands {
			args = append(args, "-c", c)
		}
		return f.client("qemu-io", args...)
	}
	wants := func(rule, out string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("%s: no %q in\n%s", rule, w, out)
			}
		}
	}
	io("write -P 0x11 0 1M")

	// A medium error is an I/O error, and gone when the block is written.
	f.only("lba=100-101 medium-error")
	out := io("read 0 50K", "read 50K 4K")
	wants("medium error", out, "read 51200/51200 bytes at offset 0", "Input/output error")
	out = io("write -P 0x22 51200 1K", "read -P 0x22 50K 1K", "read -P 0x11 51K 4K")
	wants("a rewritten block", out, "read 1024/1024 bytes at offset 51200", "read 4096/4096 bytes at offset 52224")
	if strings.Contains(out, "rror") || strings.Contains(out, "verification failed") {
		t.Errorf("a rewritten block:\n%s", out)
	}

	// BUSY, TASK SET FULL and a unit attention are tried again.
	for _, rule := range []string{"cmd=read10,read16 status=busy count=2", "cmd=read10,read16 status=task-set-full count=2", "cmd=read10,read16 attention=2a/01 count=2"} {
		f.only(rule)
		out := io("read -P 0x11 0 4K")
		wants(rule, out, "read 4096/4096 bytes at offset 0")
		if strings.Contains(out, "verification failed") {
			t.Errorf("%s:\n%s", rule, out)
		}
		f.fired("2")
	}

	// A delay is waited for.
	f.only("cmd=read10,read16 delay=700ms")
	start := time.Now()
	wants("delay", io("read -P 0x11 0 4K"), "read 4096/4096 bytes at offset 0")
	if d := time.Since(start); d < 700*time.Millisecond {
		t.Errorf("a read took %v with a delay of 700ms", d)
	}

	// Corrupt data comes through, as there is nothing that would find it.
	f.only("cmd=read10,read16 lba=3 corrupt=7+2^0x01")
	out = io("read -P 0x11 0 1K", "read -v 1536 16")
	wants("corrupt", out, "read 1024/1024 bytes at offset 0", "11 11 11 11 11 11 11 10 10 11 11")
	if strings.Contains(io("read -P 0x11 2K 4K"), "failed") {
		t.Error("blocks beside the range are corrupt")
	}

	// A connection that is lost is made again, and the command sent again.
	f.only("cmd=read10,read16 drop=connection nth=1")
	wants("drop", io("read -P 0x11 0 4K"), "read 4096/4096 bytes at offset 0")
	f.fired("1")

	// An error that isn't tried again.
	f.only("cmd=write10,write16 sense=hardware-error/44/00 nth=2")
	out = io("write -P 0x33 0 4K", "write -P 0x44 0 4K", "read -P 0x33 0 4K")
	wants("hardware error", out, "wrote 4096/4096 bytes at offset 0", "Input/output error", "read 4096/4096 bytes at offset 0")
	if strings.Contains(out, "verification failed") {
		t.Errorf("what failed was written:\n%s", out)
	}

	// A write that is acknowledged and lost.
	f.only("cmd=write10,write16 status=good")
	out = io("write -P 0x55 0 4K", "read -P 0x33 0 4K")
	wants("a lost write", out, "wrote 4096/4096 bytes at offset 0")
	if strings.Contains(out, "verification failed") {
		t.Errorf("a lost write was written:\n%s", out)
	}
}

// TestFaultSense has libiscsi print the sense data that a rule made up.
func TestFaultSense(t *testing.T) {
	need.Program(t, "iscsi-inq", "libiscsi-bin")
	f := serveFaulty(t)
	f.only("cmd=inquiry sense=illegal-request/24/00 field=cdb:2")
	if out := f.client("iscsi-inq"); !strings.Contains(out, "ILLEGAL_REQUEST(5)") || !strings.Contains(out, "INVALID_FIELD_IN_CDB(0x2400)") {
		t.Errorf("iscsi-inq:\n%s", out)
	}
	f.fired("1")
	f.lunlab("clear", "lab/0")
	if out := f.client("iscsi-inq"); !strings.Contains(out, "Peripheral Qualifier:CONNECTED") {
		t.Errorf("iscsi-inq without rules:\n%s", out)
	}
}
