package isns

import (
	"context"
	"encoding/binary"
	"net"
	"sync"
	"time"
)

const (
	// maxInquirers is how many connections are answered at a time.
	maxInquirers = 8

	// inquirerIdle is how long one may be silent.
	inquirerIdle = 10 * time.Minute
)

// answer answers the server's inquiries on ln until it is closed.
func (c *Client) answer(ln net.Listener) {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	room := make(chan struct{}, maxInquirers)
	for {
		nc, err := ln.Accept()
		if err != nil {
			return
		}
		select {
		case room <- struct{}{}:
		default:
			nc.Close()
			continue
		}
		stop := context.AfterFunc(ctx, func() { nc.Close() })
		wg.Go(func() {
			defer func() { <-room }()
			defer stop()
			defer nc.Close()
			for {
				nc.SetDeadline(time.Now().Add(inquirerIdle))
				m, err := readMessage(nc)
				if err != nil {
					return
				}
				r := message{function: m.function | fnResponse, flags: flagClient, xid: m.xid, payload: c.reply(&m)}
				if _, err := nc.Write(r.encode()); err != nil {
					return
				}
			}
		})
	}
}

// reply is what answers a message of the server's: an inquiry after the entity's
// status with its own attributes, a notification with whom it was for
// (RFC 4171 5.7.5.8, 5.7.5.14).
func (c *Client) reply(m *message) []byte {
	ok := binary.BigEndian.AppendUint32(nil, uint32(statusOK))
	attrs, err := parseAttributes(m.payload)
	switch {
	case err != nil || len(m.payload) > maxChunk:
		return binary.BigEndian.AppendUint32(nil, uint32(statusFormat))
	case m.function == fnESI:
		return appendAttributes(ok, attrs...)
	case m.function == fnSCN:
		select {
		case c.kick <- struct{}{}:
		default:
		}
		for _, a := range attrs {
			if a.tag == tagName {
				return appendAttributes(ok, a)
			}
		}
		return ok
	}
	return binary.BigEndian.AppendUint32(nil, uint32(statusNoMethod))
}
