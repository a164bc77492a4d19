package vhostuser

import (
	"bytes"
	"errors"
	"testing"
)

func TestHeader(t *testing.T) {
	var h header
	// GET_VRING_BASE of QEMU, as seen on the socket.
	b := []byte{11, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0}
	if err := h.decode(b); err != nil || h != (header{reqGetVringBase, 1, 8}) {
		t.Errorf("%+v, %v", h, err)
	}
	want := []byte{11, 0, 0, 0, 5, 0, 0, 0, 8, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0}
	if got := h.reply(vringState{2, 7}.append(nil)); !bytes.Equal(got, want) {
		t.Errorf("reply % x, want % x", got, want)
	}
	for name, b := range map[string][]byte{
		"short":   b[:11],
		"version": {1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0},
		"reply":   {1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0},
		"long":    {1, 0, 0, 0, 1, 0, 0, 0, 1, 16, 0, 0},
	} {
		if err := h.decode(b); !errors.Is(err, errMessage) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestAck(t *testing.T) {
	// A front end's acknowledgement of a call.
	b := []byte{4, 0, 0, 0, 5, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	if err := decodeAck(b, backendVringCall); err != nil {
		t.Error(err)
	}
	for at, v := range map[int]byte{0: 3, 4: 1, 8: 4, 12: 1, 19: 1} {
		bad := bytes.Clone(b)
		bad[at] = v
		if err := decodeAck(bad, backendVringCall); err == nil {
			t.Errorf("% x: no error", bad)
		}
	}
	if err := decodeAck(b[:15], backendVringCall); !errors.Is(err, errMessage) {
		t.Errorf("short: error %v", err)
	}
}

// FuzzPayload decodes payloads of all kinds.
func FuzzPayload(f *testing.F) {
	f.Add(bytes.Repeat([]byte{1, 0, 0, 0}, 20))
	f.Add(bytes.Repeat([]byte{0xff}, 80))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var s vringState
		if s.decode(b) == nil && !bytes.Equal(s.append(nil), b[:8]) {
			t.Error("vringState isn't what it was")
		}
		var i inflightInfo
		if i.decode(b) == nil && !bytes.Equal(i.append(nil), b[:inflightInfoSize]) {
			t.Error("inflightInfo isn't what it was")
		}
		var c configAccess
		if c.decode(b) == nil && !bytes.Equal(c.append(nil), b[:configAccessSize+len(c.data)]) {
			t.Error("configAccess isn't what it was")
		}
		var fd vringFD
		if fd.decode(b) == nil && fd.index > 0xff {
			t.Errorf("virtqueue %d", fd.index)
		}
		var h header
		h.decode(b)
		decodeAck(b, backendVringCall)
		var a vringAddr
		a.decode(b)
		if list, err := decodeMemTable(b); err == nil && len(list) > maxFDs {
			t.Errorf("%d regions", len(list))
		}
		if r, err := decodeMemRegion(b); err == nil && (r.size == 0 || r.guest+r.size-1 < r.guest) {
			t.Errorf("region %+v", r)
		}
	})
}
