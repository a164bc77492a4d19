package lun_test

import (
	"testing"

	"lunlab/lun"
	"lunlab/lun/store/mem"
)

// BenchmarkRandom compares 4 KiB READs and WRITEs of a disk with the same access
// to its store alone: what the device server costs.
func BenchmarkRandom(b *testing.B) {
	const span = 64 << 20
	s, err := mem.New(1 << 30)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := s.WriteAt(make([]byte, span), 0); err != nil {
		b.Fatal(err)
	}
	d, err := lun.NewDisk(s, lun.DiskOptions{Thin: true})
	if err != nil {
		b.Fatal(err)
	}
	n := &lun.Nexus{Name: "n"}
	d.Execute(&lun.Command{Nexus: n, CDB: make([]byte, 6)})
	for _, c := range []struct {
		name string
		code byte
	}{{"READ", 0x28}, {"WRITE", 0x2a}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				cdb, data := transfer(c.code, 0, 8, 0), [][]byte{make([]byte, 4096)}
				cmd := lun.Command{}
				for i := uint32(1); pb.Next(); i++ {
					lba := i * 2654435761 % (span / 4096) * 8
					cdb[2], cdb[3], cdb[4], cdb[5] = byte(lba>>24), byte(lba>>16), byte(lba>>8), byte(lba)
					cmd.Reset()
					cmd.Nexus, cmd.CDB = n, cdb
					if c.code == 0x28 {
						cmd.DataIn = data
					} else {
						cmd.DataOut = data
					}
					if d.Execute(&cmd); cmd.Status != lun.Good {
						b.Errorf("status %#x", cmd.Status)
						return
					}
				}
			})
		})
		b.Run(c.name+"/store", func(b *testing.B) {
			b.RunParallel(func(pb *testing.PB) {
				p := make([]byte, 4096)
				for i := uint32(1); pb.Next(); i++ {
					off := int64(i*2654435761%(span/4096)) * 4096
					if c.code == 0x28 {
						s.ReadAt(p, off)
					} else {
						s.WriteAt(p, off)
					}
				}
			})
		})
	}
}
