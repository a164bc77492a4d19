package iscsi

import (
	"cmp"
	"slices"
	"time"
)

// Status is what a server is doing, as of now. Its JSON is what `lunlab status
// --json` prints.
type Status struct {
	Targets  []TargetStatus  `json:"targets"`
	Sessions []SessionStatus `json:"sessions"`

	// Connections counts all, those that haven't logged in among them.
	Connections int `json:"connections"`

	// BufferBytes is memory for data on its way.
	BufferBytes int64 `json:"buffer_bytes"`
}

// TargetStatus is one target and its logical units.
type TargetStatus struct {
	Name     string      `json:"name"`
	CanQueue int         `json:"can_queue"`
	HWQueues int         `json:"hw_queues"`
	LUNs     []LUNStatus `json:"luns"`
}

// LUNStatus is one logical unit.
type LUNStatus struct {
	Number       uint16 `json:"lun"`
	CmdPerLUN    int    `json:"cmd_per_lun,omitempty"` // none if there is no limit
	InFlight     int    `json:"in_flight"`
	MostInFlight int    `json:"most_in_flight"`
	TaskSetFull  uint64 `json:"task_set_full"`
	Aborted      uint64 `json:"aborted"`
	ReadBytes    uint64 `json:"read_bytes"`
	WrittenBytes uint64 `json:"written_bytes"`

	// Opcodes and Statuses count answered commands, by code.
	Opcodes  map[uint8]uint64 `json:"opcodes"`
	Statuses map[uint8]uint64 `json:"statuses"`

	// Latency percentiles in nanoseconds, of all answered commands.
	LatencyP50  time.Duration `json:"latency_p50_ns"`
	LatencyP99  time.Duration `json:"latency_p99_ns"`
	LatencyP999 time.Duration `json:"latency_p999_ns"`
}

// SessionStatus is one session.
type SessionStatus struct {
	Initiator    string             `json:"initiator"`
	ISID         string             `json:"isid"`
	TSIH         uint16             `json:"tsih"`
	Target       string             `json:"target,omitempty"` // none in a discovery session
	PortalGroup  uint16             `json:"portal_group"`
	InFlight     int                `json:"in_flight"`
	MostInFlight int                `json:"most_in_flight"`
	ExpCmdSN     uint32             `json:"exp_cmd_sn"`
	MaxCmdSN     uint32             `json:"max_cmd_sn"`
	Params       Params             `json:"params"`
	Connections  []ConnectionStatus `json:"connections"`
}

// ConnectionStatus is one connection of a session.
type ConnectionStatus struct {
	CID                      uint16    `json:"cid"`
	From                     string    `json:"from"`
	To                       string    `json:"to"`
	Since                    time.Time `json:"since"`
	HeaderDigest             bool      `json:"header_digest"`
	DataDigest               bool      `json:"data_digest"`
	MaxRecvDataSegmentLength uint32    `json:"max_recv_data_segment_length"`
	StatSN                   uint32    `json:"stat_sn"`
	SentBytes                uint64    `json:"sent_bytes"`
}

// Status takes a snapshot. It holds up no commands for longer than it takes to
// read a counter.
func (s *Server) Status() Status {
	st := Status{Targets: []TargetStatus{}, Sessions: []SessionStatus{}, BufferBytes: s.pool.used.Load()}
	for _, t := range s.sortedTargets() {
		ts := TargetStatus{Name: t.Name, CanQueue: t.CanQueue, HWQueues: t.HWQueues, LUNs: []LUNStatus{}}
		for _, u := range t.Device.Units() {
			c := u.Stats()
			l := LUNStatus{
				Number: u.Number(), CmdPerLUN: u.CmdPerLUN(),
				InFlight: u.InFlight(), MostInFlight: u.MostInFlight(), TaskSetFull: u.TaskSetFull(),
				Aborted: c.Aborted, ReadBytes: c.Read, WrittenBytes: c.Written,
				Opcodes: c.Opcodes, Statuses: map[uint8]uint64{},
				LatencyP50: c.Latency.Quantile(0.5), LatencyP99: c.Latency.Quantile(0.99), LatencyP999: c.Latency.Quantile(0.999),
			}
			for k, v := range c.Statuses {
				l.Statuses[uint8(k)] = v
			}
			ts.LUNs = append(ts.LUNs, l)
		}
		st.Targets = append(st.Targets, ts)
	}
	s.mu.Lock()
	st.Connections = len(s.conns)
	s.mu.Unlock()
	for _, x := range s.listSessions() {
		st.Sessions = append(st.Sessions, x.status())
	}
	slices.SortFunc(st.Sessions, func(a, b SessionStatus) int { return cmp.Compare(a.TSIH, b.TSIH) })
	return st
}

func (x *session) status() SessionStatus {
	st := SessionStatus{
		Initiator: x.initiator, ISID: isidString(x.isid), TSIH: x.tsih, PortalGroup: x.tag,
		ExpCmdSN: x.exp.Load(), MaxCmdSN: x.max.Load(), Params: x.params, Connections: []ConnectionStatus{},
	}
	if x.tgt != nil {
		st.Target = x.tgt.Name
	}
	x.mu.Lock()
	st.InFlight, st.MostInFlight = x.inFlight, x.most
	var conns []*conn
	for _, c := range x.conns {
		if c.phase.Load() == phaseFull {
			conns = append(conns, c)
		}
	}
	x.mu.Unlock()
	for _, c := range conns {
		c.out.mu.Lock()
		sn := c.out.statSN
		c.out.mu.Unlock()
		st.Connections = append(st.Connections, ConnectionStatus{
			CID: c.cid, From: c.nc.RemoteAddr().String(), To: c.nc.LocalAddr().String(), Since: c.began,
			HeaderDigest: c.digests.header, DataDigest: c.digests.data,
			MaxRecvDataSegmentLength: c.step.Load(), StatSN: sn, SentBytes: c.out.bytes.Load(),
		})
	}
	slices.SortFunc(st.Connections, func(a, b ConnectionStatus) int { return cmp.Compare(a.CID, b.CID) })
	return st
}
