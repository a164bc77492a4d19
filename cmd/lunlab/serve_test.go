package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"lunlab/target/iscsi"
	"lunlab/test/kernel/kerneltest"
)

// said is what a process has written, read while it writes.
type said struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// initiator is as little of one as is needed to begin a command.
type initiator struct {
	t     *testing.T
	nc    net.Conn
	cmdSN uint32
}

// send writes a PDU: its header by offset, and its data.
func (i *initiator) send(op, flags byte, cdb, data []byte) {
	i.t.Helper()
	h := make([]byte, 48)
	h[0], h[1], h[7] = op, flags, byte(len(data))
	binary.BigEndian.PutUint32(h[16:], i.cmdSN+1)
	binary.BigEndian.PutUint32(h[24:], i.cmdSN)
	copy(h[32:], cdb)
	if op == 0x01 {
		i.cmdSN++
	}
	if _, err := i.nc.Write(append(h, append(data, make([]byte, -len(data)&3)...)...)); err != nil {
		i.t.Fatal(err)
	}
}

// status reads an answer and returns its status byte.
func (i *initiator) status() byte {
	i.t.Helper()
	h := make([]byte, 48)
	i.nc.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.ReadFull(i.nc, h); err != nil {
		i.t.Fatal(err)
	}
	n := int64(h[6])<<8 | int64(h[7])
	if _, err := io.CopyN(io.Discard, i.nc, n+(-n&3)); err != nil {
		i.t.Fatal(err)
	}
	return h[3]
}

// TestSecondInterrupt interrupts a server that waits for a command which takes
// an hour, twice.
func TestSecondInterrupt(t *testing.T) {
	dir := t.TempDir()
	conf, socket := filepath.Join(dir, "lab.yaml"), filepath.Join(dir, "sock")
	const lab = "targets: [{name: slow, iscsi: {name: 'iqn.2026-01.example:slow'}, luns: [{lun: 0, erase_time: 1h, store: {kind: mem, size: 1MiB}}]}]\n"
	if err := os.WriteFile(conf, []byte(lab), 0o600); err != nil {
		t.Fatal(err)
	}
	lunlab := kerneltest.Lunlab(t)
	var out, errs said
	cmd := exec.Command(lunlab, "serve", "-f", conf, "--listen", "127.0.0.1:0", "--socket", socket)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("it said:\n%s%s", out.String(), errs.String())
		}
	})
	wait(t, "the server", func() bool { return strings.Contains(out.String(), "listening on") })
	addr := regexp.MustCompile(`listening on (\S+)`).FindStringSubmatch(out.String())[1]
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	i := &initiator{t: t, nc: nc}
	i.send(0x43, 0x87, nil, []byte("InitiatorName=iqn.2026-01.example:i\x00TargetName=iqn.2026-01.example:slow\x00"))
	i.status()
	wait(t, "no more unit attentions", func() bool {
		i.send(0x01, 0x81, []byte{0}, nil)
		return i.status() == 0
	})
	i.send(0x01, 0x81, []byte{0x04}, nil) // FORMAT UNIT
	wait(t, "the command in flight", func() bool {
		var st iscsi.Status
		b, err := exec.Command(lunlab, "status", "--socket", socket, "--json").Output()
		return err == nil && json.Unmarshal(b, &st) == nil && st.Targets[0].LUNs[0].InFlight == 1
	})
	cmd.Process.Signal(os.Interrupt)
	wait(t, "the request to log out", func() bool { return strings.Contains(out.String(), "ending: ") })
	cmd.Process.Signal(os.Interrupt)
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(errs.String(), "ended at once") {
		t.Errorf("it ended with %v", err)
	}
}
