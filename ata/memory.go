package ata

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// saved is what a [lun.Memory] holds of a drive, as JSON: what outlives a power cycle, but
// for the medium and its bad sectors.
type saved struct {
	Format int `json:"format"`

	User       []byte `json:"user,omitempty"`   // password; none if security isn't enabled
	Master     []byte `json:"master,omitempty"` // likewise
	Identifier uint16 `json:"identifier"`
	Maximum    bool   `json:"maximum,omitempty"`

	Blocks     uint64 `json:"blocks"`               // native
	Accessible uint64 `json:"accessible,omitempty"` // 0: all of them
	SMARTOff   bool   `json:"smartOff,omitempty"`

	Sanitize     *savedSanitize `json:"sanitize,omitempty"` // that is running or has failed
	SanitizeDone bool           `json:"sanitizeDone,omitempty"`

	On        time.Duration   `json:"on"` // ns that it had power
	Counts    []uint64        `json:"counts"`
	SelfTests []savedTest     `json:"selfTests,omitempty"`
	HostLogs  map[byte][]byte `json:"hostLogs,omitempty"` // by address
}

type savedSanitize struct {
	Failed  bool   `json:"failed,omitempty"`
	MayFail bool   `json:"mayFail,omitempty"`
	Erase   bool   `json:"erase,omitempty"`
	Pattern uint32 `json:"pattern,omitempty"`
}

type savedTest struct {
	Kind, Status byte
	Hours        uint16
	LBA          uint64
}

const savedFormat = 1

// snapshot returns what is to be saved. mu is held.
func (d *Drive) snapshot() []byte {
	s := saved{Format: savedFormat, Identifier: d.security.identifier, Maximum: d.security.maximum, Blocks: d.blocks, SMARTOff: !d.settings.smart}
	if d.security.enabled() {
		s.User = d.security.user[:]
	}
	if d.security.master != [passwordLength]byte{} {
		s.Master = d.security.master[:]
	}
	if d.accessible.blocks != d.blocks {
		s.Accessible = d.accessible.blocks
	}
	if z := &d.sanitized; d.unsanitary() {
		s.Sanitize = &savedSanitize{z.state == sanitizeFailed, z.mayFail, z.erase, z.pattern}
	}
	s.SanitizeDone = d.sanitized.done
	s.On = time.Since(d.made)
	for _, c := range d.count.lasting() {
		s.Counts = append(s.Counts, c.Load())
	}
	for _, r := range d.selfTest.list {
		s.SelfTests = append(s.SelfTests, savedTest{r.kind, r.status, r.hours, r.lba})
	}
	for i, l := range d.hostLogs {
		if l != nil {
			if s.HostLogs == nil {
				s.HostLogs = map[byte][]byte{}
			}
			var all []byte
			for _, page := range l {
				all = append(all, page[:]...)
			}
			s.HostLogs[byte(logHost+i)] = all
		}
	}
	b, err := json.Marshal(&s)
	if err != nil {
		panic("ata: saved state: " + err.Error()) // it holds nothing that can't be
	}
	return b
}

// save has what changed outlive a restart.
func (d *Drive) save() failure {
	if d.opt.Memory == nil {
		return failure{}
	}
	d.saving.Lock()
	defer d.saving.Unlock()
	d.mu.Lock()
	b := d.snapshot()
	d.mu.Unlock()
	if d.opt.Memory.Save(b) != nil {
		return broken
	}
	return failure{}
}

// recall takes up what was saved. The drive isn't in use yet. A sanitize operation that
// hadn't ended is to be begun again.
func (d *Drive) recall() error {
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
	var s saved
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("the saved state is damaged: %w", err)
	}
	switch {
	case s.Format != savedFormat:
		return fmt.Errorf("the saved state has format %d, and only %d is known", s.Format, savedFormat)
	case len(s.User) != 0 && len(s.User) != passwordLength, len(s.Master) != 0 && len(s.Master) != passwordLength:
		return fmt.Errorf("the saved state is damaged: passwords of %d and %d bytes", len(s.User), len(s.Master))
	}
	if len(s.User) > 0 {
		d.security.user = (*[passwordLength]byte)(bytes.Clone(s.User))
	}
	copy(d.security.master[:], s.Master)
	d.security.identifier, d.security.maximum = s.Identifier, s.Maximum
	if s.Blocks == d.blocks && s.Accessible > 0 && s.Accessible < d.blocks {
		d.accessible.blocks = s.Accessible
	}
	d.settings.smart = !s.SMARTOff
	d.made = d.made.Add(-max(s.On, 0))
	for i, c := range d.count.lasting() {
		if i < len(s.Counts) {
			c.Store(s.Counts[i])
		}
	}
	for _, r := range s.SelfTests[:min(len(s.SelfTests), testsKept)] {
		d.selfTest.list = append(d.selfTest.list, testResult{r.Kind, r.Status, r.Hours, r.LBA})
	}
	d.recallLogs(s.HostLogs)
	d.sanitized.done = s.SanitizeDone
	if z := s.Sanitize; z != nil {
		d.sanitized.mayFail, d.sanitized.erase, d.sanitized.pattern = z.MayFail, z.Erase && trims(d), z.Pattern
		if d.sanitized.state = sanitizeRunning; z.Failed {
			d.sanitized.state = sanitizeFailed
		}
	}
	return nil
}

func (d *Drive) recallLogs(logs map[byte][]byte) {
	for a, b := range logs {
		if a < logHost || a >= logHost+hostLogs {
			continue
		}
		l := new([hostPages][wordBlock]byte)
		for i := range l {
			b = b[copy(l[i][:], b):]
		}
		d.hostLogs[a-logHost] = l
	}
}
