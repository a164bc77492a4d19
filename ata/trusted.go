package ata

import "encoding/binary"

// Of the Trusted Computing feature set there is protocol 00h, which says that there is
// no other (SPC-5 7.7.2).

// trustedLength is how much TRUSTED RECEIVE moves, 0 if it is refused: its length counts
// blocks of 512 bytes.
func trustedLength(_ *Drive, t *Taskfile) uint64 {
	protocol, specific := byte(t.Feature), uint16(t.LBA>>8)
	length := uint64(byte(t.Count)) | t.LBA&0xff<<8
	if protocol != 0 || specific > 1 {
		return 0
	}
	return length * wordBlock
}

func (d *Drive) trustedReceive(t *Task) failure {
	n := trustedLength(d, &t.Taskfile)
	if n == 0 {
		return badField
	}
	b := make([]byte, n)
	if t.LBA>>8&0xffff == 0 {
		binary.BigEndian.PutUint16(b[6:], 1) // a list of one: protocol 00h
	}
	t.reply(b)
	return failure{}
}
