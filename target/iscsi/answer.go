package iscsi

import (
	"encoding/binary"
	"math"

	"lunlab/lun"
	"lunlab/target/iscsi/pdu"
)

// senseRoom is what sense data takes in a response's data segment.
const senseRoom = 2 + lun.MaxSense

// answerRoom bounds what the answer to k takes on the wire, and fixes its step.
func (c *conn) answerRoom(k *command) int {
	k.step = c.dataInStep()
	n := c.digests.wireLen(senseRoom)
	if k.inWant > 0 {
		pdus := (k.inWant + k.step - 1) / k.step
		bursts := k.inWant/int(c.sess.params.MaxBurstLength) + 1
		n += k.inWant + (pdus+bursts)*(c.digests.wireLen(1)+4)
	}
	return n
}

// dataInStep is the most data that the initiator takes in a PDU now.
func (c *conn) dataInStep() int { return int(c.step.Load()) }

// dataInLen is the length of the Data-In PDU that begins at off of n bytes: no
// more than the initiator takes at once, and not beyond the end of a burst.
func (k *command) dataInLen(off, n int) int {
	burst := int(k.conn().sess.params.MaxBurstLength)
	return min(k.step, burst-off%burst, n-off)
}

// layout points Task.DataIn to where the data of the answer's PDUs will be in b,
// so that the unit puts it there.
func (k *command) layout(b []byte) {
	k.iov = k.iov[:0]
	c := k.conn()
	at := 0
	for off := 0; off < k.inWant; {
		n := k.dataInLen(off, k.inWant)
		from := at + c.digests.headerLen()
		k.iov = append(k.iov, b[from:from+n:from+n])
		at += c.digests.wireLen(n)
		off += n
	}
	k.DataIn = k.iov
}

// encodeAnswer writes the PDUs of the answer around the data that is already in
// b, and returns their length.
func (k *command) encodeAnswer(b []byte) int {
	c := k.conn()
	if k.cut && k.InLen > uint64(k.inWant) {
		k.Fail(senseTooLong)
		k.InLen = 0
	}
	flags, residual, bidiResidual := k.residuals()
	n := int(min(k.InLen, uint64(k.inWant)))
	// Good status goes with the last data (RFC 7143 11.7.3), if it is alone.
	collapse := n > 0 && k.Status == lun.Good && !k.req.Write
	at := 0
	sn := k.xfer.r2tSN
	for off := 0; off < n; sn++ {
		l := k.dataInLen(off, n)
		p := pdu.DataIn{
			DataSegmentLength: l,
			InitiatorTaskTag:  k.req.InitiatorTaskTag,
			TargetTransferTag: pdu.NoTag,
			DataSN:            sn,
			BufferOffset:      uint32(off),
		}
		off += l
		p.Final = off == n || off%int(c.sess.params.MaxBurstLength) == 0
		if p.Final && off < n && c.sess.params.ErrorRecoveryLevel > 0 {
			// What is acknowledged needn't be kept (RFC 7143 11.7.2).
			p.Acknowledge, p.LUN, p.TargetTransferTag = true, k.req.LUN, c.tagOfData()
		}
		if off == n && collapse {
			p.HasStatus, p.Status, p.Residual, p.ResidualCount = true, uint8(k.Status), flags, residual
		}
		p.Encode(b[at:])
		at += c.digests.headerLen()
		at += c.digests.seal(b[at:], l)
	}
	if collapse {
		return at
	}
	return at + k.encodeResponse(b[at:], sn, flags, residual, bidiResidual)
}

// encodeResponse writes the SCSI Response PDU that says how the command ended after
// sn PDUs of its own numbers, and returns its length.
func (k *command) encodeResponse(b []byte, sn uint32, flags uint8, residual, bidiResidual uint32) int {
	c := k.conn()
	data := 0
	if len(k.Sense) > 0 {
		data = 2 + len(k.Sense)
	}
	p := pdu.SCSIResponse{
		Residual:              flags,
		Status:                uint8(k.Status),
		DataSegmentLength:     data,
		InitiatorTaskTag:      k.req.InitiatorTaskTag,
		ExpDataSN:             sn,
		ResidualCount:         residual,
		BidiReadResidualCount: bidiResidual,
	}
	p.Encode(b)
	at := c.digests.headerLen()
	if data > 0 {
		binary.BigEndian.PutUint16(b[at:], uint16(len(k.Sense)))
		copy(b[at+2:], k.Sense)
		at += c.digests.seal(b[at:], data)
	}
	return at
}

// tagOfData makes the tag by which an initiator acknowledges data.
func (c *conn) tagOfData() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newTTT()
}

// residuals compares what the command moves with what the initiator was ready
// for (RFC 7143 11.4.5, SAM-5 5.4).
func (k *command) residuals() (flags uint8, residual, bidi uint32) {
	diff := func(moved uint64, expected uint32, over, under uint8) uint32 {
		switch d := int64(moved) - int64(expected); {
		case d > 0:
			flags |= over
			return uint32(min(d, math.MaxUint32))
		case d < 0:
			flags |= under
			return uint32(-d)
		}
		return 0
	}
	if !k.req.Write {
		// With neither R nor W there is no data to come, and all is overflow.
		residual = diff(max(k.InLen, k.OutLen), k.req.ExpectedDataTransferLength, pdu.Overflow, pdu.Underflow)
		return flags, residual, 0
	}
	residual = diff(k.OutLen, k.req.ExpectedDataTransferLength, pdu.Overflow, pdu.Underflow)
	if k.req.Read {
		bidi = diff(k.InLen, k.bidiRead, pdu.BidiOverflow, pdu.BidiUnderflow)
	}
	return flags, residual, bidi
}
