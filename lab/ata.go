package lab

import (
	"encoding/binary"
	"time"

	"github.com/goccy/go-yaml/ast"

	"lunlab/ata"
	"lunlab/ata/sat"
	"lunlab/lun"
	"lunlab/lun/store"
)

// ATA makes a LUN an ATA drive behind a SCSI/ATA translation. See [ata.Options]; the rest
// of those comes from the LUN.
type ATA struct {
	Model        string
	Firmware     string
	QueueDepth   int
	SpinUp       time.Duration
	SelfTestTime time.Duration
}

// notATA are the keys of a LUN that an ATA drive has no use for.
var notATA = []string{
	"vendor", "product", "revision", "eui", "unmap_by", "lbprz", "soft_threshold", "protection", "read_only",
	"removable", "streams", "zones", "alua", "max_transfer", "short_commands",
}

func (l *loader) ata(n ast.Node) *ATA {
	a := &ATA{}
	l.mapping(n, "ata",
		field{"model", false, l.ascii("model", 40, &a.Model)},
		field{"firmware", false, l.ascii("firmware", 8, &a.Firmware)},
		field{"queue_depth", false, integer(l.decoder, "queue_depth", 1, 32, &a.QueueDepth)},
		field{"spin_up", false, l.duration("spin_up", &a.SpinUp)},
		field{"self_test_time", false, l.duration("self_test_time", &a.SelfTestTime)},
	)
	return a
}

// checkATA looks whether an ATA drive can be as the LUN is to be.
func (l *loader) checkATA(u *LUN, where map[string]pos) {
	if u.ATA == nil {
		return
	}
	for _, key := range notATA {
		if p, ok := where[key]; ok {
			l.fail(p, "%s is for a LUN that isn't an ATA drive; leave it or ata out", key)
		}
	}
	if len(u.Serial) > 20 {
		l.fail(where["serial"], "serial has %d characters; an ATA drive has up to 20", len(u.Serial))
	}
	if n := u.NAA; len(n) > 0 && (len(n) != 8 || n[0]>>4 == 2) {
		l.fail(where["naa"], "naa of an ATA drive has 16 hexadecimal digits that begin with 3 or 5")
	}
	if r := u.RotationRate; r > 1 && r < 0x401 {
		l.fail(where["rotation_rate"], "rotation_rate is %d; that of an ATA drive is 1, or 1025 and up", r)
	}
}

// openATA makes the drive that a LUN is.
func (u *LUN) openATA(s store.Store) (*sat.Unit, error) {
	o := ata.Options{
		BlockSize: u.BlockSize, PhysicalExponent: u.PhysicalExponent, LowestAligned: u.LowestAligned,
		Model: u.ATA.Model, Firmware: u.ATA.Firmware, Serial: u.Serial, QueueDepth: u.ATA.QueueDepth,
		Trim: u.Thin, WriteThrough: u.WriteThrough, RotationRate: u.RotationRate, FormFactor: u.FormFactor,
		SpinUp: u.ATA.SpinUp, EraseTime: u.EraseTime, SelfTestTime: u.ATA.SelfTestTime,
	}
	if u.State != "" {
		o.Memory = lun.StateFile(u.State)
	}
	if len(u.NAA) == 8 {
		o.WWN = binary.BigEndian.Uint64(u.NAA)
	}
	d, err := ata.New(s, o)
	if err != nil {
		return nil, err
	}
	return sat.New(d)
}

// BlockSize returns the length of a logical block in bytes, as the LUN was made.
func (u *Unit) BlockSize() int {
	if u.ATA != nil {
		return u.ATA.Drive().Options().BlockSize
	}
	return u.Disk.Options().BlockSize
}

// Blocks returns how many logical blocks the LUN has.
func (u *Unit) Blocks() uint64 {
	if u.ATA != nil {
		return u.ATA.Drive().Blocks()
	}
	return u.Disk.Blocks()
}

// Serial returns the LUN's serial number.
func (u *Unit) Serial() string {
	if u.ATA != nil {
		return u.ATA.Drive().Options().Serial
	}
	return u.Disk.Options().Serial
}
