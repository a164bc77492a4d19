package iscsi

import (
	"net"
	"sync"
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

// TestUncountedIsBounded has somebody answer while a peer doesn't read. The memory of
// such answers is nobody's, and little is let gather.
func TestUncountedIsBounded(t *testing.T) {
	nc, peer := net.Pipe()
	defer nc.Close()
	defer peer.Close()
	var o output
	o.init(nc, func([]byte) {})
	answer := func() {
		p := pdu.SCSIResponse{InitiatorTaskTag: 1}
		buf := uncounted(pdu.BHSLen)
		p.Encode(buf.b)
		o.commit(buf, 0, pdu.BHSLen)
		buf.drop()
	}
	answer()
	var wg sync.WaitGroup
	wg.Go(func() { o.flush(false) })
	n := 0
	for ; o.waiting() <= maxQueued && n < maxQueued/pdu.BHSLen; n++ {
		answer()
	}
	if n > 4096 {
		t.Errorf("%d answers of %d bytes gather", n, pdu.BHSLen)
	}
	nc.Close()
	wg.Wait()
	if n := o.waiting(); n != 0 {
		t.Errorf("%d bytes are waiting at the end", n)
	}
}
