package control_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lunlab/lun"
	"lunlab/lun/fault"
	"lunlab/lun/fault/control"
)

// nothing is a unit that answers everything with GOOD.
type nothing struct{}

func (nothing) Execute(*lun.Command)                 {}
func (nothing) DataLength([]byte) (out, in uint64)   { return 0, 0 }
func (nothing) Blocking() bool                       { return false }
func (nothing) Notify(n *lun.Nexus, event lun.Event) {}

// toServer sends every request there.
type toServer struct{ host string }

func (t toServer) RoundTrip(r *http.Request) (*http.Response, error) {
	r.URL.Host = t.host
	return http.DefaultTransport.RoundTrip(r)
}

func serve(t *testing.T, h http.Handler) control.Client {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	return control.Client{Name: "test", HTTP: &http.Client{Transport: toServer{u.Host}}}
}

func TestControl(t *testing.T) {
	ctx := t.Context()
	iscsi := []lun.Link{lun.ConnectionLink, lun.SessionLink}
	list := []control.LUN{
		{Target: "iqn.2026-01.example:a", Number: 0, Unit: fault.New(nothing{}), Links: iscsi},
		{Target: "iqn.2026-01.example:a", Number: 7, Unit: fault.New(nothing{}), Links: iscsi},
	}
	c := serve(t, control.Handler(func() []control.LUN { return list }))
	for _, tt := range []struct{ lun, rule, err string }{
		{"7", "status=busy", ""},
		{"a/7", "delay=1s", ""},
		{"iqn.2026-01.example:a/7", "drop=session", ""},
		{"a/0", "status=busy", ""},
		{"a/0", "status=bussy", "status=bussy: want good"},
		{"a/0", "drop=ring", "has no ring that could be dropped; want drop=connection or drop=session"},
		{"b/0", "never", "there is no LUN b/0; there are:\n  iqn.2026-01.example:a/0\n  iqn"},
		{"a/1", "never", "there is no LUN a/1"},
		{"a/x", "never", "is no LUN"},
		{"", "never", "name the LUN"},
		{"a/0", strings.Repeat("x", 70<<10), "too large"},
	} {
		_, err := c.Add(ctx, tt.lun, tt.rule)
		if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("add %q %.20q: %v, want %q", tt.lun, tt.rule, err, tt.err)
		}
	}
	got, err := c.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	want := []control.Rules{
		{Target: "iqn.2026-01.example:a", Number: 0, Rules: []fault.Status{{ID: 1, Rule: "status=busy"}}},
		{Target: "iqn.2026-01.example:a", Number: 7, Rules: []fault.Status{{ID: 1, Rule: "status=busy"}, {ID: 2, Rule: "delay=1s"}, {ID: 3, Rule: "drop=session"}}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("rules (-want +got):\n%s", d)
	}

	// With a second target, a number isn't enough.
	list = append(list, control.LUN{Target: "b", Number: 7, Unit: fault.New(nothing{})})
	if _, err := c.Add(ctx, "7", "never"); err == nil || !strings.Contains(err.Error(), "several targets; choose one:") {
		t.Errorf("LUN 7 of two targets: %v", err)
	}
	for _, tt := range []struct {
		lun     string
		ids     []uint64
		removed int
		err     string
	}{
		{"a/7", []uint64{2, 9}, 0, "no such rule: 9 on LUN 7 of iqn"},
		{"", []uint64{1}, 0, "name the LUN whose rules these are"},
		{"a/7", []uint64{3, 1}, 2, ""},
		{"a/7", nil, 1, ""},
		{"", nil, 1, ""},
		{"", nil, 0, ""},
	} {
		n, err := c.Remove(ctx, tt.lun, tt.ids...)
		if n != tt.removed || tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("remove %v of %q: %d, %v; want %d, %q", tt.ids, tt.lun, n, err, tt.removed, tt.err)
		}
	}
}

// TestOthers talks to what isn't such a server.
func TestOthers(t *testing.T) {
	c := serve(t, http.NotFoundHandler())
	if _, err := c.List(t.Context()); err == nil || err.Error() != "test: 404 Not Found" {
		t.Errorf("a server without faults: %v", err)
	}
	c.HTTP = &http.Client{Transport: toServer{"127.0.0.1:1"}}
	if _, err := c.List(t.Context()); err == nil || !strings.Contains(err.Error(), "no server answers on test") {
		t.Errorf("no server: %v", err)
	}
}
