package fault

import (
	"slices"
	"sync"

	"lunlab/lun"
)

// attentions are unit attention conditions that rules have established, beside the
// unit's own (SAM-5 5.14).
type attentions struct {
	mu      sync.Mutex
	pending map[*lun.Nexus][]uint16 // of every nexus that was seen, by code
}

// attend establishes a condition for all nexuses but one, which reports it itself.
func (t *attentions) attend(but *lun.Nexus, code uint16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for n, codes := range t.pending {
		if n != but && !slices.Contains(codes, code) {
			t.pending[n] = append(codes, code)
		}
	}
}

// report ends a command with the oldest condition of its nexus, if it has one, and
// if the command isn't one of those that let it be.
func (t *attentions) report(c *lun.Command) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pending == nil {
		t.pending = map[*lun.Nexus][]uint16{}
	}
	codes := t.pending[c.Nexus]
	if len(codes) == 0 {
		t.pending[c.Nexus] = nil
		return false
	}
	if len(c.CDB) > 0 && (c.CDB[0] == inquiry || c.CDB[0] == requestSense) {
		return false
	}
	t.pending[c.Nexus] = codes[1:]
	c.Fail(lun.Sense{Key: lun.UnitAttention, Code: codes[0]})
	return true
}

// forget drops what is kept of a nexus that is gone.
func (t *attentions) forget(n *lun.Nexus) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pending, n)
}

// clear drops all.
func (t *attentions) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pending = nil
}
