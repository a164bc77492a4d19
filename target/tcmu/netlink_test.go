package tcmu

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
)

// What a 6.12 kernel sent when a device core/user_0/t0 was made, and when
// dev_size was written to it.
var (
	addedBytes = []byte("\x1c\x00\x01\x00tcm-user/0/t0/lunlab/t0\x00" + "\x08\x00\x02\x00\x00\x00\x00\x00" + "\x08\x00\x08\x00\x02\x00\x00\x00")
	sizeBytes  = append(addedBytes[:len(addedBytes):len(addedBytes)], "\x0c\x00\x05\x00\x00\x00\x10\x00\x00\x00\x00\x00"...)
)

func event0(cmd uint8, data []byte) genetlink.Message {
	return genetlink.Message{Header: genetlink.Header{Command: cmd, Version: genlVersion}, Data: data}
}

func TestParseEvent(t *testing.T) {
	e, err := parseEvent(event0(genlAddedDevice, addedBytes))
	if err != nil || e.device != "0/t0" || e.id != 2 || e.cmd != genlAddedDevice {
		t.Errorf("added: %+v, %v", e, err)
	}
	e, err = parseEvent(event0(genlReconfigDevice, sizeBytes))
	if err != nil || e.reconfig.Size == nil || *e.reconfig.Size != 1<<20 {
		t.Errorf("size: %+v, %v", e, err)
	}
	for name, data := range map[string][]byte{
		"no id":             addedBytes[:len(addedBytes)-8],
		"cut off":           addedBytes[:len(addedBytes)-2],
		"length too small":  []byte("\x02\x00\x01\x00"),
		"id of two bytes":   []byte("\x06\x00\x08\x00\x01\x00\x00\x00"),
		"size of four":      append(addedBytes[:len(addedBytes):len(addedBytes)], "\x08\x00\x05\x00\x00\x00\x10\x00"...),
		"attribute too big": append([]byte("\x0c\x20\x04\x00"), make([]byte, 0x2008)...),
	} {
		if e, err := parseEvent(event0(genlAddedDevice, data)); err == nil {
			t.Errorf("%s: %+v, want an error", name, e)
		}
	}
}

func TestReply(t *testing.T) {
	m, err := event{cmd: genlReconfigDevice, id: 7}.reply(-22)
	if err != nil {
		t.Fatal(err)
	}
	want := genetlink.Message{
		Header: genetlink.Header{Command: genlReconfigDeviceDone, Version: genlVersion},
		Data:   []byte("\x08\x00\x07\x00\xea\xff\xff\xff" + "\x08\x00\x08\x00\x07\x00\x00\x00"),
	}
	if diff := cmp.Diff(want, m); diff != "" {
		t.Error(diff)
	}
	if _, err := (event{cmd: genlSetFeatures}).reply(0); err == nil {
		t.Error("an answer to what isn't asked")
	}
}

func TestErrnoStatus(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want int32
	}{
		{nil, 0}, {errors.New("x"), -22}, {fmt.Errorf("x: %w", syscall.ENOSPC), -28}, {errors.ErrUnsupported, -95},
	} {
		if got := errnoStatus(tt.err); got != tt.want {
			t.Errorf("%v: %d, want %d", tt.err, got, tt.want)
		}
	}
}

func TestDeviceKey(t *testing.T) {
	for name, want := range map[string]string{
		"tcm-user/0/t0/lunlab/t0": "0/t0", "tcm-user/12/a": "12/a", "tcm-user/0": "", "uio_pci": "", "": "",
	} {
		if got := deviceKey(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func FuzzEvent(f *testing.F) {
	f.Add(uint8(genlAddedDevice), addedBytes)
	f.Add(uint8(genlReconfigDevice), sizeBytes)
	f.Fuzz(func(t *testing.T, cmd uint8, data []byte) {
		e, err := parseEvent(event0(cmd, data))
		if err != nil {
			return
		}
		m, err := e.reply(0)
		if err != nil {
			return
		}
		if _, err := netlink.UnmarshalAttributes(m.Data); err != nil {
			t.Error(err)
		}
	})
}
