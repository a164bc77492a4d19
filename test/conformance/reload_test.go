package conformance

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// reloadLab is a LUN that grows and changes with each reload, and others that come
// and go.
func reloadLab(n int) string {
	cache, more := n%2 == 0, ""
	if n%2 == 1 {
		more = fmt.Sprintf("  - {lun: %d, store: {kind: mem, size: 1MiB}, faults: [cmd=read status=busy]}\n", 1+n%3)
	}
	return fmt.Sprintf(`targets:
- name: lab
  limits: {cmd_per_lun: %d}
  luns:
  - {lun: 0, serial: zero, revision: %d, write_cache: %v, store: {kind: file, path: disk, size: %dMiB}}
%s`, 32+n, n, cache, 16+n, more)
}

// TestReloadUnderLoad reloads lab.yaml time and again while qemu-io writes, and
// reads back what it wrote. It sees no error, and in the end the LUN is as large as
// the last lab.yaml says.
func TestReloadUnderLoad(t *testing.T) {
	needQEMU(t)
	const reloads = 10
	config := filepath.Join(t.TempDir(), "lab.yaml")
	write := func(n int) {
		if err := os.WriteFile(config, []byte(reloadLab(n)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(0)
	s := launchInOrder(t, "-f", config, "--socket", "none")
	q, err := startQemuIO(url(s.portal, 0), (*exec.Cmd).Start)
	if err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	var passes atomic.Int64
	ended := make(chan error, 1)
	go func() { ended <- writeAndRead(q, &stop, &passes) }()
	end := time.Now().Add(5 * time.Minute)
	// until waits for a condition. It is false if that, or the I/O, failed.
	until := func(what string, ok func() bool) bool {
		for ; !ok(); time.Sleep(5 * time.Millisecond) {
			if len(ended) > 0 || time.Now().After(end) {
				t.Errorf("waited in vain for %s; the server said:\n%s", what, s.out)
				return false
			}
		}
		return true
	}
	for n := 1; n <= reloads; n++ {
		write(n)
		s.cmd.Process.Signal(syscall.SIGHUP)
		if !until(fmt.Sprintf("reload %d", n), func() bool { return strings.Count(s.out.String(), "reloaded "+config) == n }) {
			break
		}
		before := passes.Load()
		if !until("more I/O", func() bool { return passes.Load() > before }) {
			break
		}
	}
	stop.Store(true)
	if t.Failed() {
		q.cmd.Process.Kill()
	}
	err = <-ended
	q.cmd.Process.Kill()
	q.cmd.Wait()
	if err != nil {
		t.Fatal(err)
	}
	wantLines(t, run(t, "qemu-img", "info", "-f", "raw", url(s.portal, 0)), fmt.Sprintf(`virtual size: %d MiB \(\d+ bytes\)`, 16+reloads))
}

// writeAndRead writes to a LUN of 16 MiB, several at once, and reads back all that
// it wrote, until it is to stop or something fails. passes counts how often it did.
func writeAndRead(q *qemuIO, stop *atomic.Bool, passes *atomic.Int64) error {
	if _, err := q.said(); err != nil {
		return fmt.Errorf("%w: %s", errGone, &q.stderr)
	}
	const parts = 8
	for ; !stop.Load(); passes.Add(1) {
		value := func(i int64) int64 { return 1 + (passes.Load()*parts+i)%255 }
		var commands []string
		for i := range int64(parts) {
			commands = append(commands, fmt.Sprintf("aio_write -P %d %dM 100k", value(i), 2*i))
		}
		commands = append(commands, "aio_flush", "flush")
		for i := range int64(parts) {
			commands = append(commands, fmt.Sprintf("read -P %d %dM 100k", value(i), 2*i))
		}
		for _, c := range commands {
			if _, err := q.do(c); err != nil {
				return fmt.Errorf("%w: %s", err, &q.stderr)
			}
		}
	}
	return nil
}
