package monitor

import (
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"lunlab/target/iscsi"
)

// Metrics answers GET /metrics for Prometheus.
func Metrics(srv *iscsi.Server) http.Handler {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(collector{srv})
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
	return mux
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
