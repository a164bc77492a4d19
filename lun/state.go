package lun

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Memory keeps what a disk remembers when it loses power: saved mode pages,
// identifying information, how the medium was formatted, and persistent
// reservations that were asked to survive (APTPL). Its calls don't
// run concurrently for one disk.
type Memory interface {
	// Load returns what was last saved, nil if nothing was.
	Load() ([]byte, error)

	// Save keeps b in place of what was. When it returns nil, b is durable; on
	// an error what was there before is still there.
	Save(b []byte) error
}

// StateFile is a [Memory] in a file of that name.
type StateFile string

// Load implements [Memory].
func (f StateFile) Load() ([]byte, error) {
	b, err := os.ReadFile(string(f))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

// Save implements [Memory]: a new file takes the place of the old one.
func (f StateFile) Save(b []byte) error {
	dir := filepath.Dir(string(f))
	t, err := os.CreateTemp(dir, filepath.Base(string(f))+".*")
	if err != nil {
		return err
	}
	defer os.Remove(t.Name())
	_, err = t.Write(b)
	if err == nil {
		err = t.Sync()
	}
	if err := errors.Join(err, t.Close()); err != nil {
		return err
	}
	if err := os.Rename(t.Name(), string(f)); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// savedState is what a Memory holds, as JSON.
type savedState struct {
	Format        int                 `json:"format"`
	Modes         []savedPage         `json:"modes,omitempty"`
	Reservation   byte                `json:"reservation,omitempty"` // the type
	Registrations []savedRegistration `json:"registrations,omitempty"`
	Medium        *savedMedium        `json:"medium,omitempty"`
	Identity      []byte              `json:"identity,omitempty"` // by SET IDENTIFYING INFORMATION
	Text          []byte              `json:"text,omitempty"`     // likewise
}

type savedPage struct {
	Page, Subpage byte
	Value         []byte
}

type savedRegistration struct {
	Initiator []byte `json:"initiator"`
	Port      uint16 `json:"port"`
	AllPorts  bool   `json:"allPorts,omitempty"`
	Key       uint64 `json:"key"`
	Holder    bool   `json:"holder,omitempty"`
}

const stateFormat = 1

// snapshot returns what is to be saved. Disk.mu is held.
func (d *Disk) snapshot() []byte {
	s := savedState{Format: stateFormat, Medium: d.medium(), Identity: d.identity.id, Text: d.identity.text}
	for _, p := range d.pages {
		if !bytes.Equal(p.saved, p.initial) {
			s.Modes = append(s.Modes, savedPage{p.code, p.sub, p.saved})
		}
	}
	if r := &d.reserve; r.persists {
		s.Reservation = r.kind
		for _, g := range r.list {
			s.Registrations = append(s.Registrations, savedRegistration{[]byte(g.who.initiator), g.who.port, g.allPorts, g.key, r.kind != 0 && g == r.holder})
		}
	}
	b, err := json.Marshal(s)
	if err != nil {
		panic("lun: saved state: " + err.Error()) // it holds nothing that can't be
	}
	return b
}

// remember makes run save what it changed, before its status comes.
func remember(run func(*Disk, *nexus, *Command) Sense) func(*Disk, *nexus, *Command) Sense {
	return func(d *Disk, n *nexus, c *Command) Sense {
		s := run(d, n, c)
		if s.Key == NoSense && d.opt.Memory != nil {
			s = d.save()
		}
		return s
	}
}

func (d *Disk) save() Sense {
	d.saving.Lock()
	defer d.saving.Unlock()
	d.mu.Lock()
	b := d.snapshot()
	d.mu.Unlock()
	if bytes.Equal(b, d.saved) {
		return Sense{}
	}
	if err := d.opt.Memory.Save(b); err != nil {
		return Sense{Key: HardwareError, Code: ASCInternalTargetFailure}
	}
	d.saved = b
	return Sense{}
}

// recall takes up what was saved. The disk isn't in use yet.
func (d *Disk) recall() error {
	if d.opt.Memory == nil {
		return nil
	}
	b, err := d.opt.Memory.Load()
	if err != nil {
		return fmt.Errorf("load the state: %w", err)
	}
	if b == nil {
		return nil
	}
	var s savedState
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("the saved state is damaged: %w", err)
	}
	if s.Format != stateFormat {
		return fmt.Errorf("the saved state has format %d, and only %d is known", s.Format, stateFormat)
	}
	for _, m := range s.Modes {
		// A page that is no longer there, or not as it was, keeps its initial value.
		if p := d.page(m.Page, m.Subpage); p != nil && len(p.saved) == len(m.Value) {
			copy(p.saved, m.Value)
			copy(p.current, m.Value)
		}
	}
	d.recallMedium(s.Medium)
	if len(s.Identity) <= maxIdentity && len(s.Text) <= maxText {
		d.identity = identifying{s.Identity, s.Text}
	}
	r := &d.reserve
	for _, g := range s.Registrations {
		x := &registration{identity{initiatorID(g.Initiator), g.Port}, g.AllPorts, g.Key}
		r.list = append(r.list, x)
		if g.Holder {
			r.holder = x
		}
	}
	r.kind, r.persists = s.Reservation, len(r.list) > 0
	if len(r.list) > maxRegistrations {
		return fmt.Errorf("the saved state is damaged: %d registrations", len(r.list))
	}
	if r.kind != 0 && (len(r.list) == 0 || allRegistrants(r.kind) != (r.holder == nil)) {
		// A reservation that nobody can release isn't worth a disk that won't start.
		r.kind, r.holder = 0, nil
	}
	d.saved = b
	return nil
}
