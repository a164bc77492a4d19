package nbd

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"time"
)

// Numbers of the handshake.
const (
	magicServer = 0x4e42444d41474943 // NBDMAGIC
	magicOption = 0x49484156454f5054 // IHAVEOPT
	magicReply  = 0x0003e889045565a9

	serverFixedNewstyle = 1 << 0
	serverNoZeroes      = 1 << 1

	optionGo         = 7
	optionStartTLS   = 5
	optionStructured = 8
	optionSetMeta    = 10

	replyAck  = 1
	replyInfo = 3
	replyMeta = 4
	replyErr  = 1 << 31

	infoExport    = 0
	infoBlockSize = 3

	// maxName is the longest name that a string may have.
	maxName = 4096

	// maxOptionReply bounds what a server may answer to an option, in bytes.
	maxOptionReply = 64 << 10

	// maxOptionReplies bounds how often.
	maxOptionReplies = 1024
)

// Transmission flags.
const (
	flagReadOnly    = 1 << 1
	flagFlush       = 1 << 2
	flagFUA         = 1 << 3
	flagTrim        = 1 << 5
	flagWriteZeroes = 1 << 6
	flagMultiConn   = 1 << 8
)

// export is what the server says of the export.
type export struct {
	size       int64
	flags      uint16
	payload    int64 // most bytes for one request with data
	structured bool
	status     bool // base:allocation can be asked for
	context    uint32
}

func (e export) has(flag uint16) bool { return e.flags&flag != 0 }

// maxLeast is the least that a server may ask a request to be long, in bytes: a
// block.
const maxLeast = 512

// defaultPayload is what every server takes, in bytes.
const defaultPayload = 32 << 20

// dial connects and haggles.
func dial(ctx context.Context, t target, o *Options, log *unflushed) (*conn, export, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, t.network, t.address)
	if err != nil {
		return nil, export{}, err
	}
	// The deadline, or the end of ctx, ends the handshake.
	stop := context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
	h := handshake{nc}
	e, err := h.run(ctx, t, o.TLS)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		nc.Close()
		return nil, e, err
	}
	return newConn(h.c, e, o.Timeout, log), e, nil
}

// handshake is a connection before transmission.
type handshake struct{ c net.Conn }

func (h *handshake) run(ctx context.Context, t target, config *tls.Config) (e export, err error) {
	var hello [18]byte
	if _, err := io.ReadFull(h.c, hello[:]); err != nil {
		return e, fmt.Errorf("greeting: %w", err)
	}
	flags := binary.BigEndian.Uint16(hello[16:])
	if binary.BigEndian.Uint64(hello[:]) != magicServer || binary.BigEndian.Uint64(hello[8:]) != magicOption {
		return e, errors.New("the server doesn't speak the newstyle NBD protocol")
	}
	if flags&serverFixedNewstyle == 0 {
		return e, errors.New("the server doesn't speak the fixed newstyle NBD protocol")
	}
	answer := binary.BigEndian.AppendUint32(nil, uint32(flags&(serverFixedNewstyle|serverNoZeroes)))
	if _, err := h.c.Write(answer); err != nil {
		return e, err
	}
	if t.tls {
		if err := h.startTLS(ctx, config); err != nil {
			return e, fmt.Errorf("TLS: %w", err)
		}
	}
	err = h.option(optionStructured, nil, nil)
	e.structured = err == nil
	if err != nil && !isRefusal(err) {
		return e, err
	}
	if e.structured {
		err := h.option(optionSetMeta, metaRequest(t.export), func(kind uint32, b []byte) error {
			if kind == replyMeta && len(b) >= 4 && string(b[4:]) == allocation {
				e.status, e.context = true, binary.BigEndian.Uint32(b)
			}
			return nil
		})
		if err != nil && !isRefusal(err) {
			return e, err
		}
	}
	return e, h.goTo(t.export, &e)
}

const allocation = "base:allocation"

func metaRequest(name string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(name)))
	b = append(b, name...)
	b = binary.BigEndian.AppendUint32(b, 1)
	b = binary.BigEndian.AppendUint32(b, uint32(len(allocation)))
	return append(b, allocation...)
}

func (h *handshake) startTLS(ctx context.Context, config *tls.Config) error {
	if err := h.option(optionStartTLS, nil, nil); err != nil {
		return err
	}
	c := tls.Client(h.c, config)
	if err := c.HandshakeContext(ctx); err != nil {
		return err
	}
	h.c = c
	return nil
}

// goTo enters transmission.
func (h *handshake) goTo(name string, e *export) error {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(name)))
	b = append(b, name...)
	b = append(b, 0, 1, 0, infoBlockSize)
	found := false
	e.payload = defaultPayload
	err := h.option(optionGo, b, func(kind uint32, b []byte) error {
		if kind != replyInfo || len(b) < 2 {
			return nil
		}
		switch info := binary.BigEndian.Uint16(b); {
		case info == infoExport && len(b) == 12:
			size := binary.BigEndian.Uint64(b[2:])
			if size > math.MaxInt64 {
				return fmt.Errorf("the export has %d bytes", size)
			}
			found, e.size, e.flags = true, int64(size), binary.BigEndian.Uint16(b[10:])
		case info == infoBlockSize && len(b) == 14:
			if least := binary.BigEndian.Uint32(b[2:]); least > maxLeast {
				return fmt.Errorf("the server takes no requests of fewer than %d bytes", least)
			}
			if most := int64(binary.BigEndian.Uint32(b[10:])); most >= 512 {
				e.payload = min(most, defaultPayload)
			}
		}
		return nil
	})
	if err == nil && !found {
		err = errors.New("the server didn't say how large the export is")
	}
	return err
}

// refusal is an option that the server doesn't take.
type refusal struct {
	option, code uint32
	text         string
}

func (r refusal) Error() string {
	why := map[uint32]string{1: "it isn't supported", 2: "forbidden by policy", 3: "invalid", 4: "not on this platform",
		5: "TLS is required", 6: "no such export", 7: "the server is shutting down", 8: "block sizes are required", 9: "too big"}[r.code&^replyErr]
	return fmt.Sprintf("the server refused option %d: %s (%#x) %s", r.option, why, r.code, r.text)
}

func isRefusal(err error) bool {
	var r refusal
	return errors.As(err, &r)
}

// option sends an option, hands its replies to do, and returns at the last one.
func (h *handshake) option(option uint32, data []byte, do func(kind uint32, b []byte) error) error {
	b := binary.BigEndian.AppendUint64(nil, magicOption)
	b = binary.BigEndian.AppendUint32(b, option)
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	if _, err := h.c.Write(append(b, data...)); err != nil {
		return err
	}
	for range maxOptionReplies {
		var head [20]byte
		if _, err := io.ReadFull(h.c, head[:]); err != nil {
			return fmt.Errorf("option %d: %w", option, err)
		}
		kind, n := binary.BigEndian.Uint32(head[12:]), binary.BigEndian.Uint32(head[16:])
		if binary.BigEndian.Uint64(head[:]) != magicReply || binary.BigEndian.Uint32(head[8:]) != option || n > maxOptionReply {
			return fmt.Errorf("the reply to option %d is damaged", option)
		}
		b := make([]byte, n)
		if _, err := io.ReadFull(h.c, b); err != nil {
			return fmt.Errorf("option %d: %w", option, err)
		}
		switch {
		case kind&replyErr != 0:
			return refusal{option, kind, string(b)}
		case kind == replyAck:
			return nil
		case do != nil:
			if err := do(kind, b); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("the server doesn't stop replying to option %d", option)
}
