package lun_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lunlab/lun"
)

// aptplRegister is REGISTER with APTPL set or not.
func (h *host) aptplRegister(key, actionKey uint64, aptpl byte) answer {
	h.t.Helper()
	list := cat(be(8, key), be(8, actionKey), []byte{0, 0, 0, 0, aptpl, 0, 0, 0})
	return h.run([]byte{0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0}, list, 0)
}

func TestReservationsSurviveRestart(t *testing.T) {
	for _, kind := range []byte{1, 3, 5, 6, 7, 8} {
		o := lun.DiskOptions{Memory: lun.StateFile(filepath.Join(t.TempDir(), "state"))}
		h := newHost(t, 1<<20, o)
		h.do("5e 02 0000000000 00ff 00", nil, 255).is("0008 0d 80 ea01 0000")
		other := h.other("b")
		h.aptplRegister(0, 1, 1).good()
		other.aptplRegister(0, 2, 1).good()
		h.prOut(prReserve, kind, 1, 0).good()
		h.do("5e 02 0000000000 00ff 00", nil, 255).is("0008 0d 81 ea01 0000")

		h = newHost(t, 1<<20, o)
		third := h.other("c")
		key := uint64(1)
		if kind >= 7 {
			key = 0
		}
		third.wantReservation(key, kind)
		if keys := h.keys(); !slices.Equal(keys, []uint64{1, 2}) {
			t.Errorf("keys %#x after a restart", keys)
		}
		third.run(transfer(0x2a, 0, 1, 0), make([]byte, 512), 0).conflict()
		h.run(transfer(0x2a, 0, 1, 0), make([]byte, 512), 0).good()
		// A register without APTPL undoes it.
		h.aptplRegister(1, 1, 0).good()
		h = newHost(t, 1<<20, o)
		h.wantReservation(0, 0)
	}
}

func TestReservationsGoWithoutAPTPL(t *testing.T) {
	o := lun.DiskOptions{Memory: lun.StateFile(filepath.Join(t.TempDir(), "state"))}
	h := newHost(t, 1<<20, o)
	h.aptplRegister(0, 1, 0).good()
	h.prOut(prReserve, 1, 1, 0).good()
	newHost(t, 1<<20, o).wantReservation(0, 0)
}

func TestSavedModesSurviveRestart(t *testing.T) {
	o := lun.DiskOptions{Memory: lun.StateFile(filepath.Join(t.TempDir(), "state"))}
	h := newHost(t, 1<<20, o)
	const off = "0812 000000000000000000000000000000000000"
	h.selectPage(0, off).good()
	h = newHost(t, 1<<20, o)
	if got := h.modePage(8, 0)[2]; got != 4 {
		t.Errorf("WCE byte %#x after a restart, and it wasn't saved", got)
	}
	h.selectPage(1, off).good()
	h = newHost(t, 1<<20, o)
	if got := h.modePage(8, 0)[2]; got != 0 {
		t.Errorf("WCE byte %#x after a restart, and 0 was saved", got)
	}
}

// A saved reservation that nobody holds is let go; the registrations stay.
func TestRecallWithoutHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	for content, want := range map[string][]uint64{
		`{"format":1,"reservation":1}`: nil,
		`{"format":1,"reservation":3,"registrations":[{"initiator":"YQ==","port":2,"key":7}]}`: {7},
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		h := newHost(t, 1<<20, lun.DiskOptions{Memory: lun.StateFile(path)})
		h.wantReservation(0, 0)
		if keys := h.keys(); !slices.Equal(keys, want) {
			t.Errorf("%s: keys %#x, want %#x", content, keys, want)
		}
		h.run(transfer(0x2a, 0, 1, 0), make([]byte, 512), 0).good()
	}
}

// failing is a Memory that can't save.
type failing struct{}

func (failing) Load() ([]byte, error) { return nil, nil }
func (failing) Save([]byte) error     { return errors.New("full") }

func TestMemoryErrors(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{Memory: failing{}})
	h.aptplRegister(0, 1, 1).fails(lun.HardwareError, lun.ASCInternalTargetFailure)
	dir := t.TempDir()
	for name, content := range map[string]string{
		"damaged": `{"format":1`, "format 7": `{"format":7}`,
		"1025 registrations": `{"format":1,"registrations":[{}` + strings.Repeat(`,{}`, 1024) + `]}`,
	} {
		path := filepath.Join(dir, "state")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := lun.NewDisk(mustMem(t, 1<<20), lun.DiskOptions{Memory: lun.StateFile(path)})
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := lun.NewDisk(mustMem(t, 1<<20), lun.DiskOptions{Memory: lun.StateFile(dir)}); err == nil {
		t.Error("a folder as the state file gave no error")
	}
}
