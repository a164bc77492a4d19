package iscsi

import (
	"net"
	"testing"

	"lunlab/target/iscsi/pdu"
)

// TestResendAfterFailure asks a failed output for an answer again, which it keeps
// for another connection. No memory is left when that is given up.
func TestResendAfterFailure(t *testing.T) {
	nc, peer := net.Pipe()
	defer nc.Close()
	defer peer.Close()
	var pool bufferPool
	pool.init(1<<20, 1)
	memory := account{pool: &pool}
	var o output
	o.init(nc, func([]byte) {})
	o.begin(digests{}, 2)
	buf := memory.get(pdu.BHSLen)
	p := pdu.SCSIResponse{InitiatorTaskTag: 1}
	p.Encode(buf.b)
	o.commit(buf, 0, pdu.BHSLen)
	buf.drop()
	o.fail(net.ErrClosed)
	n := o.resend(&memory, func(s *sent, _ []byte, _ bool) bool { return s.itt == 1 })
	if n != 0 || pool.used.Load() == 0 {
		t.Errorf("%d PDUs were sent again, %d bytes are kept; want none, and some", n, pool.used.Load())
	}
	o.release()
	if n := pool.used.Load(); n != 0 {
		t.Errorf("%d bytes of buffers are left", n)
	}
}
