package sat_test

import (
	"testing"

	"lunlab/ata"
	"lunlab/ata/sat"
	"lunlab/lun"
	"lunlab/lun/store/mem"
)

// BenchmarkRandom compares 4 KiB READs and WRITEs of an ATA drive behind the translation
// with those of a disk: what the drive and the translation cost.
func BenchmarkRandom(b *testing.B) {
	const span = 64 << 20
	open := func() *mem.Store {
		s, err := mem.New(span)
		if err == nil {
			_, err = s.WriteAt(make([]byte, span), 0)
		}
		if err != nil {
			b.Fatal(err)
		}
		return s
	}
	disk, err := lun.NewDisk(open(), lun.DiskOptions{})
	if err != nil {
		b.Fatal(err)
	}
	drive, err := ata.New(open(), ata.Options{})
	if err != nil {
		b.Fatal(err)
	}
	translated, err := sat.New(drive)
	if err != nil {
		b.Fatal(err)
	}
	n := &lun.Nexus{Name: "n"}
	for _, x := range []struct {
		name string
		unit lun.Unit
	}{{"ATA", translated}, {"disk", disk}} {
		x.unit.Execute(&lun.Command{Nexus: n, CDB: make([]byte, 6)})
		for _, c := range []struct {
			name string
			code byte
		}{{"READ", 0x28}, {"WRITE", 0x2a}} {
			b.Run(c.name+"/"+x.name, func(b *testing.B) {
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					cdb, data := unhex(b, "0000 00000000 00 0008 00"), [][]byte{make([]byte, 4096)}
					cdb[0] = c.code
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
						if x.unit.Execute(&cmd); cmd.Status != lun.Good {
							b.Errorf("status %#x", cmd.Status)
							return
						}
					}
				})
			})
		}
	}
}
