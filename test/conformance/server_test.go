// Package conformance runs other people's clients and test suites against
// lunlab's targets. It has tests only.
package conformance

import (
	"bufio"
	"fmt"
	"io"
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
	"lunlab/lun/store/mem"
	"lunlab/target"
	"lunlab/target/iscsi"
)

const targetName = "iqn.2026-01.example.lunlab:lab"

// program builds lunlab, once for all tests.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "lunlab-conformance-")
	if err != nil {
		return "", err
	}
	buildDir = dir
	path := filepath.Join(dir, "lunlab")
	out, err := exec.Command("go", "build", "-o", path, "lunlab/cmd/lunlab").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

var buildDir string

func TestMain(m *testing.M) {
	code := m.Run()
	if buildDir != "" {
		os.RemoveAll(buildDir)
	}
	os.Exit(code)
}

// serve runs `lunlab serve` on a free port until the test ends, sees that it
// ends in order, and returns its portal, "127.0.0.1:port".
func serve(t *testing.T, args ...string) (portal string) {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	log := &strings.Builder{}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if p, ok := strings.CutPrefix(lines.Text(), "listening on "); ok {
			portal = p
			break
		}
	}
	drained := make(chan struct{})
	go func() { io.Copy(io.Discard, stdout); close(drained) }()
	t.Cleanup(func() {
		cmd.Process.Signal(os.Interrupt)
		kill := time.AfterFunc(20*time.Second, func() { cmd.Process.Signal(syscall.SIGKILL) })
		<-drained
		if err := cmd.Wait(); err != nil {
			t.Errorf("lunlab serve ended with %v\n%s", err, log)
		}
		kill.Stop()
		if t.Failed() {
			t.Logf("lunlab serve logged:\n%s", log)
		}
	})
	if portal == "" {
		t.Fatalf("lunlab serve didn't say where it listens")
	}
	return portal
}

// serveHere serves one disk in this process, on as many portals as asked, and
// returns them.
func serveHere(t *testing.T, portals int, size int64, o lun.DiskOptions) []string {
	t.Helper()
	s, err := mem.New(size)
	if err != nil {
		t.Fatal(err)
	}
	d := target.New()
	o.AbortTasks = func(n *lun.Nexus) { d.AbortTasksOf(0, n) }
	disk, err := lun.NewDisk(s, o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Add(0, disk, target.Limits{}); err != nil {
		t.Fatal(err)
	}
	srv, err := iscsi.NewServer(iscsi.Options{Targets: []*iscsi.Target{{Name: targetName, Device: d}}})
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for range portals {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, ln.Addr().String())
		go srv.Serve(ln)
	}
	t.Cleanup(func() { srv.Close(); disk.Close() })
	return list
}

func url(portal string, lun int) string {
	return fmt.Sprintf("iscsi://%s/%s/%d", portal, targetName, lun)
}

// run runs a client and returns what it printed. It fails the test if the client
// fails, or takes longer than a minute.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	kill := time.AfterFunc(time.Minute, func() {
		if cmd.Process != nil {
			cmd.Process.Kill()
		}
	})
	defer kill.Stop()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return string(out)
}
