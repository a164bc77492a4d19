package iscsi

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseText(t *testing.T) {
	long := strings.Repeat("a", maxKeyLen)
	for _, tt := range []struct {
		text string
		want []pair
		ok   bool
	}{
		{"", nil, true},
		{"a=1\x00b=\x00", []pair{{"a", "1"}, {"b", ""}}, true},
		{"a=1", []pair{{"a", "1"}}, true},
		{"a=b=c\x00\x00\x00", []pair{{"a", "b=c"}}, true},
		{"X-com.example.A_b+c@d#1=x\x00", []pair{{"X-com.example.A_b+c@d#1", "x"}}, true},
		{long + "=1\x00", []pair{{long, "1"}}, true},
		{long + "a=1\x00", nil, false},
		{"=1\x00", nil, false},
		{"a\x00", nil, false},
		{"a b=1\x00", nil, false},
		{"a=" + strings.Repeat("v", maxValueLen+1) + "\x00", nil, false},
		{strings.Repeat("a=1\x00", maxPairs+1), nil, false},
	} {
		got, err := parseText([]byte(tt.text))
		if (err == nil) != tt.ok {
			t.Errorf("%.40q: %v", tt.text, err)
		}
		if d := cmp.Diff(tt.want, got, cmp.AllowUnexported(pair{})); tt.ok && d != "" {
			t.Errorf("%.40q (-want +got):\n%s", tt.text, d)
		}
	}
}

func TestParseBinary(t *testing.T) {
	for s, want := range map[string]string{
		"0x00ff": "\x00\xff", "0XaB": "\xab", "0x123": "\x01\x23", "0b//8=": "\xff\xff", "0BAAE=": "\x00\x01", "0x": "",
	} {
		if got, err := parseBinary(s); err != nil || string(got) != want {
			t.Errorf("%s is %x (%v), want %x", s, got, err, want)
		}
	}
	for _, s := range []string{"", "0", "12", "0z12", "0x1g", "0b*", "0x" + strings.Repeat("00", maxBinary+1)} {
		if got, err := parseBinary(s); err == nil {
			t.Errorf("%.20s is %x", s, got)
		}
	}
}

// FuzzText takes any text apart, negotiates it, and sees that what was agreed on
// is within what was offered.
func FuzzText(f *testing.F) {
	f.Add([]byte("HeaderDigest=CRC32C,None\x00MaxBurstLength=0x200\x00InitialR2T=No\x00"), true)
	f.Add([]byte("MaxOutstandingR2T=65535\x00ErrorRecoveryLevel=2\x00FirstBurstLength=16777215\x00"), true)
	f.Add([]byte("MaxRecvDataSegmentLength=512\x00X-a=b\x00TaskReporting=RFC3720,FastAbort\x00"), false)
	f.Fuzz(func(t *testing.T, b []byte, login bool) {
		pairs, err := parseText(b)
		if err != nil {
			return
		}
		p := defaultParams()
		n := negotiation{params: &p, offer: offered(16), login: login, leading: login, seen: map[string]bool{}}
		var out []byte
		for _, kv := range pairs {
			_, _ = parseBinary(kv.value)
			if v, ok := n.answer(kv); ok && v != "" {
				out = appendPair(out, kv.key, v)
			}
		}
		p.finish()
		if answers, err := parseText(out); err != nil || bytes.Count(out, []byte{0}) != len(answers) {
			t.Fatalf("the answer %q can't be parsed: %v", out, err)
		}
		switch {
		case p.MaxBurstLength < 512, p.MaxBurstLength > 1<<20, p.FirstBurstLength < 512, p.FirstBurstLength > p.MaxBurstLength,
			p.MaxRecvDataSegmentLength < 512, p.MaxRecvDataSegmentLength >= 1<<24,
			p.MaxOutstandingR2T < 1, p.MaxOutstandingR2T > 64, p.MaxConnections < 1, p.MaxConnections > 16,
			p.ErrorRecoveryLevel > 2, p.DefaultTime2Wait > 3600, p.DefaultTime2Retain > 60:
			t.Fatalf("%q came to %+v", b, p)
		case !login && (p.ErrorRecoveryLevel != 0 || p.MaxBurstLength != 262144 || p.HeaderDigest):
			t.Fatalf("%q changed in full feature phase what only a login may: %+v", b, p)
		}
	})
}
