package iscsi_test

import (
	"bytes"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha3"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash"
	"strconv"
	"strings"
	"testing"

	"lunlab/target/iscsi"
)

var algorithms = map[string]func() hash.Hash{
	"5": md5.New, "6": sha1.New, "7": sha256.New, "8": func() hash.Hash { return sha3.New256() },
}

const (
	user, secret             = "someone", "open sesame, please"
	targetUser, targetSecret = "the lab", "it is me indeed"
)

// answer is the response of RFC 1994.
func answer(alg, id, secret string, challenge []byte) []byte {
	n, _ := strconv.Atoi(id)
	h := algorithms[alg]()
	h.Write(append(append([]byte{byte(n)}, secret...), challenge...))
	return h.Sum(nil)
}

func hexOf(b []byte) string    { return "0x" + hex.EncodeToString(b) }
func base64Of(b []byte) string { return "0b" + base64.StdEncoding.EncodeToString(b) }

// chap takes a login to where the challenge is known.
func (r *raw) chap(algs string) (alg, id string, challenge []byte) {
	r.t.Helper()
	p := r.tryLogin(0, 1, append(names(), "AuthMethod=None,CHAP")...)
	if p.u16(36) != 0 || p.bhs[1]&0x80 != 0 || values(p.data)["AuthMethod"] != "CHAP" {
		r.t.Fatalf("AuthMethod: %v", p)
	}
	p = r.tryLogin(0, 1, "CHAP_A="+algs)
	v := values(p.data)
	c, err := hex.DecodeString(strings.TrimPrefix(v["CHAP_C"], "0x"))
	if p.u16(36) != 0 || p.bhs[1]&0x80 != 0 || err != nil {
		r.t.Fatalf("CHAP_A: %v", p)
	}
	return v["CHAP_A"], v["CHAP_I"], c
}

func withCHAP(mutual bool) func(*iscsi.Options, *iscsi.Target) {
	return func(o *iscsi.Options, t *iscsi.Target) {
		c := &iscsi.CHAP{User: user, Secret: secret}
		if mutual {
			c.TargetUser, c.TargetSecret = targetUser, targetSecret
		}
		t.Access = []iscsi.Access{{CHAP: c}}
		o.DiscoveryCHAP = c
	}
}

func TestCHAP(t *testing.T) {
	l := newLab(t, withCHAP(true))
	for alg := range algorithms {
		for name, encode := range map[string]func([]byte) string{"hex": hexOf, "base64": base64Of} {
			for _, mutual := range []bool{false, true} {
				t.Run(fmt.Sprintf("algorithm %s, %s, mutual %v", alg, name, mutual), func(t *testing.T) {
					r := dial(t, l.addr)
					got, id, c := r.chap("99," + alg)
					if got != alg || len(c) != algorithms[alg]().Size() {
						t.Fatalf("algorithm %s with a challenge of %d bytes", got, len(c))
					}
					pairs := []string{"CHAP_N=" + user, "CHAP_R=" + encode(answer(alg, id, secret, c))}
					mine := random(16, 3)
					if mutual {
						pairs = append(pairs, "CHAP_I=200", "CHAP_C="+encode(mine))
					}
					p := r.tryLogin(0, 1, pairs...)
					if p.u16(36) != 0 || p.bhs[1] != 0x81 {
						t.Fatalf("CHAP_R: %v", p)
					}
					v := values(p.data)
					if mutual {
						if want := hexOf(answer(alg, "200", targetSecret, mine)); v["CHAP_N"] != targetUser || v["CHAP_R"] != want {
							t.Errorf("the target says %q, want %s and %s", v, targetUser, want)
						}
					} else if v["CHAP_R"] != "" {
						t.Errorf("the target says %q unasked", v)
					}
					if p = r.tryLogin(1, 3); p.u16(36) != 0 || p.bhs[1] != 0x87 {
						t.Fatalf("to full feature phase: %v", p)
					}
					r.alive()
				})
			}
		}
	}
}

func TestCHAPRefused(t *testing.T) {
	l := newLab(t, withCHAP(false))
	both := newLab(t, withCHAP(true))
	respond := func(r *raw, user, secret string, more ...string) packet {
		alg, id, c := r.chap("5")
		return r.tryLogin(0, 1, append([]string{"CHAP_N=" + user, "CHAP_R=" + hexOf(answer(alg, id, secret, c))}, more...)...)
	}
	for _, tt := range []struct {
		name string
		l    *lab
		do   func(r *raw) packet
		want uint16
	}{
		{"wrong secret", l, func(r *raw) packet { return respond(r, user, "let me in") }, 0x0201},
		{"wrong user", l, func(r *raw) packet { return respond(r, "root", secret) }, 0x0201},
		{"no response", l, func(r *raw) packet { r.chap("5"); return r.tryLogin(0, 1, "CHAP_N="+user) }, 0x0201},
		{"empty response", l, func(r *raw) packet { r.chap("5"); return r.tryLogin(0, 1, "CHAP_N="+user, "CHAP_R=0x") }, 0x0201},
		{"response that is no number", l, func(r *raw) packet { r.chap("5"); return r.tryLogin(0, 1, "CHAP_N="+user, "CHAP_R=secret") }, 0x0201},
		{"response of 2000 bytes", l, func(r *raw) packet {
			r.chap("5")
			return r.tryLogin(0, 1, "CHAP_N="+user, "CHAP_R="+hexOf(make([]byte, 2000)))
		}, 0x0201},
		{"no known algorithm", l, func(r *raw) packet {
			r.tryLogin(0, 1, append(names(), "AuthMethod=CHAP")...)
			return r.tryLogin(0, 1, "CHAP_A=1,2,3")
		}, 0x0201},
		{"the second step first", l, func(r *raw) packet {
			r.tryLogin(0, 1, append(names(), "AuthMethod=CHAP")...)
			return r.tryLogin(0, 1, "CHAP_N="+user, "CHAP_R=0x00")
		}, 0x0201},
		{"algorithm twice", l, func(r *raw) packet { r.chap("5"); return r.tryLogin(0, 1, "CHAP_A=5") }, 0x0201},
		{"AuthMethod twice", l, func(r *raw) packet { r.chap("5"); return r.tryLogin(0, 1, "AuthMethod=CHAP") }, 0x0200},
		{"only None", l, func(r *raw) packet { return r.tryLogin(0, 1, append(names(), "AuthMethod=None")...) }, 0x0201},
		{"straight to the operational stage", l, func(r *raw) packet { return r.tryLogin(1, 3, names()...) }, 0x0201},
		{"a discovery session, straight on", l, func(r *raw) packet {
			return r.tryLogin(1, 3, "InitiatorName="+testInitiator, "SessionType=Discovery")
		}, 0x0201},
		{"asks for a secret that there isn't", l, func(r *raw) packet { return respond(r, user, secret, "CHAP_I=1", "CHAP_C=0x0102") }, 0x0201},
		{"asks with half a question", both, func(r *raw) packet { return respond(r, user, secret, "CHAP_C=0x0102") }, 0x0201},
		{"asks the target's own question back", both, func(r *raw) packet {
			alg, id, c := r.chap("7")
			return r.tryLogin(0, 1, "CHAP_N="+user, "CHAP_R="+hexOf(answer(alg, id, secret, c)), "CHAP_I="+id, "CHAP_C="+hexOf(c))
		}, 0x0201},
		{"asks a question of another connection", both, func(r *raw) packet {
			first := dial(r.t, both.addr)
			_, id, c := first.chap("7")
			return respond(r, user, secret, "CHAP_I="+id, "CHAP_C="+hexOf(c))
		}, 0x0201},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := dial(t, tt.l.addr)
			if p := tt.do(r); p.u16(36) != tt.want {
				t.Errorf("got %v, want status %04x", p, tt.want)
			}
			r.closed()
		})
	}
	// Without T, and with T before the secret was shown, the stage goes on.
	r := dial(t, l.addr)
	r.chap("8,5")
	if p := r.tryLogin(0, 3); p.u16(36) != 0 || p.bhs[1]&0x80 != 0 {
		t.Errorf("T without a response: %v", p)
	}
}

func TestBadSecrets(t *testing.T) {
	for name, c := range map[string]*iscsi.CHAP{
		"no secret":             {User: "a"},
		"no target secret":      {User: "a", Secret: "b", TargetUser: "c"},
		"the same secret twice": {User: "a", Secret: "b", TargetUser: "c", TargetSecret: "b"},
	} {
		tgt := &iscsi.Target{Name: testTarget, Access: []iscsi.Access{{CHAP: c}}}
		if _, err := iscsi.NewServer(iscsi.Options{Targets: []*iscsi.Target{tgt}}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestAccess(t *testing.T) {
	l := newLab(t, func(o *iscsi.Options, tgt *iscsi.Target) {
		tgt.Access = []iscsi.Access{
			{Initiator: "iqn.2026-01.example.initiator:r?w", LUNs: []uint16{1}},
			{Initiator: "IQN.2026-01.example.all:*"},
		}
	})
	r := dial(t, l.addr)
	if p := r.tryLogin(1, 3, names()...); p.u16(36) != 0 {
		t.Fatal(p)
	}
	r.send(r.command(0xc0, 64, 0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 64), nil)
	if p := r.recv(0x25); !bytes.Equal(p.data, []byte{0, 0, 0, 8, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0}) {
		t.Errorf("REPORT LUNS: %x", p.data)
	}
	r.send(r.command(0xc0, 512, read10(0, 1)...), nil)
	if key, code := r.recv(0x21).sense(); key != 5 || code != 0x2500 {
		t.Errorf("masked LUN 0: sense %x/%04x", key, code)
	}
	r.function(5, 0, 0xffffffff, 0)
	r.functionResponse(2)

	r = dial(t, l.addr)
	if p := r.tryLogin(1, 3, "InitiatorName=iqn.2026-01.example.ALL:x", "TargetName="+testTarget); p.u16(36) != 0 {
		t.Errorf("the second entry: %v", p)
	}
	r = dial(t, l.addr)
	if p := r.tryLogin(1, 3, "InitiatorName=iqn.2026-01.example.other", "TargetName="+testTarget); p.u16(36) != 0x0202 {
		t.Errorf("no entry: %v", p)
	}
	r.closed()
	// It isn't told of the target either.
	r = dial(t, l.addr)
	r.tryLogin(1, 3, "InitiatorName=iqn.2026-01.example.other", "SessionType=Discovery")
	r.send(hdr(0x44, 0x80).put32(16, 1).put32(20, 0xffffffff).put32(24, r.cmdSN), text("SendTargets=All"))
	if p := r.recv(0x24); len(p.data) != 0 {
		t.Errorf("SendTargets: %q", p.data)
	}
}

func TestRedirect(t *testing.T) {
	for _, permanent := range []bool{false, true} {
		l := newLab(t, func(_ *iscsi.Options, tgt *iscsi.Target) {
			tgt.Redirect = &iscsi.Redirect{Address: "[2001:db8::1]:3260", Permanent: permanent}
		})
		r := dial(t, l.addr)
		p := r.tryLogin(0, 1, append(names(), "AuthMethod=None")...)
		want := uint16(0x0101)
		if permanent {
			want = 0x0102
		}
		if p.u16(36) != want || string(p.data) != "TargetAddress=[2001:db8::1]:3260\x00" {
			t.Errorf("got %v, want status %04x", p, want)
		}
		r.closed()
	}
}
