package probe

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// From a guest with the series of 2025-11-17.
const symbolText = `ffffffff81000000 T _stext
ffffffff81000000 T _text
ffffffff814df780 T scsi_change_queue_depth
ffffffff814df870 t scsi_vpd_inquiry
ffffffff814df800 T scsi_track_queue_full
ffffffff82000000 D scsi_translate
ffffffff815a3300 t ata_scsi_translate.constprop.0
ffffffffc0000000 t __ata_scsi_queuecmd	[libata]
ffffffffc0000540 t ata_scsi_queuecmd	[libata]
0000000000000000 A fixed_percpu_data
`

func TestReadSymbols(t *testing.T) {
	got, err := readSymbols(strings.NewReader(symbolText), "scsi_change_queue_depth", "ata_scsi_translate", "__ata_scsi_queuecmd", "scsi_translate", "ata_scsi_qc_new")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]symbol{
		"scsi_change_queue_depth": {0xffffffff814df780, 0x80},
		"ata_scsi_translate":      {0xffffffff815a3300, maxCode},
		"__ata_scsi_queuecmd":     {0xffffffffc0000000, 0x540},
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(symbol{})); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func TestReadSymbolsErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"0000000000000000 T scsi_change_queue_depth\n", "hides its addresses"},
		{"ffffffff81000000 scsi_change_queue_depth\n", "want an address"},
		{"nonsense\n", "want an address"},
		{"ffffffff81000000 T \n", "want an address"},
		{strings.Repeat("f", 1<<17), "token too long"},
	} {
		if _, err := readSymbols(strings.NewReader(c.text), "scsi_change_queue_depth"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.40q: got %v, want %q", c.text, err, c.want)
		}
	}
}

func FuzzReadSymbols(f *testing.F) {
	f.Add(symbolText)
	f.Add("0 t a\n1 t a.b\tc")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := readSymbols(strings.NewReader(text), "scsi_change_queue_depth", "a")
		if err != nil {
			return
		}
		for name, s := range got {
			if s.addr == 0 || s.size < 1 || s.size > maxCode {
				t.Errorf("%s: %+v", name, s)
			}
			if !strings.Contains(text, name) {
				t.Errorf("%s isn't in %q", name, text)
			}
		}
	})
}
