package vhostuser

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The messages of the vhost-user protocol, as QEMU's docs/interop/vhost-user.rst
// has them. All numbers are of the host's byte order; hosts of the other one are
// not provided for.
var le = binary.LittleEndian

// request is what a message asks for.
type request uint32

const (
	reqGetFeatures         request = 1
	reqSetFeatures         request = 2
	reqSetOwner            request = 3
	reqResetOwner          request = 4
	reqSetMemTable         request = 5
	reqSetVringNum         request = 8
	reqSetVringAddr        request = 9
	reqSetVringBase        request = 10
	reqGetVringBase        request = 11
	reqSetVringKick        request = 12
	reqSetVringCall        request = 13
	reqSetVringErr         request = 14
	reqGetProtocolFeatures request = 15
	reqSetProtocolFeatures request = 16
	reqGetQueueNum         request = 17
	reqSetVringEnable      request = 18
	reqSetBackendReqFD     request = 21
	reqGetConfig           request = 24
	reqSetConfig           request = 25
	reqGetInflightFD       request = 31
	reqSetInflightFD       request = 32
	reqResetDevice         request = 34
	reqVringKick           request = 35
	reqGetMaxMemSlots      request = 36
	reqAddMemReg           request = 37
	reqRemMemReg           request = 38
	reqSetStatus           request = 39
	reqGetStatus           request = 40
)

const (
	headerSize = 12

	flagVersion     = 1
	flagVersionMask = 3
	flagReply       = 1 << 2
	flagNeedReply   = 1 << 3

	// maxPayload is more than any message has.
	maxPayload = 4096

	// maxFDs is how many file descriptors a message may carry.
	maxFDs = 8
)

// header begins each message.
type header struct {
	request request
	flags   uint32
	size    uint32 // of what follows, in bytes
}

var errMessage = errors.New("malformed message")

// decode reads the header of what a front end asks for.
func (h *header) decode(b []byte) error {
	if err := h.parse(b); err != nil {
		return err
	}
	if h.flags&flagReply != 0 {
		return fmt.Errorf("%w: a reply to nothing", errMessage)
	}
	return nil
}

func (h *header) parse(b []byte) error {
	if len(b) < headerSize {
		return fmt.Errorf("%w: a header of %d bytes", errMessage, len(b))
	}
	h.request, h.flags, h.size = request(le.Uint32(b)), le.Uint32(b[4:]), le.Uint32(b[8:])
	switch {
	case h.flags&flagVersionMask != flagVersion:
		return fmt.Errorf("%w: version %d", errMessage, h.flags&flagVersionMask)
	case h.size > maxPayload:
		return fmt.Errorf("%w: %d bytes", errMessage, h.size)
	}
	return nil
}

// reply makes a message that answers h with a payload.
func (h *header) reply(payload []byte) []byte {
	return header{request: h.request, flags: flagReply}.message(payload)
}

// message makes a message of a payload, with h's request and flags.
func (h header) message(payload []byte) []byte {
	b := make([]byte, 0, headerSize+len(payload))
	b = le.AppendUint32(b, uint32(h.request))
	b = le.AppendUint32(b, flagVersion|h.flags)
	b = le.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...)
}

// sized returns an error unless b has at least want bytes.
func sized(b []byte, want int) error {
	if len(b) < want {
		return fmt.Errorf("%w: %d bytes of payload, want %d", errMessage, len(b), want)
	}
	return nil
}

func decodeU64(b []byte) (uint64, error) {
	if err := sized(b, 8); err != nil {
		return 0, err
	}
	return le.Uint64(b), nil
}

// vringState is a virtqueue and a number.
type vringState struct{ index, num uint32 }

func (s *vringState) decode(b []byte) error {
	if err := sized(b, 8); err != nil {
		return err
	}
	s.index, s.num = le.Uint32(b), le.Uint32(b[4:])
	return nil
}

func (s vringState) append(b []byte) []byte {
	return le.AppendUint32(le.AppendUint32(b, s.index), s.num)
}

// vringAddr says where in the front end's address space a virtqueue lies.
type vringAddr struct {
	index, flags      uint32
	desc, used, avail uint64
}

func (a *vringAddr) decode(b []byte) error {
	if err := sized(b, 40); err != nil {
		return err
	}
	a.index, a.flags = le.Uint32(b), le.Uint32(b[4:])
	a.desc, a.used, a.avail = le.Uint64(b[8:]), le.Uint64(b[16:]), le.Uint64(b[24:])
	return nil
}

// vringFD is a virtqueue whose file descriptor comes along, or none does.
type vringFD struct {
	index uint32
	none  bool
}

func (f *vringFD) decode(b []byte) error {
	v, err := decodeU64(b)
	f.index, f.none = uint32(v&0xff), v&0x100 != 0
	return err
}

// memoryRegion describes memory whose file descriptor comes along.
type memoryRegion struct {
	guest  uint64 // where the guest has it
	size   uint64
	user   uint64 // where the front end has it
	offset uint64 // in the file
}

const memoryRegionSize = 32

func (r *memoryRegion) decode(b []byte) error {
	if err := sized(b, memoryRegionSize); err != nil {
		return err
	}
	r.guest, r.size, r.user, r.offset = le.Uint64(b), le.Uint64(b[8:]), le.Uint64(b[16:]), le.Uint64(b[24:])
	if r.size == 0 || r.guest+r.size-1 < r.guest || r.user+r.size-1 < r.user || r.offset+r.size < r.offset {
		return fmt.Errorf("%w: memory of %#x bytes at %#x, %#x, %#x", errMessage, r.size, r.guest, r.user, r.offset)
	}
	return nil
}

// decodeMemTable reads the regions of SET_MEM_TABLE.
func decodeMemTable(b []byte) ([]memoryRegion, error) {
	if err := sized(b, 8); err != nil {
		return nil, err
	}
	n := le.Uint32(b)
	if n > maxFDs {
		return nil, fmt.Errorf("%w: %d regions of memory", errMessage, n)
	}
	list := make([]memoryRegion, n)
	for i := range list {
		if err := sized(b, 8+(i+1)*memoryRegionSize); err != nil {
			return nil, err
		}
		if err := list[i].decode(b[8+i*memoryRegionSize:]); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// decodeMemRegion reads that of ADD_MEM_REG and REM_MEM_REG.
func decodeMemRegion(b []byte) (r memoryRegion, err error) {
	if err := sized(b, 8); err != nil {
		return r, err
	}
	return r, r.decode(b[8:])
}

// configAccess is a part of the configuration space.
type configAccess struct {
	offset, size, flags uint32
	data                []byte // size bytes
}

const configAccessSize = 12

func (c *configAccess) decode(b []byte) error {
	if err := sized(b, configAccessSize); err != nil {
		return err
	}
	c.offset, c.size, c.flags = le.Uint32(b), le.Uint32(b[4:]), le.Uint32(b[8:])
	if c.size > maxPayload {
		return fmt.Errorf("%w: %d bytes of configuration", errMessage, c.size)
	}
	if err := sized(b, configAccessSize+int(c.size)); err != nil {
		return err
	}
	c.data = b[configAccessSize:][:c.size]
	return nil
}

func (c configAccess) append(b []byte) []byte {
	b = le.AppendUint32(b, c.offset)
	b = le.AppendUint32(b, uint32(len(c.data)))
	b = le.AppendUint32(b, c.flags)
	return append(b, c.data...)
}
