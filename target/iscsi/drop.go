package iscsi

import "lunlab/lun"

// Drop implements [lun.Path]: connections are reset. What becomes of their tasks is
// as with any connection that is lost: with ErrorRecoveryLevel 2 they wait to be
// reassigned, unless it is the session that is dropped.
func (k *command) Drop(l lun.Link) bool {
	const why = "dropped on purpose"
	c := k.conn()
	switch l {
	case lun.ConnectionLink:
		c.give(why)
	case lun.SessionLink:
		x := c.sess
		x.mu.Lock()
		var conns []*conn
		for _, o := range x.conns {
			conns = append(conns, o)
		}
		x.mu.Unlock()
		for _, o := range conns {
			o.give(why)
		}
		// It waits for the session's tasks, of which this is one.
		x.srv.wg.Go(func() { x.close(why) })
	default:
		return false
	}
	return true
}
