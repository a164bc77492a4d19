package iscsi_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lunlab/target/iscsi"
)

func TestStatus(t *testing.T) {
	l := newLab(t, func(_ *iscsi.Options, t *iscsi.Target) { t.CanQueue, t.HWQueues = 16, 2 })
	before := l.srv.Status()
	if len(before.Sessions) != 0 || len(before.Targets) != 1 || before.Targets[0].CanQueue != 16 || len(before.Targets[0].LUNs) != 3 {
		t.Fatalf("at rest: %+v", before)
	}
	r := dial(t, l.addr)
	r.login("MaxConnections=2", "DataDigest=CRC32C", "MaxRecvDataSegmentLength=4096")
	r.another(l, 1)
	r.write(0, random(8192, 1), map[string]string{"ImmediateData": "Yes"}, 8192)
	r.read(0, 16)
	r.read(0, 1)
	r.send(r.command(0xc0, 512, read10(1<<31, 1)...), nil)
	r.recv(0x21)
	l.meter.Hold()
	r.send(on1(r.command(0x80, 0, 0)), nil)
	r.send(on1(r.command(0x80, 0, 0)), nil)
	l.inFlight(t, 2)
	r.function(1, 1, 0x1000+r.itt, r.cmdSN-1)
	r.functionResponse(0)

	st := l.srv.Status()
	u := st.Targets[0].LUNs[0]
	if u.Opcodes[0x28] != 3 || u.Opcodes[0x2a] != 1 || u.Statuses[2] == 0 || u.ReadBytes != 8192+512 || u.WrittenBytes != 8192 || u.MostInFlight != 1 || u.InFlight != 0 {
		t.Errorf("LUN 0: %+v", u)
	}
	if u.LatencyP50 <= 0 || u.LatencyP99 < u.LatencyP50 || u.LatencyP999 < u.LatencyP99 {
		t.Errorf("LUN 0: latencies %v %v %v", u.LatencyP50, u.LatencyP99, u.LatencyP999)
	}
	if u := st.Targets[0].LUNs[1]; u.InFlight != 1 || u.MostInFlight != 2 || u.Aborted != 1 || u.CmdPerLUN != 8 {
		t.Errorf("LUN 1: %+v", u)
	}
	if len(st.Sessions) != 1 || st.Connections != 2 {
		t.Fatalf("sessions: %+v", st)
	}
	x := st.Sessions[0]
	if x.Initiator != testInitiator || x.ISID != "0x800102030405" || x.TSIH != r.tsih || x.Target != testTarget || x.InFlight != 1 ||
		x.ExpCmdSN != r.cmdSN || x.MaxCmdSN != r.maxCmdSN || x.Params.MaxConnections != 2 || len(x.Connections) != 2 {
		t.Errorf("session: %+v", x)
	}
	c := x.Connections[0]
	if c.CID != 0 || c.From != r.nc.LocalAddr().String() || c.To != l.addr || !c.DataDigest || c.HeaderDigest ||
		c.MaxRecvDataSegmentLength != 4096 || c.StatSN != r.expStatSN || c.SentBytes < 8192+512 {
		t.Errorf("connection: %+v", c)
	}
	// It survives its own JSON.
	b, err := json.Marshal(st)
	if err != nil {
		t.Fatal(err)
	}
	var again iscsi.Status
	if err := json.Unmarshal(b, &again); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(b, must(json.Marshal(again))); d != "" {
		t.Errorf("JSON changes on the way (-want +got):\n%s", d)
	}
	l.meter.Release()
	r.good()
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}
