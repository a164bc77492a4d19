package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"
)

// client is an iSCSI initiator that does nothing but READ(10) and WRITE(10), as
// cheaply as it can.
type client struct {
	nc      net.Conn
	r       *bufio.Reader
	echo    bool
	lun     byte
	wl      workload
	cmdSN   uint32
	statSN  uint32
	rnd     *rand.Rand
	next    uint32 // block, when sequential
	started []time.Time
	header  [48]byte // of the last PDU
	ready   []byte   // commands to be sent
	payload []byte

	// As negotiated.
	immediate, firstBurst, segment int
}

const blockSize = 512

// connect logs in. Each connection is a session of its own.
func connect(s *server, wl workload, id byte) (*client, error) {
	nc, err := net.DialTimeout("tcp", s.address, 5*time.Second)
	if err != nil {
		return nil, err
	}
	c := &client{
		nc: nc, r: bufio.NewReaderSize(nc, 1<<20), echo: s.echo, lun: s.lun, wl: wl, cmdSN: 1,
		rnd: rand.New(rand.NewPCG(1, uint64(id))), started: make([]time.Time, wl.Depth), payload: make([]byte, wl.Bytes),
		next: uint32(id) * (lunSize / 8 / blockSize),
	}
	for i := range c.payload {
		c.payload[i] = byte(i)
	}
	if s.echo {
		c.immediate = wl.Bytes
		return c, nil
	}
	nc.SetDeadline(time.Now().Add(10 * time.Second))
	if err := c.login(s.target, id); err != nil {
		nc.Close()
		return nil, err
	}
	nc.SetDeadline(time.Time{})
	return c, nil
}

func (c *client) login(target string, id byte) error {
	text := strings.Join([]string{
		"InitiatorName=iqn.2026-01.example.lunlab:bench", "TargetName=" + target, "SessionType=Normal",
		"HeaderDigest=None", "DataDigest=None", "InitialR2T=No", "ImmediateData=Yes", "MaxRecvDataSegmentLength=262144",
		"MaxBurstLength=262144", "FirstBurstLength=262144", "MaxOutstandingR2T=1", "MaxConnections=1", "ErrorRecoveryLevel=0",
		"DefaultTime2Wait=2", "DefaultTime2Retain=0", "DataPDUInOrder=Yes", "DataSequenceInOrder=Yes", "",
	}, "\x00")
	answer := ""
	for try := 0; ; try++ {
		h := make([]byte, 48)
		h[0], h[1] = 0x43, 0x87
		put24(h[5:], len(text))
		copy(h[8:], []byte{0x80, 0, 0, 0, 1, id})
		binary.BigEndian.PutUint32(h[24:], c.cmdSN)
		binary.BigEndian.PutUint32(h[28:], c.statSN)
		if _, err := c.nc.Write(append(h, pad(text)...)); err != nil {
			return err
		}
		op, flags, data, err := c.pdu()
		if err != nil {
			return err
		}
		if op != 0x23 || c.status() != 0 {
			return fmt.Errorf("login: status %04x", c.status())
		}
		c.statSN = binary.BigEndian.Uint32(c.header[24:]) + 1
		answer += string(data)
		if flags&0x80 != 0 {
			break
		}
		if try > 5 {
			return fmt.Errorf("login doesn't end")
		}
		text = ""
	}
	c.segment, c.firstBurst = 8192, 65536
	immediate := true
	for kv := range strings.SplitSeq(answer, "\x00") {
		k, v, _ := strings.Cut(kv, "=")
		switch k {
		case "MaxRecvDataSegmentLength":
			fmt.Sscan(v, &c.segment)
		case "FirstBurstLength":
			fmt.Sscan(v, &c.firstBurst)
		case "ImmediateData":
			immediate = v == "Yes"
		}
	}
	if immediate {
		c.immediate = min(c.segment, c.firstBurst, c.wl.Bytes)
	}
	// Unit attentions.
	for range 8 {
		h := make([]byte, 48)
		h[0], h[1], h[9] = 0x01, 0x81, c.lun
		binary.BigEndian.PutUint32(h[24:], c.cmdSN)
		binary.BigEndian.PutUint32(h[28:], c.statSN)
		c.cmdSN++
		if _, err := c.nc.Write(h); err != nil {
			return err
		}
		if _, _, _, err := c.pdu(); err != nil {
			return err
		}
		c.statSN = binary.BigEndian.Uint32(c.header[24:]) + 1
		if c.header[3] == 0 {
			return nil
		}
	}
	return fmt.Errorf("LUN %d isn't ready", c.lun)
}

// queue makes command tag ready to be sent.
func (c *client) queue(tag uint32) {
	var h [48]byte
	blocks := uint32(c.wl.Bytes / blockSize)
	lba := c.rnd.Uint32N(lunSize/uint32(c.wl.Bytes)) * blocks
	if c.wl.Sequential {
		lba = c.next
		if c.next += blocks; c.next+blocks > lunSize/blockSize {
			c.next = 0
		}
	}
	h[0], h[1], h[9] = 0x01, 0xc1, c.lun
	h[32] = 0x28
	if c.wl.Write {
		h[1], h[32] = 0xa1, 0x2a
		put24(h[5:], c.immediate)
	}
	binary.BigEndian.PutUint32(h[16:], tag)
	binary.BigEndian.PutUint32(h[20:], uint32(c.wl.Bytes))
	binary.BigEndian.PutUint32(h[24:], c.cmdSN)
	binary.BigEndian.PutUint32(h[28:], c.statSN)
	binary.BigEndian.PutUint32(h[34:], lba)
	binary.BigEndian.PutUint16(h[39:], uint16(blocks))
	c.cmdSN++
	c.ready = append(c.ready, h[:]...)
	if c.wl.Write {
		c.ready = append(c.ready, c.payload[:c.immediate]...)
	}
	c.started[tag] = time.Now()
}

// run keeps depth commands in flight until the end, and returns how long each
// took.
func (c *client) run(end time.Time) (latencies []time.Duration, err error) {
	for tag := range c.wl.Depth {
		c.queue(uint32(tag))
	}
	for inFlight := c.wl.Depth; inFlight > 0; {
		// What is ready goes out when there is no answer left to look at.
		if c.r.Buffered() < 48 && len(c.ready) > 0 {
			if _, err := c.nc.Write(c.ready); err != nil {
				return nil, err
			}
			c.ready = c.ready[:0]
		}
		tag, done, err := c.answer()
		if err != nil {
			return nil, err
		}
		if !done {
			continue
		}
		now := time.Now()
		latencies = append(latencies, now.Sub(c.started[tag]))
		if now.Before(end) {
			c.queue(tag)
		} else {
			inFlight--
		}
	}
	return latencies, nil
}

// answer takes one PDU from the target: data, a status, or a wish for data.
func (c *client) answer() (tag uint32, done bool, err error) {
	op, flags, _, err := c.pdu()
	if err != nil {
		return 0, false, err
	}
	tag = binary.BigEndian.Uint32(c.header[16:])
	switch op {
	case 0x25:
		done = flags&1 != 0
	case 0x21:
		done = true
	case 0x31:
		return tag, false, c.sendData()
	case 0x20:
		return 0, false, nil // a ping; the runs are too short to have to answer
	default:
		return 0, false, fmt.Errorf("the target sent %x", c.header)
	}
	if done {
		if c.header[3] != 0 || int(tag) >= len(c.started) {
			return 0, false, fmt.Errorf("status %02x for command %d", c.header[3], tag)
		}
		c.statSN = binary.BigEndian.Uint32(c.header[24:]) + 1
	}
	return tag, done, nil
}

// sendData answers an R2T.
func (c *client) sendData() error {
	off, n := int(binary.BigEndian.Uint32(c.header[40:])), int(binary.BigEndian.Uint32(c.header[44:]))
	for sn := uint32(0); n > 0; sn++ {
		k := min(c.segment, n)
		var h [48]byte
		h[0], h[9] = 0x05, c.lun
		if k == n {
			h[1] = 0x80
		}
		put24(h[5:], k)
		copy(h[16:24], c.header[16:24])
		binary.BigEndian.PutUint32(h[28:], c.statSN)
		binary.BigEndian.PutUint32(h[36:], sn)
		binary.BigEndian.PutUint32(h[40:], uint32(off))
		c.ready = append(c.ready, h[:]...)
		c.ready = append(c.ready, c.payload[:k]...)
		off, n = off+k, n-k
	}
	return nil
}

// drive runs a workload from all its connections at once.
func drive(s *server, wl workload, length time.Duration) (d driven, err error) {
	clients := make([]*client, wl.Connections)
	for i := range clients {
		if clients[i], err = connect(s, wl, byte(i)); err != nil {
			return d, err
		}
		defer clients[i].nc.Close()
	}
	var (
		wg sync.WaitGroup
		mu sync.Mutex
	)
	began := time.Now()
	for _, c := range clients {
		wg.Go(func() {
			c.nc.SetDeadline(began.Add(length + 30*time.Second))
			l, e := c.run(began.Add(length))
			mu.Lock()
			defer mu.Unlock()
			d.latencies = append(d.latencies, l...)
			if e != nil {
				err = e
			}
		})
	}
	wg.Wait()
	d.elapsed = time.Since(began)
	return d, err
}

// driven is what a run came to.
type driven struct {
	latencies []time.Duration
	elapsed   time.Duration
}

// fill writes the LUN in full.
func fill(s *server) error {
	if s.echo {
		return nil
	}
	c, err := connect(s, workload{Write: true, Sequential: true, Bytes: 256 << 10, Depth: 8, Connections: 1}, 0)
	if err != nil {
		return err
	}
	defer c.nc.Close()
	c.nc.SetDeadline(time.Now().Add(time.Minute))
	for range lunSize / c.wl.Bytes / c.wl.Depth {
		if _, err := c.run(time.Time{}); err != nil {
			return err
		}
	}
	return nil
}

func put24(b []byte, n int) { b[0], b[1], b[2] = byte(n>>16), byte(n>>8), byte(n) }

func pad(s string) string { return s + "\x00\x00\x00"[:-len(s)&3] }
