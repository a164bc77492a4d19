package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"lunlab/target/iscsi"
)

// noSocket as a path means that there is to be none.
const noSocket = "none"

// runtimeDir is the folder in which running servers have their sockets.
func runtimeDir() string {
	if d := os.Getenv("XDG_RUNTIME_DIR"); d != "" {
		return filepath.Join(d, "lunlab")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("lunlab-%d", os.Getuid()))
}

// serveStatus answers `lunlab status` on a unix socket, and Prometheus on an
// address if there is one. stop ends both.
func serveStatus(srv *iscsi.Server, log *slog.Logger, socket, metrics string, portal net.Addr) (stop func(), err error) {
	var servers []*http.Server
	stop = func() {
		for _, s := range servers {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			s.Shutdown(ctx)
			s.Close()
			cancel()
		}
	}
	serve := func(ln net.Listener, h http.Handler) {
		s := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
		servers = append(servers, s)
		go s.Serve(ln)
	}
	if metrics != "" {
		ln, err := net.Listen("tcp", metrics)
		if err != nil {
			return nil, fmt.Errorf("metrics: %w", listenError(metrics, err))
		}
		r := prometheus.NewRegistry()
		r.MustRegister(collector{srv})
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
		serve(ln, mux)
	}
	if socket == noSocket {
		return stop, nil
	}
	asked := socket != ""
	if !asked {
		// A name of its own for each portal, so that servers don't meet.
		socket = filepath.Join(runtimeDir(), portal.String()+".sock")
		os.MkdirAll(runtimeDir(), 0o700)
	}
	ln, err := listenUnix(socket)
	if err != nil && !asked {
		log.Warn("lunlab status won't find this server", "err", err)
		return stop, nil
	}
	if err != nil {
		stop()
		return nil, fmt.Errorf("status socket: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(srv.Status())
	})
	serve(ln, mux)
	return stop, nil
}

// listenUnix listens on a socket. One that a killed server left is replaced; one
// that somebody answers on is not, nor is a file of any other kind.
func listenUnix(path string) (net.Listener, error) {
	ln, err := net.Listen("unix", path)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return ln, err
	}
	fi, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if fi.Mode().Type() != os.ModeSocket {
		return nil, fmt.Errorf("%s is there already, and is no socket; choose another one: --socket PATH", path)
	}
	c, err := net.Dial("unix", path)
	switch {
	case err == nil:
		c.Close()
		return nil, fmt.Errorf("%s is in use by a running server; choose another one: --socket PATH", path)
	case !errors.Is(err, syscall.ECONNREFUSED): // refused: nobody listens on it
		return nil, fmt.Errorf("%s is there already, and may be in use; choose another one: --socket PATH (%w)", path, err)
	}
	if err := os.Remove(path); err != nil {
		return nil, err
	}
	return net.Listen("unix", path)
}

// collector gives Prometheus what Status says.
type collector struct{ srv *iscsi.Server }

var (
	lunLabels    = []string{"target", "lun"}
	descInFlight = prometheus.NewDesc("lunlab_lun_in_flight", "Commands in the logical unit's task set.", lunLabels, nil)
	descMost     = prometheus.NewDesc("lunlab_lun_in_flight_max", "The most that there were.", lunLabels, nil)
	descCommands = prometheus.NewDesc("lunlab_lun_commands_total", "Commands answered, by operation code.", append(lunLabels, "opcode"), nil)
	descStatuses = prometheus.NewDesc("lunlab_lun_statuses_total", "Commands answered, by SCSI status.", append(lunLabels, "status"), nil)
	descFull     = prometheus.NewDesc("lunlab_lun_task_set_full_total", "Commands refused with TASK SET FULL.", lunLabels, nil)
	descAborted  = prometheus.NewDesc("lunlab_lun_aborted_total", "Commands ended by task management.", lunLabels, nil)
	descRead     = prometheus.NewDesc("lunlab_lun_read_bytes_total", "Bytes of data-in.", lunLabels, nil)
	descWritten  = prometheus.NewDesc("lunlab_lun_written_bytes_total", "Bytes of data-out.", lunLabels, nil)
	descLatency  = prometheus.NewDesc("lunlab_lun_latency_seconds", "Time from a command's arrival to its answer, by quantile.", append(lunLabels, "quantile"), nil)
	descSessions = prometheus.NewDesc("lunlab_sessions", "Sessions.", nil, nil)
	descConns    = prometheus.NewDesc("lunlab_connections", "Connections.", nil, nil)
	descBuffers  = prometheus.NewDesc("lunlab_buffer_bytes", "Memory for data on its way.", nil, nil)
)

func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descInFlight, descMost, descCommands, descStatuses, descFull, descAborted,
		descRead, descWritten, descLatency, descSessions, descConns, descBuffers} {
		ch <- d
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	st := c.srv.Status()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(descSessions, float64(len(st.Sessions)))
	gauge(descConns, float64(st.Connections))
	gauge(descBuffers, float64(st.BufferBytes))
	for _, t := range st.Targets {
		for _, u := range t.LUNs {
			lun := fmt.Sprint(u.Number)
			gauge(descInFlight, float64(u.InFlight), t.Name, lun)
			gauge(descMost, float64(u.MostInFlight), t.Name, lun)
			counter(descFull, u.TaskSetFull, t.Name, lun)
			counter(descAborted, u.Aborted, t.Name, lun)
			counter(descRead, u.ReadBytes, t.Name, lun)
			counter(descWritten, u.WrittenBytes, t.Name, lun)
			for op, n := range u.Opcodes {
				counter(descCommands, n, t.Name, lun, fmt.Sprintf("0x%02x", op))
			}
			for s, n := range u.Statuses {
				counter(descStatuses, n, t.Name, lun, fmt.Sprintf("0x%02x", s))
			}
			gauge(descLatency, u.LatencyP50.Seconds(), t.Name, lun, "0.5")
			gauge(descLatency, u.LatencyP99.Seconds(), t.Name, lun, "0.99")
			gauge(descLatency, u.LatencyP999.Seconds(), t.Name, lun, "0.999")
		}
	}
}
