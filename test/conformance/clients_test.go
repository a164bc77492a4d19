package conformance

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"lunlab/test/need"
)

// wantLines fails the test unless each pattern matches a line of out.
func wantLines(t *testing.T, out string, patterns ...string) {
	t.Helper()
	for _, p := range patterns {
		if !regexp.MustCompile(`(?m)^` + p + `$`).MatchString(out) {
			t.Errorf("no line matches %q in:\n%s", p, out)
		}
	}
}

func TestLibiscsiTools(t *testing.T) {
	for _, p := range []string{"iscsi-ls", "iscsi-inq", "iscsi-readcapacity16"} {
		need.Program(t, p, "libiscsi-bin")
	}
	portal := serve(t)
	wantLines(t, run(t, "iscsi-ls", "-s", "iscsi://"+portal),
		`Target:`+regexp.QuoteMeta(targetName)+` Portal:`+regexp.QuoteMeta(portal)+`,1`,
		`Lun:0 +Type:DIRECT_ACCESS \(Size:1023M\)`,
		`Lun:1 +Type:DIRECT_ACCESS \(Size:1023G\)`)
	wantLines(t, run(t, "iscsi-inq", url(portal, 0)),
		`Peripheral Qualifier:CONNECTED`,
		`Peripheral Device Type:DIRECT_ACCESS`,
		`Vendor:LUNLAB  `,
		`Product:memory          `,
		`CmdQue:1`)
	wantLines(t, run(t, "iscsi-inq", "-e", "1", "-c", "0", url(portal, 0)), `Page:0x00 SUPPORTED_VPD_PAGES`, `Page:0x83 DEVICE_IDENTIFICATION`)
	wantLines(t, run(t, "iscsi-readcapacity16", url(portal, 1)),
		`RETURNED LOGICAL BLOCK ADDRESS:2147483647`,
		`LOGICAL BLOCK LENGTH IN BYTES:512`,
		`LBPME:1 LBPRZ:1`,
		`Total size:1099511627776`)
}

// needQEMU requires QEMU's tools with their iSCSI driver.
func needQEMU(t *testing.T) {
	need.Program(t, "qemu-img", "qemu-utils")
	need.Program(t, "qemu-io", "qemu-utils")
	if out := run(t, "qemu-img", "--help"); !strings.Contains(out, " iscsi") {
		need.Missing(t, "qemu-img has no iSCSI driver: apt-get install qemu-block-extra")
	}
}

func TestQEMUImg(t *testing.T) {
	needQEMU(t)
	portal := serve(t)
	wantLines(t, run(t, "qemu-img", "info", url(portal, 0)), `virtual size: 1 GiB \(1073741824 bytes\)`)
	wantLines(t, run(t, "qemu-img", "info", url(portal, 1)), `virtual size: 1 TiB \(1099511627776 bytes\)`)

	// An image goes in, and the same comes out: data of all lengths, and holes.
	dir := t.TempDir()
	image, back := filepath.Join(dir, "image"), filepath.Join(dir, "back")
	f, err := os.Create(image)
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.NewChaCha8([32]byte{1})
	for off := int64(0); off < 48<<20; {
		b := make([]byte, 512*(1+int(rnd.Uint64()%4096)))
		rnd.Read(b)
		if _, err := f.WriteAt(b, off); err != nil {
			t.Fatal(err)
		}
		off += int64(len(b)) + 65536*int64(rnd.Uint64()%16)
	}
	if err := f.Truncate(64 << 20); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	run(t, "qemu-img", "convert", "-n", "-O", "raw", image, url(portal, 0))
	// The LUN is longer than the image; the rest of it is zeros.
	wantLines(t, run(t, "qemu-img", "compare", "-f", "raw", "-F", "raw", image, url(portal, 0)),
		`(Warning: Image size mismatch!\n)?Images are identical\.`)
	run(t, "qemu-img", "convert", "-f", "raw", "-O", "raw", url(portal, 0), back)
	want, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	g, err := os.Open(back)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if _, err := g.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("what came out isn't what went in")
	}
}

func TestQEMUIO(t *testing.T) {
	needQEMU(t)
	portal := serve(t)
	// Lengths around the first burst, the burst, and what a PDU holds; at the
	// very end of the thin LUN too.
	out := run(t, "qemu-io", "-f", "raw",
		"-c", "write -P 0x11 0 512",
		"-c", "write -P 0x22 512 65536",
		"-c", "write -P 0x33 1M 7M",
		"-c", "write -P 0x44 1099511627264 512",
		"-c", "aio_write -P 0x55 16M 4M",
		"-c", "aio_write -P 0x66 20M 4M",
		"-c", "aio_flush",
		"-c", "flush",
		"-c", "read -P 0x11 0 512",
		"-c", "read -P 0x22 512 65536",
		"-c", "read -P 0x33 1M 7M",
		"-c", "read -P 0x44 1099511627264 512",
		"-c", "read -P 0x55 16M 4M",
		"-c", "read -P 0x66 20M 4M",
		"-c", "discard 1M 7M",
		"-c", "read -P 0 1M 7M",
		"-c", "write -z 512 65536",
		"-c", "read -P 0 512 65536",
		url(portal, 1))
	if strings.Contains(out, "verification failed") || strings.Contains(out, "error") {
		t.Errorf("qemu-io:\n%s", out)
	}
	wantLines(t, out, `wrote 7340032/7340032 bytes at offset 1048576`, `read 512/512 bytes at offset 1099511627264`,
		`discard 7340032/7340032 bytes at offset 1048576`)
	// A pattern that isn't there is found out, so the checks above mean something.
	if out := run(t, "sh", "-c", `qemu-io -f raw -c "read -P 0x99 16M 4M" "$0" 2>&1 || true`, url(portal, 1)); !strings.Contains(out, "Pattern verification failed") {
		t.Errorf("a wrong pattern was not noticed:\n%s", out)
	}
}

// TestCHAP has libiscsi authenticate, in both directions, as lab.yaml says.
func TestCHAP(t *testing.T) {
	need.Program(t, "iscsi-inq", "libiscsi-bin")
	config := filepath.Join(t.TempDir(), "lab.yaml")
	err := os.WriteFile(config, []byte(`
targets:
  - name: lab
    iscsi:
      access:
        - {initiator: "iqn.2007-10.com.github:*", chap: {user: me, secret: mysecret, target_user: lab, target_secret: labsecret}}
    luns:
      - {lun: 0, store: {kind: mem, size: 1MiB}}
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	portal := serve(t, "-f", config)
	// inq is what iscsi-inq says with the initiator's secret, and, if it isn't
	// empty, the one that it wants the target to know.
	inq := func(as, target string) string {
		u := "iscsi://" + as + "@" + portal + "/" + targetName + "/0"
		if target != "" {
			u += "?target_user=lab&target_password=" + target
		}
		return run(t, "sh", "-c", `iscsi-inq "$0" 2>&1 || echo refused`, u)
	}
	wantLines(t, inq("me%mysecret", ""), `Peripheral Qualifier:CONNECTED`)
	wantLines(t, inq("me%mysecret", "labsecret"), `Peripheral Qualifier:CONNECTED`)
	wantLines(t, inq("me%wrong", ""), `refused`)
	wantLines(t, inq("you%mysecret", ""), `refused`)
	wantLines(t, inq("me%mysecret", "wrong"), `refused`)
	// Another initiator, and one that doesn't authenticate.
	wantLines(t, run(t, "sh", "-c", `iscsi-inq -i iqn.2026-01.example:other "iscsi://me%mysecret@$0" 2>&1 || echo refused`, portal+"/"+targetName+"/0"), `refused`)
	wantLines(t, run(t, "sh", "-c", `iscsi-inq "$0" 2>&1 || echo refused`, url(portal, 0)), `refused`)
}
