package nbd_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"lunlab/lun/store/nbd"
)

// haggled is what a server says until transmission begins: an export of 1 MiB,
// with structured replies and block status.
func haggled() []byte {
	b := []byte("NBDMAGICIHAVEOPT\x00\x03")
	reply := func(option, kind uint32, data string) {
		b = binary.BigEndian.AppendUint64(b, 0x0003e889045565a9)
		b = binary.BigEndian.AppendUint32(b, option)
		b = binary.BigEndian.AppendUint32(b, kind)
		b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
		b = append(b, data...)
	}
	reply(8, 1, "")
	reply(10, 4, "\x00\x00\x00\x07base:allocation")
	reply(10, 1, "")
	reply(7, 3, "\x00\x00\x00\x00\x00\x00\x00\x10\x00\x00\x01\x7d")
	reply(7, 1, "")
	return b
}

// FuzzServer has a server say anything at all, while the client connects, reads,
// asks for block status and closes. Whatever it is told, it comes to an end and
// doesn't write outside what it was given to fill.
func FuzzServer(f *testing.F) {
	chunk := func(flags, kind uint16, cookie uint64, data string) string {
		b := binary.BigEndian.AppendUint32(nil, 0x668e33ef)
		b = binary.BigEndian.AppendUint16(b, flags)
		b = binary.BigEndian.AppendUint16(b, kind)
		b = binary.BigEndian.AppendUint64(b, cookie)
		b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
		return string(b) + data
	}
	good := string(haggled())
	f.Add([]byte(good + chunk(0, 1, 1, "\x00\x00\x00\x00\x00\x00\x00\x10abcd") + chunk(1, 2, 1, "\x00\x00\x00\x00\x00\x00\x00\x14\x00\x00\x00\x0c") +
		chunk(1, 5, 2, "\x00\x00\x00\x07\x00\x00\x10\x00\x00\x00\x00\x03")))
	f.Add([]byte(good + chunk(1, 1, 1, "\x00\x00\x00\x00\x00\x00\x00\x00abcd")))
	f.Add([]byte(good + chunk(1, 1<<15+1, 1, "\x00\x00\x00\x05\x00\x00")))
	f.Add([]byte(good + chunk(1, 0, 99, "")))
	f.Add([]byte(good + "\x67\x44\x66\x98\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00\x01"))
	f.Add([]byte(good[:40]))
	f.Fuzz(func(t *testing.T, said []byte) {
		socket := filepath.Join(t.TempDir(), "s")
		ln, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		go func() {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			go io.Copy(io.Discard, c)
			c.Write(said)
			// Time for the client's requests to come, so that they are answered
			// by what was said before.
			time.Sleep(2 * time.Millisecond)
		}()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s, err := nbd.Open(ctx, "nbd+unix:///x?socket="+socket, nbd.Options{})
		if err != nil {
			return
		}
		p := make([]byte, 32)
		for i := range p {
			p[i] = 0xee
		}
		s.ReadAt(p[8:24], 16)
		for i, b := range p {
			if (i < 8 || i >= 24) && b != 0xee {
				t.Fatalf("byte %d beside the buffer was written", i-8)
			}
		}
		if mapped, n, err := s.Extent(0, 1<<20); err == nil && (n < 1 || n > 1<<20) {
			t.Errorf("Extent = %v, %d", mapped, n)
		}
		s.Sync()
		s.Close()
	})
}
