package main

import (
	"io"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"lunlab/target/iscsi"
)

func TestMetrics(t *testing.T) {
	s, err := openServed(defaultLab(""))
	if err != nil {
		t.Fatal(err)
	}
	defer s.lab.Close()
	srv, err := iscsi.NewServer(iscsi.Options{Targets: s.targets})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(collector{srv})
	w := httptest.NewRecorder()
	promhttp.HandlerFor(r, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	b, _ := io.ReadAll(w.Body)
	for _, want := range []string{
		`lunlab_lun_in_flight{lun="1",target="iqn.2026-01.example.lunlab:lab"} 0`,
		`lunlab_lun_task_set_full_total{lun="0",target="iqn.2026-01.example.lunlab:lab"} 0`,
		"lunlab_sessions 0",
	} {
		if !strings.Contains(string(b), want+"\n") {
			t.Errorf("no %s in status %d:\n%s", want, w.Code, b)
		}
	}
}
