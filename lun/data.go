package lun

import "encoding/binary"

// Room returns how many bytes of data-in fit.
func (c *Command) Room() uint64 { return total(c.DataIn) }

func total(list [][]byte) (n uint64) {
	for _, b := range list {
		n += uint64(len(b))
	}
	return n
}

// Reply answers with data, cut to the allocation length and to the room that
// there is.
func (c *Command) Reply(data []byte, allocation uint64) {
	if uint64(len(data)) > allocation {
		data = data[:allocation]
	}
	c.InLen = uint64(len(data))
	for _, b := range c.DataIn {
		data = data[copy(b, data):]
	}
}

// Gather returns up to limit bytes of data-out in one piece. It may be part of
// DataOut, and is good as long as that is.
func (c *Command) Gather(limit uint64) []byte {
	if len(c.DataOut) > 0 && uint64(len(c.DataOut[0])) >= limit {
		return c.DataOut[0][:limit]
	}
	all := make([]byte, 0, min(limit, total(c.DataOut)))
	for _, b := range c.DataOut {
		all = append(all, b[:min(uint64(len(b)), limit-uint64(len(all)))]...)
	}
	return all
}

// cut calls do for each piece of list between the bytes from and to, with its
// place counted from from, until do returns false.
func cut(list [][]byte, from, to uint64, do func(piece []byte, at uint64) bool) {
	for at := uint64(0); len(list) > 0 && at < to; list = list[1:] {
		b, start := list[0], at
		at += uint64(len(b))
		if at > to {
			b = b[:to-start]
		}
		if start < from {
			if at <= from {
				continue
			}
			b, start = b[from-start:], from
		}
		if len(b) > 0 && !do(b, start-from) {
			return
		}
	}
}

func be16(b []byte) uint16 { return binary.BigEndian.Uint16(b) }
func be32(b []byte) uint32 { return binary.BigEndian.Uint32(b) }
func be64(b []byte) uint64 { return binary.BigEndian.Uint64(b) }

func be24(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }

func put16(b []byte, v uint16) { binary.BigEndian.PutUint16(b, v) }
func put32(b []byte, v uint32) { binary.BigEndian.PutUint32(b, v) }
func put64(b []byte, v uint64) { binary.BigEndian.PutUint64(b, v) }

// number reads the width bytes (up to 8) at b[at:] as one number.
func number(b []byte, at, width int) (v uint64) {
	for _, x := range b[at : at+width] {
		v = v<<8 | uint64(x)
	}
	return v
}

// cursor reads or writes a scatter list from its beginning to its end.
type cursor struct {
	list [][]byte
	off  int // in list[0]
}

// write copies p to the list, as far as there is room.
func (k *cursor) write(p []byte) {
	k.each(len(p), func(piece []byte, at int) { copy(piece, p[at:]) })
}

// read fills p from the list, as far as there is data.
func (k *cursor) read(p []byte) {
	k.each(len(p), func(piece []byte, at int) { copy(p[at:], piece) })
}

// rest returns what is left of the current piece, which isn't empty unless that
// is all.
func (k *cursor) rest() []byte {
	for len(k.list) > 0 {
		if b := k.list[0][k.off:]; len(b) > 0 {
			return b
		}
		k.list, k.off = k.list[1:], 0
	}
	return nil
}

// skip steps over n bytes.
func (k *cursor) skip(n uint64) {
	for n > 0 && len(k.list) > 0 {
		step := min(n, uint64(len(k.list[0])-k.off))
		n -= step
		if k.off += int(step); k.off == len(k.list[0]) {
			k.list, k.off = k.list[1:], 0
		}
	}
}

// each steps over the next n bytes.
func (k *cursor) each(n int, do func(piece []byte, at int)) {
	for at := 0; at < n && len(k.list) > 0; {
		b := k.list[0][k.off:]
		b = b[:min(len(b), n-at)]
		do(b, at)
		at += len(b)
		if k.off += len(b); k.off == len(k.list[0]) {
			k.list, k.off = k.list[1:], 0
		}
	}
}
