package isns

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMessage decodes what it encodes, the fields as RFC 4171 5.1 draws them.
func TestMessage(t *testing.T) {
	m := message{function: fnDevAttrQry, flags: flagClient, xid: 0x0102}
	m.payload = appendAttributes(nil, text(tagEntity, "lab"), attribute{tag: tagDelimiter}, number(tagPeriod, 600))
	const want = "\x00\x01\x00\x02\x00\x20\x8c\x00\x01\x02\x00\x00" +
		"\x00\x00\x00\x01\x00\x00\x00\x04lab\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00" + "\x00\x00\x00\x06\x00\x00\x00\x04\x00\x00\x02\x58"
	if got := string(m.encode()); got != want {
		t.Errorf("encoded %q, want %q", got, want)
	}
	// In two PDUs.
	in := "\x00\x01\x00\x02\x00\x0c\x84\x00\x01\x02\x00\x00" + want[12:24] + "\x00\x01\x00\x02\x00\x14\x88\x00\x01\x02\x00\x01" + want[24:]
	got, err := readMessage(strings.NewReader(in))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.payload, m.payload) || got.function != m.function || got.xid != m.xid {
		t.Errorf("read %+v, want %+v", got, m)
	}
	list, err := parseAttributes(got.payload)
	wantList := []attribute{{tagEntity, []byte("lab\x00")}, {tagDelimiter, []byte{}}, {tagPeriod, []byte{0, 0, 2, 0x58}}}
	if d := cmp.Diff(wantList, list, cmp.AllowUnexported(attribute{})); d != "" || err != nil {
		t.Errorf("attributes (-want +got): %v\n%s", err, d)
	}
	for name, bad := range map[string]string{
		"another version":       "\x00\x02\x00\x02\x00\x00\x8c\x00\x01\x02\x00\x00",
		"not the first":         "\x00\x01\x00\x02\x00\x00\x88\x00\x01\x02\x00\x00",
		"from the middle on":    "\x00\x01\x00\x02\x00\x00\x8c\x00\x01\x02\x00\x01",
		"a length that is odd":  "\x00\x01\x00\x02\x00\x01\x8c\x00\x01\x02\x00\x00x",
		"another transaction":   in[:24] + strings.Replace(in[24:], "\x01\x02", "\x01\x03", 1),
		"two that are first":    in[:24] + strings.Replace(in[24:], "\x88", "\x8c", 1),
		"longer than there may": strings.Repeat("\x00\x01\x00\x02\xff\xfc\x84\x00\x01\x02\x00\x00"+strings.Repeat("\x00", 0xfffc), 1),
	} {
		if m, err := readMessage(strings.NewReader(bad)); err == nil {
			t.Errorf("%s: read %+v", name, m.function)
		}
	}
}

// FuzzMessage reads any bytes, takes them apart, and answers them.
func FuzzMessage(f *testing.F) {
	m := message{function: fnESI, payload: appendAttributes(nil, text(tagEntity, "lab"))}
	f.Add(m.encode())
	m.function, m.payload = fnSCN, appendAttributes(nil, text(tagName, "iqn.x:1"), number(tagSCNBitmap, 0x50))
	f.Add(m.encode())
	f.Add([]byte("\x00\x01\x80\x01\x00\x08\x4c\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x06"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := readMessage(bytes.NewReader(b))
		if err != nil {
			return
		}
		if len(m.payload) > maxPayload || len(m.payload) > len(b) {
			t.Fatalf("%d bytes gave %d", len(b), len(m.payload))
		}
		c := Client{kick: make(chan struct{}, 1)}
		if r := c.reply(&m); len(r) > len(m.payload)+4 {
			t.Fatalf("%d bytes are answered with %d", len(m.payload), len(r))
		}
		if list, err := parseAttributes(m.payload); err == nil && !bytes.Equal(appendAttributes(nil, list...), m.payload) {
			t.Fatalf("%x comes back as %v", m.payload, list)
		}
		parseResponse(m.payload)
	})
}
