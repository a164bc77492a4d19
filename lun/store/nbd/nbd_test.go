package nbd_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"lunlab/lun"
	"lunlab/lun/store"
	"lunlab/lun/store/nbd"
	"lunlab/lun/store/storetest"
	"lunlab/test/need"
)

// serve runs qemu-nbd for an image of size bytes, and returns its socket and
// process. More arguments may follow.
func serve(t *testing.T, size int64, args ...string) (socket string, cmd *exec.Cmd) {
	t.Helper()
	program := need.Program(t, "qemu-nbd", "qemu-utils")
	dir := t.TempDir()
	image, socket := filepath.Join(dir, "image"), filepath.Join(dir, "s")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, size); err != nil {
		t.Fatal(err)
	}
	args = append([]string{"-k", socket, "-f", "raw", "-t", "--discard=unmap", "--shared=8", "-x", "disk"}, args...)
	cmd = exec.Command(program, append(args, image)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	for range 6000 {
		if c, err := net.Dial("unix", socket); err == nil {
			c.Close()
			return socket, cmd
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("qemu-nbd didn't start: %s", stderr.Bytes())
	return "", nil
}

func open(t *testing.T, address string, o nbd.Options) *nbd.Store {
	t.Helper()
	s, err := nbd.Open(t.Context(), address, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func unix(socket string) string { return "nbd+unix:///disk?socket=" + socket }

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		socket, _ := serve(t, storetest.Size)
		return open(t, unix(socket), nbd.Options{Connections: 4})
	}, storetest.Options{})
}

func TestIsSparse(t *testing.T) {
	socket, _ := serve(t, 1<<30)
	s := open(t, unix(socket), nbd.Options{})
	defer s.Close()
	if _, err := s.WriteAt(bytes.Repeat([]byte{1}, 1<<20), 512<<20); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		off    int64
		mapped bool
		n      int64
	}{{0, false, 512 << 20}, {512 << 20, true, 1 << 20}} {
		mapped, n, err := s.Extent(c.off, 1<<30)
		if mapped != c.mapped || n != c.n || err != nil {
			t.Errorf("Extent(%d) = %v, %d, %v; want %v, %d", c.off, mapped, n, err, c.mapped, c.n)
		}
	}
	if err := s.Unmap(0, 1<<30); err != nil {
		t.Fatal(err)
	}
	if mapped, n, err := s.Extent(512<<20, 512<<20); mapped || n != 512<<20 || err != nil {
		t.Errorf("Extent after an unmap = %v, %d, %v", mapped, n, err)
	}
}

// Data longer than a request may be goes in several.
func TestLargeTransfer(t *testing.T) {
	socket, _ := serve(t, 80<<20)
	s := open(t, unix(socket), nbd.Options{})
	defer s.Close()
	want := bytes.Repeat([]byte("0123456789abcde"), 70<<20/15)
	if n, err := s.WriteAt(want, 1<<20); n != len(want) || err != nil {
		t.Fatalf("WriteAt = %d, %v", n, err)
	}
	got := make([]byte, len(want))
	if n, err := s.ReadAt(got, 1<<20); n != len(got) || err != nil || !bytes.Equal(got, want) {
		t.Fatalf("ReadAt = %d, %v; equal %v", n, err, bytes.Equal(got, want))
	}
}

func TestReadOnly(t *testing.T) {
	socket, _ := serve(t, 1<<20, "-r")
	s := open(t, unix(socket), nbd.Options{})
	defer s.Close()
	if !store.ReadOnly(s) {
		t.Error("it isn't read-only")
	}
	if _, err := s.WriteAt([]byte{1}, 0); !errors.Is(err, syscall.EROFS) {
		t.Errorf("WriteAt: %v; want EROFS", err)
	}
	if err := s.Unmap(0, 512); !errors.Is(err, syscall.EROFS) {
		t.Errorf("Unmap: %v; want EROFS", err)
	}
	if _, err := s.ReadAt(make([]byte, 512), 0); err != nil {
		t.Error(err)
	}
	if err := s.Sync(); err != nil {
		t.Error(err)
	}
}

// A server that dies fails the calls in flight and all later ones: nothing
// hangs, and nothing is said to be durable.
func TestServerDies(t *testing.T) {
	socket, cmd := serve(t, 64<<20)
	s := open(t, unix(socket), nbd.Options{Connections: 2})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			p := make([]byte, 1<<20)
			for {
				if _, err := s.WriteAt(p, int64(i)<<20); err != nil {
					if !errors.Is(err, syscall.EIO) {
						t.Errorf("WriteAt: %v; want EIO", err)
					}
					return
				}
			}
		})
	}
	time.Sleep(20 * time.Millisecond)
	cmd.Process.Kill()
	wg.Wait()
	for range 2 {
		s.Sync() // tells of one connection each
	}
	if err := s.Sync(); !errors.Is(err, syscall.EIO) {
		t.Errorf("Sync: %v; want EIO", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := s.Sync(); !errors.Is(err, store.ErrClosed) {
		t.Errorf("Sync after Close: %v; want ErrClosed", err)
	}
}

// A disk on an NBD server: what a LUN of it looks like.
func TestDisk(t *testing.T) {
	socket, _ := serve(t, 64<<20)
	d, err := lun.NewDisk(open(t, unix(socket), nbd.Options{}), lun.DiskOptions{Thin: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	n := &lun.Nexus{Name: "n"}
	run := func(cdb, out, in []byte) lun.Status {
		c := lun.Command{Nexus: n, CDB: cdb, DataOut: [][]byte{out}, DataIn: [][]byte{in}}
		d.Execute(&c)
		return c.Status
	}
	run(make([]byte, 6), nil, nil)
	want, got := bytes.Repeat([]byte{9}, 4096), make([]byte, 4096)
	if s := run([]byte{0x2a, 8, 0, 0, 0, 7, 0, 0, 8, 0}, want, nil); s != lun.Good {
		t.Fatalf("WRITE: status %#x", s)
	}
	if s := run([]byte{0x28, 0, 0, 0, 0, 7, 0, 0, 8, 0}, nil, got); s != lun.Good || !bytes.Equal(got, want) {
		t.Errorf("READ: status %#x, equal %v", s, bytes.Equal(got, want))
	}
}

func TestOpenErrors(t *testing.T) {
	socket, _ := serve(t, 1<<20)
	for address, want := range map[string]string{
		"http://x/":                            "doesn't begin with nbd:",
		"nbd:///disk":                          "names no host",
		"nbd+unix:///disk":                     "no socket=",
		"nbd+unix:///other?socket=" + socket:   "no such export",
		"nbds+unix:///disk?socket=" + socket:   "TLS",
		"nbd+unix:///disk?socket=/none":        "no such file",
		"nbd://x/" + strings.Repeat("a", 5000): "longer than 4096",
		"nbd+unix://%zz":                       "invalid",
	} {
		s, err := nbd.Open(t.Context(), address, nbd.Options{})
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Open(%.60s) = %v; want an error with %q", address, err, want)
		}
	}
	// A server that says nothing.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := nbd.Open(ctx, "nbd://"+ln.Addr().String()+"/", nbd.Options{}); err == nil {
		t.Error("Open of a server that says nothing gave no error")
	}
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	pool := certificates(t, dir)
	port := freePort(t)
	program := need.Program(t, "qemu-nbd", "qemu-utils")
	image := filepath.Join(dir, "image")
	if err := os.WriteFile(image, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--object", "tls-creds-x509,id=t,endpoint=server,verify-peer=no,dir="+dir, "--tls-creds", "t",
		"-b", "127.0.0.1", "-p", strconv.Itoa(port), "-f", "raw", "-t", "--shared=8", "-x", "disk", image)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	address := "127.0.0.1:" + strconv.Itoa(port) + "/disk"
	var s *nbd.Store
	var err error
	for range 6000 {
		if s, err = nbd.Open(t.Context(), "nbds://"+address, nbd.Options{TLS: &tls.Config{RootCAs: pool, ServerName: "127.0.0.1"}}); !errors.Is(err, syscall.ECONNREFUSED) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	want, got := []byte("secret"), make([]byte, 6)
	if _, err := s.WriteAt(want, 1000); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ReadAt(got, 1000); err != nil || !bytes.Equal(got, want) {
		t.Errorf("read %q, %v", got, err)
	}
	if _, err := nbd.Open(t.Context(), "nbd://"+address, nbd.Options{}); err == nil || !strings.Contains(err.Error(), "TLS is required") {
		t.Errorf("without TLS: %v", err)
	}
	if _, err := nbd.Open(t.Context(), "nbds://"+address, nbd.Options{}); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("with a certificate that nobody vouches for: %v", err)
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port
}

// certificates makes a CA and a server certificate as qemu-nbd looks for them.
func certificates(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	now := time.Now()
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "server"}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &key.PublicKey, key)
	check(err)
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, key)
	check(err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	check(err)
	for name, block := range map[string]*pem.Block{
		"ca-cert.pem": {Type: "CERTIFICATE", Bytes: caDER}, "server-cert.pem": {Type: "CERTIFICATE", Bytes: leafDER}, "server-key.pem": {Type: "PRIVATE KEY", Bytes: keyDER},
	} {
		check(os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600))
	}
	cert, err := x509.ParseCertificate(caDER)
	check(err)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return pool
}
