package lab

import (
	"math/bits"
	"path/filepath"

	"github.com/goccy/go-yaml/ast"
)

// VhostUser is for vhost-user-scsi.
type VhostUser struct {
	Socket string // path of the unix socket to listen on, "": none
}

// What a virtio-scsi device may have.
const (
	mostVirtqueueSize = 1024
	mostVirtqueues    = 256
)

// vhostUser reads how a target is served to virtual machines.
func (l *loader) vhostUser(n ast.Node, t *Target) {
	l.mapping(n, "vhost_user",
		field{"socket", true, func(n ast.Node) {
			l.str("socket", "the path of a unix socket", &t.VhostUser.Socket)(n)
			if s := t.VhostUser.Socket; s != "" && !filepath.IsAbs(s) {
				t.VhostUser.Socket = filepath.Join(filepath.Dir(l.path), s)
			}
			l.unique("socket", t.VhostUser.Socket, at(n))
		}},
	)
}

// fitsVhostUser complains of limits that no virtio-scsi device has. where is the
// target.
func (l *loader) fitsVhostUser(t *Target, where pos) {
	if t.VhostUser.Socket == "" {
		return
	}
	if q := t.Limits.CanQueue; q != 0 && (q < 4 || q > mostVirtqueueSize || bits.OnesCount(uint(q)) != 1) {
		l.fail(where, "can_queue is %d; with vhost_user it is a virtqueue's size: want a power of two from 4 to %d", q, mostVirtqueueSize)
	}
	if q := t.Limits.HWQueues; q > mostVirtqueues {
		l.fail(where, "hw_queues is %d; with vhost_user want %d at the most", q, mostVirtqueues)
	}
}
