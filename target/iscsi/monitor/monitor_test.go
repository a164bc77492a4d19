package monitor_test

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lunlab/lun"
	"lunlab/lun/store/mem"
	"lunlab/target"
	"lunlab/target/iscsi"
	"lunlab/target/iscsi/monitor"
)

// server has one target with a LUN 1.
func server(t *testing.T) *iscsi.Server {
	t.Helper()
	st, err := mem.New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	disk, err := lun.NewDisk(st, lun.DiskOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { disk.Close() })
	d := target.New()
	if _, err := d.Add(1, disk, target.Limits{}); err != nil {
		t.Fatal(err)
	}
	srv, err := iscsi.NewServer(iscsi.Options{Targets: []*iscsi.Target{{Name: "iqn.2026-01.example:t", Device: d}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.Close() })
	return srv
}

func TestHandlers(t *testing.T) {
	srv := server(t)
	for _, tt := range []struct {
		h     http.Handler
		path  string
		wants []string
	}{
		{monitor.Metrics(srv), "/metrics", []string{
			`lunlab_lun_in_flight{lun="1",target="iqn.2026-01.example:t"} 0` + "\n",
			`lunlab_lun_task_set_full_total{lun="1",target="iqn.2026-01.example:t"} 0` + "\n",
			"lunlab_sessions 0\n",
		}},
		{monitor.Status(srv), "/status", []string{`"iqn.2026-01.example:t"`}},
	} {
		w := httptest.NewRecorder()
		tt.h.ServeHTTP(w, httptest.NewRequest("GET", tt.path, nil))
		for _, want := range tt.wants {
			if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), want) {
				t.Errorf("%s: no %s in status %d:\n%s", tt.path, want, w.Code, w.Body)
			}
		}
	}
}

func TestListenUnix(t *testing.T) {
	dir := t.TempDir()
	file, live, dead := filepath.Join(dir, "file"), filepath.Join(dir, "live"), filepath.Join(dir, "dead")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if ln, err := monitor.ListenUnix(file); !errors.Is(err, monitor.ErrInUse) {
		t.Errorf("on a file: %v, %v", ln, err)
	}
	if b, err := os.ReadFile(file); string(b) != "x" {
		t.Errorf("the file: %q, %v", b, err)
	}
	ln, err := monitor.ListenUnix(live)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if ln, err := monitor.ListenUnix(live); !errors.Is(err, monitor.ErrInUse) {
		t.Errorf("on a socket in use: %v, %v", ln, err)
	}
	old, err := net.Listen("unix", dead)
	if err != nil {
		t.Fatal(err)
	}
	old.(*net.UnixListener).SetUnlinkOnClose(false)
	old.Close()
	if ln, err = monitor.ListenUnix(dead); err != nil {
		t.Fatal(err)
	}
	s := monitor.Server{Log: slog.New(slog.DiscardHandler)}
	s.Serve(ln, monitor.Status(server(t)))
	c, err := net.Dial("unix", dead)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	s.Close()
	if _, err := net.Dial("unix", dead); err == nil {
		t.Error("it is still served")
	}
}
