package main

import (
	"encoding/binary"
	"io"
	"net"
)

// echoCommand as the first argument makes the program the echo server.
const echoCommand = "echo-server"

// echoMain serves on an address: it takes commands and answers them with as many
// bytes as an iSCSI target would, and looks at nothing but lengths and addresses.
// The bytes come from memory of a LUN's size and go there, as those of one that is
// always in the CPU's cache would cost a fraction.
func echoMain(address string) error {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	memory := make([]byte, lunSize)
	for i := range memory {
		memory[i] = byte(i)
	}
	for {
		nc, err := ln.Accept()
		if err != nil {
			return err
		}
		go echo(nc, memory)
	}
}

func echo(nc net.Conn, memory []byte) {
	defer nc.Close()
	in := make([]byte, 64<<10)
	out := make([]byte, 0, 1<<20)
	have := 0
	for {
		k, err := nc.Read(in[have:])
		if err != nil {
			return
		}
		have += k
		at := 0
		for have-at >= 48 {
			h := in[at : at+48]
			n := int(h[5])<<16 | int(h[6])<<8 | int(h[7])
			var r [48]byte
			copy(r[16:20], h[16:20])
			off := int64(binary.BigEndian.Uint32(h[34:])) * blockSize
			size := int64(binary.BigEndian.Uint32(h[20:]))
			if off+size > int64(len(memory)) {
				return
			}
			place := memory[off : off+size]
			read := h[1]&0x40 != 0
			at += 48
			if n > 0 {
				// Data, the most of it perhaps still to come.
				place = place[:min(n, len(place))]
				here := copy(place, in[at:have])
				at += here
				if _, err := io.ReadFull(nc, place[here:]); err != nil {
					return
				}
			}
			if read {
				r[0], r[1] = 0x25, 0x81
				put24(r[5:], len(place))
			} else {
				r[0], r[1] = 0x21, 0x80
			}
			out = append(out, r[:]...)
			if read {
				out = append(out, place...)
			}
			if len(out) > 512<<10 {
				if _, err := nc.Write(out); err != nil {
					return
				}
				out = out[:0]
			}
		}
		have = copy(in, in[at:have])
		if len(out) > 0 {
			if _, err := nc.Write(out); err != nil {
				return
			}
			out = out[:0]
		}
	}
}
