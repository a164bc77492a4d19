package main

import (
	"encoding/binary"
	"net"
)

// echoCommand as the first argument makes the program the echo server.
const echoCommand = "echo-server"

// echoMain serves on an address: it takes commands and answers them with as many
// bytes as an iSCSI target would, and looks at nothing but the lengths.
func echoMain(address string) error {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	for {
		nc, err := ln.Accept()
		if err != nil {
			return err
		}
		go echo(nc)
	}
}

func echo(nc net.Conn) {
	defer nc.Close()
	in := make([]byte, 64<<10)
	out := make([]byte, 0, 1<<20)
	answer := make([]byte, 256<<10)
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
			size := int(min(binary.BigEndian.Uint32(h[20:]), uint32(len(answer))))
			read := h[1]&0x40 != 0
			at += 48
			if n > 0 {
				// Data, the most of it perhaps still to come.
				here := min(n, have-at)
				at += here
				for n -= here; n > 0; {
					k, err := nc.Read(answer[:min(n, len(answer))])
					if err != nil {
						return
					}
					n -= k
				}
			}
			if read {
				r[0], r[1] = 0x25, 0x81
				put24(r[5:], size)
			} else {
				r[0], r[1] = 0x21, 0x80
			}
			out = append(out, r[:]...)
			if read {
				out = append(out, answer[:size]...)
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
