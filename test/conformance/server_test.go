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

// server is a running `lunlab serve`.
type server struct {
	cmd     *exec.Cmd
	portal  string // "127.0.0.1:port"
	log     *strings.Builder
	out     *output
	drained chan struct{} // closed when it has closed its standard output
}

// launch runs `lunlab serve` on a free port. Whoever calls it has to see that it
// ends.
func launch(t *testing.T, args ...string) *server {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	s := &server{
		cmd: exec.Command(path, append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...),
		log: &strings.Builder{}, out: &output{}, drained: make(chan struct{}),
	}
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.cmd.Stderr = s.log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if p, ok := strings.CutPrefix(lines.Text(), "listening on "); ok {
			s.portal = p
			break
		}
	}
	go func() { io.Copy(s.out, stdout); close(s.drained) }()
	return s
}

// output is what a program that runs has said so far.
type output struct {
	mu   sync.Mutex
	said strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.said.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.said.String()
}

// kill kills the server (SIGKILL), and waits until it is gone.
func (s *server) kill() {
	s.cmd.Process.Kill()
	<-s.drained
	s.cmd.Wait()
}

// serve runs `lunlab serve` on a free port until the test ends, sees that it
// ends in order, and returns its portal, "127.0.0.1:port".
func serve(t *testing.T, args ...string) (portal string) {
	t.Helper()
	return launchInOrder(t, args...).portal
}

// launchInOrder is serve for one that the test has to do more with.
func launchInOrder(t *testing.T, args ...string) *server {
	t.Helper()
	s := launch(t, args...)
	t.Cleanup(func() {
		s.cmd.Process.Signal(os.Interrupt)
		kill := time.AfterFunc(20*time.Second, func() { s.cmd.Process.Kill() })
		<-s.drained
		if err := s.cmd.Wait(); err != nil {
			t.Errorf("lunlab serve ended with %v\n%s", err, s.log)
		}
		kill.Stop()
		if t.Failed() {
			t.Logf("lunlab serve logged:\n%s", s.log)
		}
	})
	if s.portal == "" {
		t.Fatalf("lunlab serve didn't say where it listens")
	}
	return s
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
