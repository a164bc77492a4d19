package vhostuser

import (
	"math/bits"

	"lunlab/lun"
	"lunlab/target"
)

// The virtio-scsi device (virtio 1.2 5.6).

// Feature bits.
const (
	featureInOut   = 1 << 0
	featureHotplug = 1 << 1
	featureChange  = 1 << 2
	featureT10PI   = 1 << 3

	featureIndirect = 1 << 28 // VIRTIO_F_INDIRECT_DESC
	featureEventIdx = 1 << 29 // VIRTIO_F_EVENT_IDX
	featureProtocol = 1 << 30 // VHOST_USER_F_PROTOCOL_FEATURES
	featureVersion1 = 1 << 32 // VIRTIO_F_VERSION_1
)

// Virtqueues.
const (
	controlQueue  = 0
	eventQueue    = 1
	firstRequests = 2

	// MaxQueues is the most request queues of a device.
	MaxQueues = 256
)

// response is how the device did with a request (virtio 1.2 5.6.6.1).
type response uint8

const (
	responseOK                response = 0
	responseOverrun           response = 1
	responseAborted           response = 2
	responseBadTarget         response = 3
	responseReset             response = 4
	responseBusy              response = 5
	responseFailure           response = 9
	responseFunctionSucceeded response = 10
	responseFunctionRejected  response = 11
	responseIncorrectLUN      response = 12
)

const (
	cdbSize   = 32 // of requests, the default of the configuration space
	senseSize = 96 // of responses, likewise

	requestSize   = 19 + cdbSize
	requestPISize = requestSize + 8
	responseSize  = 12 + senseSize
)

// requestHeader is struct virtio_scsi_cmd_req, or virtio_scsi_cmd_req_pi.
type requestHeader struct {
	lun         [8]byte
	id          uint64
	attr, prio  byte
	outPI, inPI uint32 // bytes of protection information before the data
	cdb         [cdbSize]byte
}

// decode reads b, which is requestSize or requestPISize bytes long.
func (h *requestHeader) decode(b []byte) {
	copy(h.lun[:], b)
	h.id, h.attr, h.prio = le.Uint64(b[8:]), b[16], b[17]
	h.outPI, h.inPI = 0, 0
	if len(b) >= requestPISize {
		h.outPI, h.inPI = le.Uint32(b[19:]), le.Uint32(b[23:])
		b = b[8:]
	}
	copy(h.cdb[:], b[19:])
}

// address makes SAM's address of virtio's (virtio 1.2 5.6.6.1). There is one
// target, number 0.
func address(l [8]byte) (a target.Address, ok bool) {
	if target.Address(l) == target.ReportLUNsWellKnown {
		return target.ReportLUNsWellKnown, true
	}
	if l[0] != 1 || l[1] != 0 || l[4]|l[5]|l[6]|l[7] != 0 {
		return a, false
	}
	a[0], a[1] = l[2], l[3]
	return a, true
}

// lunOf is the address of logical unit n for an event.
func lunOf(n uint16) [8]byte { return [8]byte{1, 0, 0x40 | byte(n>>8), byte(n)} }

// attribute is SAM's for that of a request (virtio 1.2 5.6.6.1).
func attribute(a byte) (lun.TaskAttribute, bool) {
	switch a {
	case 0:
		return lun.Simple, true
	case 1:
		return lun.Ordered, true
	case 2:
		return lun.HeadOfQueue, true
	case 3:
		return lun.ACA, true
	}
	return 0, false
}

// tagOf makes a tag of a request's id, another for each. Drivers take addresses for
// ids, whose low bits are all alike, and task sets hash by those.
func tagOf(id uint64) uint64 { return bits.RotateLeft64(id*0x9e3779b97f4a7c15, 32) }

// answer is what goes into struct virtio_scsi_cmd_resp.
type answer struct {
	sense    []byte
	residual uint32
	status   lun.Status
	response response
}

func (a *answer) encode(b *[responseSize]byte) {
	clear(b[:])
	n := copy(b[12:], a.sense)
	le.PutUint32(b[0:], uint32(n))
	le.PutUint32(b[4:], a.residual)
	b[10], b[11] = byte(a.status), byte(a.response)
}

// configSpace is struct virtio_scsi_config.
type configSpace struct{ queues, segments, sectors, cmdPerLUN uint32 }

const configSize = 36

func (c configSpace) encode() (b [configSize]byte) {
	le.PutUint32(b[0:], c.queues)
	le.PutUint32(b[4:], c.segments)
	le.PutUint32(b[8:], c.sectors)
	le.PutUint32(b[12:], c.cmdPerLUN)
	le.PutUint32(b[16:], eventSize)
	le.PutUint32(b[20:], senseSize)
	le.PutUint32(b[24:], cdbSize)
	// max_channel and max_target are 0.
	le.PutUint32(b[32:], target.MaxNumber)
	return b
}
