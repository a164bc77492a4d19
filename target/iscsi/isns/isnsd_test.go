package isns_test

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"lunlab/target/iscsi/isns"
	"lunlab/test/need"
)

// daemon is Open-iSNS's server.
type daemon struct {
	t    *testing.T
	dir  string
	addr string
	cmd  *exec.Cmd
	log  log
}

// log is what a process says, while it does.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newDaemon(t *testing.T) *daemon {
	t.Helper()
	need.Program(t, "isnsd", "open-isns-server")
	need.Program(t, "isnsadm", "open-isns-utils")
	d := &daemon{t: t, dir: t.TempDir()}
	for range 10 { // the port that was free may be taken meanwhile
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		d.addr = ln.Addr().String()
		ln.Close()
		if d.start() {
			t.Cleanup(d.stop)
			return d
		}
		d.stop()
	}
	t.Fatalf("isnsd doesn't come up:\n%s", d.log.String())
	return nil
}

func (d *daemon) config(name, more string) string {
	d.t.Helper()
	path := filepath.Join(d.dir, name)
	text := fmt.Sprintf("SourceName = iqn.2026-01.example.%s:1\nHostName = localhost\nSecurity = 0\nSLPRegister = 0\nPIDFile = %s/pid\nControlSocket = %s/ctl\n%s",
		name, d.dir, d.dir, more)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
	return path
}

// start runs it, with an empty database, and tells whether it answers.
func (d *daemon) start() bool {
	d.t.Helper()
	conf := d.config("server", "BindAddress = "+d.addr+"\nDefaultDiscoveryDomain = 1\nRegistrationPeriod = 6\nESIMinInterval = 1\nESIMaxInterval = 1\nESIRetries = 3\n")
	d.cmd = exec.Command("isnsd", "-4", "-f", "-c", conf, "-d", "esi")
	d.cmd.Stdout, d.cmd.Stderr = &d.log, &d.log
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if nc, err := net.Dial("tcp", d.addr); err == nil {
			nc.Close()
			return true
		}
	}
	return false
}

func (d *daemon) stop() {
	if d.cmd != nil {
		d.cmd.Process.Signal(syscall.SIGKILL)
		d.cmd.Wait()
		d.cmd = nil
	}
}

// list is what isnsadm lists of a kind.
func (d *daemon) list(kind string) string {
	d.t.Helper()
	// It fails if there is nothing.
	out, _ := exec.Command("isnsadm", "-c", d.config("admin", "ServerAddress = "+d.addr+"\n"), "--list", kind).CombinedOutput()
	return string(out)
}

// until waits until what isnsadm lists has all of wants; none means that there is
// nothing.
func (d *daemon) until(kind string, wants ...string) {
	d.t.Helper()
	var out string
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		out = d.list(kind)
		missing := slices.ContainsFunc(wants, func(w string) bool { return !strings.Contains(out, w) })
		if !missing && (len(wants) > 0 || !strings.Contains(out, "Object")) {
			return
		}
	}
	d.t.Fatalf("isnsadm --list %s says\n%s\nwant %q; the server's log:\n%s", kind, out, wants, d.log.String())
}

// TestDaemon registers with Open-iSNS's server, which is restarted without its
// database meanwhile.
func TestDaemon(t *testing.T) {
	d := newDaemon(t)
	c, err := isns.Start(isns.Options{
		Server: d.addr, Entity: "lunlab-test",
		Targets: []isns.Target{{Name: "iqn.2026-01.example:one", Alias: "the first"}, {Name: "iqn.2026-01.example:two", Groups: []uint16{7}}},
		Portals: []isns.Portal{{Addr: netip.MustParseAddrPort("127.0.0.1:3261"), Group: 1}, {Addr: netip.MustParseAddrPort("0.0.0.0:3262"), Group: 7}},
		Retry:   100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want := func() {
		t.Helper()
		d.until("entities", `Entity identifier = "lunlab-test"`, "Entity protocol = iSCSI")
		d.until("nodes", `iSCSI name = "iqn.2026-01.example:one"`, `iSCSI name = "iqn.2026-01.example:two"`, "node type = Target", `alias = "the first"`)
		d.until("portals", "port = 3261/tcp", "port = 3262/tcp", "ESI port", "SCN port")
	}
	want()
	// One target is reached by both portals, the other by one.
	groups := d.list("portal-groups")
	if n := strings.Count(groups, `name = "iqn.2026-01.example:one"`); n != 2 || strings.Count(groups, `name = "iqn.2026-01.example:two"`) != 1 || !strings.Contains(groups, "tag = 7") {
		t.Errorf("portal groups:\n%s", groups)
	}
	answered := func() bool { return strings.Contains(d.log.String(), "Good ESI response from [::ffff:127.0.0.1]:3262") }
	for deadline := time.Now().Add(2 * time.Minute); !answered(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no inquiry was answered:\n%s", d.log.String())
		}
	}
	d.stop()
	if !d.start() {
		t.Fatalf("isnsd doesn't come up again:\n%s", d.log.String())
	}
	want()
	c.Close()
	d.until("entities")
	d.until("nodes")
}
