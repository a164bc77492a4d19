// Package conformance runs other people's clients and test suites against
// lunlab's targets. It has tests only.
package conformance

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
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
