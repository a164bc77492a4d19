package iscsi_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNegotiation(t *testing.T) {
	l := newLab(t, nil)
	for _, tt := range []struct {
		name string
		ask  []string
		want map[string]string
	}{
		{"nothing asked", nil, map[string]string{"TargetPortalGroupTag": "1", "MaxRecvDataSegmentLength": "262144"}},
		{"what open-iscsi asks", []string{
			"HeaderDigest=None", "DataDigest=None", "DefaultTime2Wait=2", "DefaultTime2Retain=0", "IFMarker=No", "OFMarker=No",
			"ErrorRecoveryLevel=0", "InitialR2T=No", "ImmediateData=Yes", "MaxBurstLength=16776192", "FirstBurstLength=262144",
			"MaxOutstandingR2T=1", "MaxConnections=1", "DataPDUInOrder=Yes", "DataSequenceInOrder=Yes", "MaxRecvDataSegmentLength=262144",
		}, map[string]string{
			"TargetPortalGroupTag": "1", "MaxRecvDataSegmentLength": "262144", "HeaderDigest": "None", "DataDigest": "None",
			"DefaultTime2Wait": "2", "DefaultTime2Retain": "0", "IFMarker": "Reject", "OFMarker": "Reject", "ErrorRecoveryLevel": "0",
			"InitialR2T": "No", "ImmediateData": "Yes", "MaxBurstLength": "1048576", "FirstBurstLength": "262144",
			"MaxOutstandingR2T": "1", "MaxConnections": "1", "DataPDUInOrder": "Yes", "DataSequenceInOrder": "Yes",
		}},
		{"the other way round", []string{"InitialR2T=Yes", "ImmediateData=No", "DefaultTime2Wait=0", "DefaultTime2Retain=3600", "MaxOutstandingR2T=65535"},
			map[string]string{"TargetPortalGroupTag": "1", "MaxRecvDataSegmentLength": "262144", "InitialR2T": "Yes", "ImmediateData": "No",
				"DefaultTime2Wait": "0", "DefaultTime2Retain": "60", "MaxOutstandingR2T": "64"}},
		{"values that can't be", []string{"InitialR2T=Maybe", "MaxBurstLength=511", "FirstBurstLength=16777216", "HeaderDigest=SHA1", "MaxOutstandingR2T=",
			"ErrorRecoveryLevel=3", "DefaultTime2Wait=-1"},
			map[string]string{"TargetPortalGroupTag": "1", "MaxRecvDataSegmentLength": "262144", "InitialR2T": "Reject", "MaxBurstLength": "Reject",
				"FirstBurstLength": "Reject", "HeaderDigest": "Reject", "MaxOutstandingR2T": "Reject", "ErrorRecoveryLevel": "Reject", "DefaultTime2Wait": "Reject"}},
		{"keys that aren't known, hexadecimal numbers, preferences", []string{"X-com.example.color=blue", "MaxBurstLength=0x10000", "HeaderDigest=CRC32C,None",
			"DataDigest=private,None,CRC32C", "InitiatorAlias=a b"},
			map[string]string{"TargetPortalGroupTag": "1", "MaxRecvDataSegmentLength": "262144", "X-com.example.color": "NotUnderstood",
				"MaxBurstLength": "65536", "HeaderDigest": "CRC32C", "DataDigest": "None"}},
		{"a first burst longer than the burst that is asked for", []string{"FirstBurstLength=65536", "MaxBurstLength=8192"},
			map[string]string{"TargetPortalGroupTag": "1", "MaxRecvDataSegmentLength": "262144", "MaxBurstLength": "8192", "FirstBurstLength": "8192"}},
		{"what is said for people to read", []string{"X#NodeArchitecture=x86", "InitiatorAlias=here"},
			map[string]string{"TargetPortalGroupTag": "1", "MaxRecvDataSegmentLength": "262144"}},
		{"names once more, the same", []string{"InitiatorName=" + testInitiator, "TargetName=" + testTarget},
			map[string]string{"TargetPortalGroupTag": "1", "MaxRecvDataSegmentLength": "262144"}},
		{"answers to what wasn't said", []string{"MaxBurstLength=NotUnderstood", "InitialR2T=Reject", "ImmediateData=Irrelevant"},
			map[string]string{"TargetPortalGroupTag": "1", "MaxRecvDataSegmentLength": "262144"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := dial(t, l.addr)
			if d := cmp.Diff(tt.want, r.login(tt.ask...)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			r.alive()
		})
	}
}

func TestLoginInStages(t *testing.T) {
	l := newLab(t, nil)
	r := dial(t, l.addr)
	p := r.tryLogin(0, -1, append(names(), "AuthMethod=CHAP,None")...)
	if p.u16(36) != 0 || p.bhs[1] != 0 || values(p.data)["AuthMethod"] != "None" {
		t.Fatalf("security, no transit: %v", p)
	}
	if p = r.tryLogin(0, 1); p.u16(36) != 0 || p.bhs[1] != 0x81 {
		t.Fatalf("to operational: %v", p)
	}
	// One request's text in three PDUs, split in the middle of a key.
	for _, part := range []string{"Max", "BurstLength=81"} {
		h := r.loginHeader(1, -1)
		h[1] |= 0x40
		r.send(h, []byte(part))
		if p = r.recv(0x23); p.u16(36) != 0 || p.bhs[1] != 0x04 || len(p.data) != 0 {
			t.Fatalf("to a request with C: %v", p)
		}
	}
	r.send(r.loginHeader(1, -1), []byte("92\x00"))
	if p = r.recv(0x23); p.u16(36) != 0 || values(p.data)["MaxBurstLength"] != "8192" {
		t.Fatalf("to the last part: %v", p)
	}
	if p = r.tryLogin(1, 3); p.u16(36) != 0 || p.bhs[1] != 0x87 || p.u16(14) == 0 {
		t.Fatalf("to full feature phase: %v", p)
	}
	r.alive()

	// From the security stage straight on.
	r = dial(t, l.addr)
	r.isid[5]++
	if p = r.tryLogin(0, 3, names()...); p.u16(36) != 0 || p.bhs[1] != 0x83 {
		t.Fatalf("straight to full feature phase: %v", p)
	}
	r.alive()
}

// TestLoginAnswerInParts has the target refuse so many keys that the answer is longer
// than an initiator takes during login.
func TestLoginAnswerInParts(t *testing.T) {
	l := newLab(t, nil)
	r := dial(t, l.addr)
	want := map[string]string{}
	var ask []string
	for i := range 200 {
		k := fmt.Sprintf("X-com.example.%049d", i)
		ask, want[k] = append(ask, k+"=1"), "NotUnderstood"
	}
	send := func(data []byte, more bool) {
		h := r.loginHeader(1, 3)
		if more {
			h[1] = 0x44
		}
		r.send(h, data)
	}
	data := text(append(names(), ask...)...)
	for len(data) > 8192 {
		send(data[:8192], true)
		if p := r.recv(0x23); p.u16(36) != 0 || len(p.data) > 0 {
			t.Fatalf("amid the request: %v", p)
		}
		data = data[8192:]
	}
	send(data, false)
	var all []byte
	parts := 0
	p := r.recv(0x23)
	for ; p.bhs[1] == 0x44; p = r.recv(0x23) {
		if len(p.data) != 8192 || p.u16(36) != 0 {
			t.Fatalf("a part: %v", p)
		}
		parts++
		all = append(all, p.data...)
		r.send(r.loginHeader(1, -1), nil)
	}
	if p.bhs[1] != 0x87 || p.u16(36) != 0 || len(p.data) > 8192 || parts == 0 {
		t.Fatalf("after %d parts: %v", parts, p)
	}
	got := values(append(all, p.data...))
	for k := range want {
		if got[k] != want[k] {
			t.Errorf("%s=%s", k, got[k])
		}
	}
	r.alive()

	// Who goes on with text is refused.
	r = dial(t, l.addr)
	r.isid[5]++
	r.tryLogin(1, -1, append(names(), "MaxRecvDataSegmentLength=512")...)
	if p = r.tryLogin(1, 3, ask[:8]...); p.bhs[1] != 0x44 || len(p.data) != 512 {
		t.Fatalf("the first part of 512 bytes: %v", p)
	}
	if p = r.tryLogin(1, -1, ask[8:9]...); p.u16(36) != 0x0200 {
		t.Errorf("text amid an answer: %v", p)
	}
	r.closed()
}

func TestLoginRefused(t *testing.T) {
	l := newLab(t, nil)
	for _, tt := range []struct {
		name   string
		send   func(r *raw)
		status uint16
	}{
		{"no InitiatorName", func(r *raw) { r.send(r.loginHeader(1, 3), text("TargetName="+testTarget)) }, 0x0207},
		{"no TargetName", func(r *raw) { r.send(r.loginHeader(1, 3), text("InitiatorName="+testInitiator)) }, 0x0207},
		{"no such target", func(r *raw) {
			r.send(r.loginHeader(1, 3), text("InitiatorName="+testInitiator, "TargetName=iqn.2026-01.example:none"))
		}, 0x0203},
		{"no such session type", func(r *raw) { r.send(r.loginHeader(1, 3), text(append(names()[:2], "SessionType=Odd")...)) }, 0x0209},
		{"no such session", func(r *raw) { r.tsih = 0x4242; r.send(r.loginHeader(1, 3), text(names()...)) }, 0x020a},
		{"a later version", func(r *raw) { h := r.loginHeader(1, 3).put(2, 9, 1); r.send(h, text(names()...)) }, 0x0205},
		{"only CHAP", func(r *raw) { r.send(r.loginHeader(0, 1), text(append(names(), "AuthMethod=CHAP")...)) }, 0x0201},
		{"operational key in the security stage", func(r *raw) { r.send(r.loginHeader(0, 1), text(append(names(), "MaxBurstLength=512")...)) }, 0x0200},
		{"key sent twice", func(r *raw) {
			r.send(r.loginHeader(1, 3), text(append(names(), "InitialR2T=No", "InitialR2T=No")...))
		}, 0x0200},
		{"another InitiatorName in the same request", func(r *raw) {
			r.send(r.loginHeader(1, 3), text(append(names(), "InitiatorName=iqn.2026-01.example:other")...))
		}, 0x0200},
		{"another TargetName later", func(r *raw) {
			r.tryLogin(0, 1, names()...)
			r.send(r.loginHeader(1, 3), text("TargetName=iqn.2026-01.example:other"))
		}, 0x0200},
		{"discovery after all", func(r *raw) {
			r.tryLogin(0, -1, names()...)
			r.send(r.loginHeader(0, 3), text("SessionType=Discovery"))
		}, 0x0200},
		{"InitiatorName that terminals obey", func(r *raw) {
			r.send(r.loginHeader(1, 3), text("InitiatorName=iqn.2026-01.example:\x1b[2J", "TargetName="+testTarget))
		}, 0x0200},
		{"InitiatorName of 224 bytes", func(r *raw) {
			r.send(r.loginHeader(1, 3), text("InitiatorName=iqn."+strings.Repeat("a", 220), "TargetName="+testTarget))
		}, 0x0200},
		{"ISID changed amid the first text", func(r *raw) {
			h := r.loginHeader(0, -1)
			h[1] |= 0x40
			r.send(h, text(names()...))
			r.recv(0x23)
			r.isid[0]++
			r.send(r.loginHeader(0, 3), nil)
		}, 0x0200},
		{"declaration that can't be", func(r *raw) {
			r.send(r.loginHeader(1, 3), text(append(names(), "MaxRecvDataSegmentLength=511")...))
		}, 0x0200},
		{"key sent twice, in two requests", func(r *raw) {
			r.tryLogin(1, -1, append(names(), "MaxBurstLength=512")...)
			r.send(r.loginHeader(1, 3), text("MaxBurstLength=512"))
		}, 0x0200},
		{"text without an equals sign", func(r *raw) { r.send(r.loginHeader(1, 3), []byte("InitiatorName\x00")) }, 0x0200},
		{"from stage 2", func(r *raw) { r.send(r.loginHeader(2, 3), text(names()...)) }, 0x0200},
		{"back a stage", func(r *raw) { r.send(r.loginHeader(1, 0), text(names()...)) }, 0x0200},
		{"T and C", func(r *raw) { h := r.loginHeader(1, 3); h[1] |= 0x40; r.send(h, text(names()...)) }, 0x0200},
		{"not immediate", func(r *raw) { h := r.loginHeader(1, 3); h[0] = 3; r.send(h, text(names()...)) }, 0x0200},
		{"NOP-Out first", func(r *raw) { r.send(hdr(0x40, 0x80).put32(16, 9).put32(20, 0xffffffff), nil) }, 0x020b},
		{"Text first", func(r *raw) { r.send(hdr(0x44, 0x80).put32(16, 9).put32(20, 0xffffffff), text("SendTargets=All")) }, 0x020b},
		{"Logout first", func(r *raw) { r.send(hdr(0x46, 0x80).put32(16, 9), nil) }, 0x020b},
		{"SCSI Command first", func(r *raw) { r.send(r.command(0x80, 0, 0), nil) }, 0x020b},
		{"data beyond what a login may have", func(r *raw) { r.send(r.loginHeader(1, 3), make([]byte, 9000)) }, 0x0200},
		{"stage changed midway", func(r *raw) {
			r.tryLogin(0, -1, names()...)
			r.send(r.loginHeader(1, 3), nil)
		}, 0x0200},
		{"ISID changed midway", func(r *raw) {
			r.tryLogin(0, -1, names()...)
			r.isid[0]++
			r.send(r.loginHeader(0, 3), nil)
		}, 0x0200},
		{"text without end", func(r *raw) {
			for range 9 {
				h := r.loginHeader(1, -1)
				h[1] |= 0x40
				r.send(h, []byte(strings.Repeat("a", 8000)))
				if p := r.recv(0x23); p.u16(36) != 0 {
					r.t.Fatalf("got status %04x early", p.u16(36))
				}
			}
		}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := dial(t, l.addr)
			if tt.name == "text without end" {
				for range 8 {
					h := r.loginHeader(1, -1)
					h[1] |= 0x40
					r.send(h, []byte(strings.Repeat("a", 8000)))
					r.recv(0x23)
				}
				h := r.loginHeader(1, -1)
				h[1] |= 0x40
				r.send(h, []byte(strings.Repeat("a", 8000)))
				tt.status = 0x0302
			} else {
				tt.send(r)
			}
			if p := r.recv(0x23); p.u16(36) != tt.status || p.bhs[1]&0x80 != 0 {
				t.Errorf("got %v, want status %04x", p, tt.status)
			}
			r.closed()
		})
	}
	// None of that did any harm.
	r := dial(t, l.addr)
	r.login()
	r.alive()
}

func TestDiscovery(t *testing.T) {
	l := newLab(t, nil)
	r := dial(t, l.addr)
	p := r.tryLogin(1, 3, "InitiatorName="+testInitiator, "SessionType=Discovery", "MaxConnections=1", "MaxRecvDataSegmentLength=512")
	if got := values(p.data); p.u16(36) != 0 || got["MaxConnections"] != "Irrelevant" {
		t.Fatalf("login: %v", p)
	}
	ask := func(q string) map[string]string {
		t.Helper()
		r.send(hdr(0x04, 0x80).put32(16, r.tag()).put32(20, 0xffffffff).put32(24, r.next()).put32(28, r.expStatSN), text(q))
		p := r.recv(0x24)
		if p.bhs[1] != 0x80 || p.u32(20) != 0xffffffff {
			t.Fatalf("to %s: %v", q, p)
		}
		return values(p.data)
	}
	want := map[string]string{"TargetName": testTarget, "TargetAddress": l.addr + ",1"}
	for _, q := range []string{"SendTargets=All", "SendTargets=" + testTarget} {
		if d := cmp.Diff(want, ask(q)); d != "" {
			t.Errorf("%s (-want +got):\n%s", q, d)
		}
	}
	if got := ask("SendTargets=iqn.2026-01.example:none"); len(got) != 1 || got[""] != "" {
		t.Errorf("a target that isn't there: %q", got)
	}
	// There is nothing else in a discovery session (RFC 7143 4.3).
	r.send(r.command(0x80, 0, 0), nil)
	if p := r.recv(0x3f); p.bhs[2] != 4 {
		t.Errorf("SCSI Command: %v", p)
	}
	r.send(hdr(0x42, 0x85).put32(16, r.tag()).put32(20, 0xffffffff).put32(24, r.cmdSN), nil)
	if p := r.recv(0x3f); p.bhs[2] != 4 {
		t.Errorf("task management: %v", p)
	}
	logout(r)

	// In a normal session an empty value means its own target, and All nothing.
	r = dial(t, l.addr)
	r.login()
	if d := cmp.Diff(want, ask("SendTargets=")); d != "" {
		t.Errorf("SendTargets= (-want +got):\n%s", d)
	}
	if d := cmp.Diff(map[string]string{"SendTargets": "Reject"}, ask("SendTargets=All")); d != "" {
		t.Errorf("SendTargets=All (-want +got):\n%s", d)
	}
	if d := cmp.Diff(map[string]string{"InitialR2T": "Reject", "MaxBurstLength": "Reject", "X-none": "NotUnderstood"},
		ask("InitialR2T=No\x00MaxBurstLength=512\x00X-none=1\x00MaxRecvDataSegmentLength=1024\x00InitiatorAlias=here")); d != "" {
		t.Errorf("keys of the login (-want +got):\n%s", d)
	}
	// So are those that are never an initiator's, or not now.
	others := []string{"InitiatorName", "TargetName", "SessionType", "AuthMethod", "TargetAlias", "TargetAddress", "TargetPortalGroupTag", "HeaderDigest", "IFMarker"}
	refused := map[string]string{}
	for _, k := range others {
		refused[k] = "Reject"
	}
	if d := cmp.Diff(refused, ask(strings.Join(others, "=x\x00")+"=x")); d != "" {
		t.Errorf("keys that can't be sent now (-want +got):\n%s", d)
	}
	// The new MaxRecvDataSegmentLength holds.
	r.send(r.command(0xc0, 4096, read10(0, 8)...), nil)
	if p := r.recv(0x25); len(p.data) != 1024 {
		t.Errorf("Data-In of %d bytes, want 1024", len(p.data))
	}
}

func logout(r *raw) {
	r.t.Helper()
	r.send(hdr(0x46, 0x80).put32(16, r.tag()).put16(20, r.cid).put32(24, r.cmdSN).put32(28, r.expStatSN), nil)
	if p := r.recv(0x26); p.bhs[2] != 0 {
		r.t.Fatalf("Logout Response %v", p)
	}
	r.closed()
}

// TestDiscoveryInParts makes an answer longer than the initiator takes at once.
func TestDiscoveryInParts(t *testing.T) {
	l := newLab(t, addTargets)
	r := dial(t, l.addr)
	if p := r.tryLogin(1, 3, "InitiatorName="+testInitiator, "SessionType=Discovery", "MaxRecvDataSegmentLength=512"); p.u16(36) != 0 {
		t.Fatal(p)
	}
	var all []byte
	ttt := uint32(0xffffffff)
	itt := r.tag()
	data := text("SendTargets=All")
	for i := 0; ; i++ {
		r.send(hdr(0x44, 0x80).put32(16, itt).put32(20, ttt).put32(24, r.cmdSN).put32(28, r.expStatSN), data)
		p := r.recv(0x24)
		all = append(all, p.data...)
		ttt, data = p.u32(20), nil
		if p.bhs[1] == 0x80 {
			break
		}
		if p.bhs[1] != 0x40 || len(p.data) != 512 || i > 20 {
			t.Fatalf("part %d is %v", i, p)
		}
	}
	if n := strings.Count(string(all), "TargetName="); n != 41 {
		t.Errorf("%d targets in %d bytes, want 41", n, len(all))
	}
	// A tag that isn't of this exchange.
	r.send(hdr(0x44, 0x80).put32(16, itt).put32(20, 0x1234).put32(24, r.cmdSN).put32(28, r.expStatSN), nil)
	if p := r.recv(0x3f); p.bhs[2] != 4 {
		t.Errorf("with a wrong tag: %v", p)
	}
}

func TestReinstatement(t *testing.T) {
	l := newLab(t, nil)
	first := dial(t, l.addr)
	first.login()
	first.alive()
	second := dial(t, l.addr)
	second.login()
	first.closed()
	second.alive()
	// Another ISID is another session.
	third := dial(t, l.addr)
	third.isid[4]++
	third.login()
	second.alive()
	third.alive()
	// A connection more than the session may have.
	fourth := dial(t, l.addr)
	fourth.isid, fourth.tsih, fourth.cid = third.isid, third.tsih, 1
	if p := fourth.tryLogin(1, 3, names()...); p.u16(36) != 0x0206 {
		t.Errorf("second connection: %v", p)
	}
}
