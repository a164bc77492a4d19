package nbd_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"lunlab/lun"
	"lunlab/lun/store"
	"lunlab/lun/store/cache"
	"lunlab/lun/store/nbd"
	"lunlab/lun/store/storetest"
	"lunlab/test/need"
)

// kit is a running nbdkit.
type kit struct {
	t      *testing.T
	socket string
	args   []string
	cmd    *exec.Cmd
}

// nbdkit runs nbdkit on a unix socket. args are its filters, plugin and their
// parameters.
func nbdkit(t *testing.T, args ...string) *kit {
	t.Helper()
	k := &kit{t: t, socket: filepath.Join(t.TempDir(), "s"), args: args}
	k.start()
	t.Cleanup(k.kill)
	return k
}

func (k *kit) start() {
	k.t.Helper()
	program := need.Program(k.t, "nbdkit", "nbdkit")
	os.Remove(k.socket) // which a killed one leaves
	k.cmd = exec.Command(program, append([]string{"-f", "-U", k.socket}, k.args...)...)
	var stderr bytes.Buffer
	k.cmd.Stderr = &stderr
	if err := k.cmd.Start(); err != nil {
		k.t.Fatal(err)
	}
	ended := make(chan error, 1)
	cmd := k.cmd
	go func() { ended <- cmd.Wait() }()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if c, err := net.Dial("unix", k.socket); err == nil {
			c.Close()
			return
		}
		select {
		case err := <-ended:
			k.t.Fatalf("nbdkit: %v: %s", err, stderr.Bytes())
		default:
		}
	}
	k.t.Fatal("nbdkit doesn't listen")
}

func (k *kit) kill() { k.cmd.Process.Kill() }

func (k *kit) address() string { return "nbd+unix:///?socket=" + k.socket }

func (k *kit) open(o nbd.Options) *nbd.Store {
	k.t.Helper()
	return open(k.t, k.address(), o)
}

func TestNbdkitStore(t *testing.T) {
	for name, args := range map[string][]string{
		"memory":    {"memory", "3166208"},
		"no zeroes": {"--filter=nozero", "memory", "3166208"},
		"plain":     {"--no-sr", "memory", "3166208"},
	} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(t *testing.T) store.Store {
				return nbdkit(t, args...).open(nbd.Options{Connections: 3})
			}, storetest.Options{})
		})
	}
	// A volatile cache in front of it.
	t.Run("cache", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) store.Store {
			return cache.New(nbdkit(t, "memory", "3166208").open(nbd.Options{}), 64<<10)
		}, storetest.Options{})
	})
}

// disk runs commands of one nexus on a disk whose write cache is on.
type disk struct {
	t *testing.T
	*lun.Disk
	n lun.Nexus
}

func newDisk(t *testing.T, s store.Store, o lun.DiskOptions) *disk {
	t.Helper()
	d, err := lun.NewDisk(s, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	x := &disk{t: t, Disk: d}
	x.run(make([]byte, 6), nil, nil) // takes the unit attention
	return x
}

func (d *disk) run(cdb, out, in []byte) lun.Command {
	c := lun.Command{Nexus: &d.n, CDB: cdb, DataOut: [][]byte{out}, DataIn: [][]byte{in}}
	d.Execute(&c)
	return c
}

// wants checks the status and sense of a command, 0 for GOOD.
func (d *disk) wants(c lun.Command, key lun.SenseKey, code uint16) {
	d.t.Helper()
	if key == lun.NoSense {
		if c.Status != lun.Good {
			d.t.Errorf("%x: status %#x, sense %x; want GOOD", c.CDB, c.Status, c.Sense)
		}
		return
	}
	if c.Status != lun.CheckCondition || lun.SenseKey(c.Sense[2]) != key || uint16(c.Sense[12])<<8|uint16(c.Sense[13]) != code {
		d.t.Errorf("%x: status %#x, sense %x; want %#x/%#x", c.CDB, c.Status, c.Sense, key, code)
	}
}

func write10(lba, blocks, flags byte) []byte {
	return []byte{0x2a, flags, 0, 0, 0, lba, 0, 0, blocks, 0}
}
func read10(lba, blocks byte) []byte { return []byte{0x28, 0, 0, 0, 0, lba, 0, 0, blocks, 0} }

var (
	synchronize = []byte{0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	unmap       = []byte{0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0}
)

// TestRequests looks in nbdkit's log for what the commands of a disk become.
func TestRequests(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	k := nbdkit(t, "--filter=log", "memory", "1M", "logfile="+path)
	d := newDisk(t, k.open(nbd.Options{}), lun.DiskOptions{Thin: true})
	data := make([]byte, 512)
	for _, c := range []struct {
		cdb, out []byte
		want     string
	}{
		{write10(1, 1, 0), data, "Write id=N offset=0x200 count=0x200 ..."},
		{write10(2, 1, 8), data, "Write id=N offset=0x400 count=0x200 fua=1 ..."},
		{synchronize, nil, "Flush id=N ..."},
		{read10(3, 1), nil, "Read id=N offset=0x600 count=0x200 ..."},
		{unmap, []byte{0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0, 0, 0}, "Zero id=N offset=0x1000 count=0x1000 trim=1 ..."},
		{[]byte{0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 24, 0, 0}, nil, "Extents id=N offset=0x0 count=0x100000 req_one=1 ..."},
	} {
		before := logged(t, path)
		d.wants(d.run(c.cdb, c.out, make([]byte, 512)), lun.NoSense, 0)
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			got := strings.TrimPrefix(logged(t, path), before)
			if matches(got, c.want) {
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("%x became\n%s\nwant %s", c.cdb, got, c.want)
				break
			}
		}
	}
}

func logged(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// matches looks for the words of want in one line, with any number for id.
func matches(log, want string) bool {
	for line := range strings.Lines(log) {
		all := true
		for _, word := range strings.Fields(want) {
			if word != "id=N" && word != "..." && !strings.Contains(line, word) {
				all = false
			}
		}
		if all {
			return true
		}
	}
	return false
}

// TestErrors has the server fail requests: the sense data says of what kind.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		errno string
		cdb   []byte
		key   lun.SenseKey
		code  uint16
	}{
		{"EIO", write10(0, 1, 0), lun.MediumError, lun.ASCWriteError},
		{"ENOSPC", write10(0, 1, 0), lun.DataProtect, lun.ASCSpaceAllocationFailed},
		{"EIO", read10(0, 1), lun.MediumError, lun.ASCUnrecoveredReadError},
		{"EINVAL", write10(0, 1, 0), lun.HardwareError, lun.ASCInternalTargetFailure},
	} {
		d := newDisk(t, nbdkit(t, "--filter=error", "memory", "1M", "error="+c.errno, "error-rate=100%").open(nbd.Options{}), lun.DiskOptions{})
		d.wants(d.run(c.cdb, make([]byte, 512), make([]byte, 512)), c.key, c.code)
	}
}

// A slow server is waited for, with its answers in any order; one that is slower
// than the time-out is given up.
func TestSlowServer(t *testing.T) {
	k := nbdkit(t, "--filter=delay", "memory", "1M", "delay-read=200ms")
	s := k.open(nbd.Options{Connections: 2})
	defer s.Close()
	if _, err := s.WriteAt([]byte("abc"), 0); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			p := make([]byte, 3)
			if _, err := s.ReadAt(p, 0); err != nil || string(p) != "abc" {
				t.Errorf("read %q, %v", p, err)
			}
		})
	}
	wg.Wait()
	k = nbdkit(t, "--filter=delay", "memory", "1M", "delay-read=600")
	s = k.open(nbd.Options{Timeout: 100 * time.Millisecond})
	defer s.Close()
	if _, err := s.ReadAt(make([]byte, 3), 0); !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "no answer within") {
		t.Errorf("ReadAt: %v; want that there was no answer", err)
	}
}

// TestReconnect has the server killed and started again on the same file: what
// was in flight is done, and what was written and not flushed is told of, once.
func TestReconnect(t *testing.T) {
	for _, connections := range []int{1, 4} {
		image := filepath.Join(t.TempDir(), "image")
		if err := os.WriteFile(image, make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		k := nbdkit(t, "file", image)
		s := k.open(nbd.Options{Connections: connections, Reconnect: 2 * time.Minute})
		defer s.Close()
		p := make([]byte, 4096)
		if _, err := s.WriteAt(bytes.Repeat([]byte{1}, 4096), 0); err != nil {
			t.Fatal(err)
		}
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		// Nothing is unflushed: nobody need know.
		k.kill()
		k.start()
		if _, err := s.ReadAt(p, 0); err != nil || p[0] != 1 {
			t.Fatalf("read %d, %v", p[0], err)
		}
		for range 2 * connections {
			if err := s.Sync(); err != nil {
				t.Errorf("Sync with nothing lost: %v", err)
			}
		}
		// Now something is.
		if _, err := s.WriteAt(bytes.Repeat([]byte{2}, 4096), 4096); err != nil {
			t.Fatal(err)
		}
		k.kill()
		back := make(chan struct{})
		go func() {
			defer close(back)
			k.start()
		}()
		failed := 0
		for range 2 * connections {
			if err := s.Sync(); errors.Is(err, syscall.EIO) {
				failed++
			} else if err != nil {
				t.Errorf("Sync: %v; want EIO", err)
			}
		}
		<-back
		if failed != 1 {
			t.Errorf("%d connections: %d of the flushes told of the loss, want 1", connections, failed)
		}
		if _, err := s.WriteAt(bytes.Repeat([]byte{3}, 4096), 8192); err != nil {
			t.Error(err)
		}
		if err := s.Sync(); err != nil {
			t.Error(err)
		}
	}
}

// TestNotBack has the server gone for good.
func TestNotBack(t *testing.T) {
	k := nbdkit(t, "memory", "1M")
	s := k.open(nbd.Options{Connections: 4, Reconnect: 50 * time.Millisecond})
	k.kill()
	for range 8 {
		if _, err := s.ReadAt(make([]byte, 512), 0); !errors.Is(err, syscall.EIO) {
			t.Errorf("ReadAt: %v; want EIO", err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestCloseWhileAway closes a store that tries to get its server back.
func TestCloseWhileAway(t *testing.T) {
	k := nbdkit(t, "memory", "1M")
	s := k.open(nbd.Options{Reconnect: time.Hour})
	k.kill()
	done := make(chan error, 1)
	go func() {
		_, err := s.ReadAt(make([]byte, 512), 0)
		done <- err
	}()
	time.Sleep(50 * time.Millisecond)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, store.ErrClosed) && !errors.Is(err, syscall.EIO) {
		t.Errorf("ReadAt: %v; want ErrClosed", err)
	}
}

// Several connections are made only if the server says that a flush on one is
// for all.
func TestConnections(t *testing.T) {
	for mode, want := range map[string]int{"auto": 3, "disable": 1} {
		path := filepath.Join(t.TempDir(), "log")
		s := nbdkit(t, "--filter=log", "--filter=multi-conn", "memory", "1M", "multi-conn-mode="+mode, "logfile="+path).open(nbd.Options{Connections: 3})
		if got := strings.Count(logged(t, path), " Connect export="); got != want {
			t.Errorf("%s: %d connections, want %d", mode, got, want)
		}
		s.Close()
	}
}

// TestNbdkitTLS has both sides show certificates, and several connections.
func TestNbdkitTLS(t *testing.T) {
	dir := t.TempDir()
	pool := certificates(t, dir)
	own, err := tls.LoadX509KeyPair(filepath.Join(dir, "server-cert.pem"), filepath.Join(dir, "server-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	k := nbdkit(t, "--tls=require", "--tls-verify-peer", "--tls-certificates="+dir, "memory", "1M")
	address := "nbds+unix:///?socket=" + k.socket
	good := &tls.Config{RootCAs: pool, ServerName: "127.0.0.1", Certificates: []tls.Certificate{own}}
	s := open(t, address, nbd.Options{Connections: 4, TLS: good, Reconnect: 2 * time.Minute})
	defer s.Close()
	want := bytes.Repeat([]byte("tls"), 100000)
	if _, err := s.WriteDurable(want, 99); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if _, err := s.ReadAt(got, 99); err != nil || !bytes.Equal(got, want) {
		t.Errorf("ReadAt: %v; equal %v", err, bytes.Equal(got, want))
	}
	k.kill()
	k.start()
	if _, err := s.ReadAt(got, 99); err != nil {
		t.Errorf("after a reconnect: %v", err)
	}
	for name, c := range map[string]*tls.Config{
		"another name":       {RootCAs: pool, ServerName: "127.0.0.2", Certificates: good.Certificates},
		"the address's name": {RootCAs: pool, Certificates: good.Certificates},
		"an unknown CA":      {ServerName: "127.0.0.1", Certificates: good.Certificates},
		"no certificate":     {RootCAs: pool, ServerName: "127.0.0.1"},
	} {
		if s, err := nbd.Open(t.Context(), address, nbd.Options{TLS: c}); err == nil {
			s.Close()
			t.Errorf("with %s: no error", name)
		}
	}
}
