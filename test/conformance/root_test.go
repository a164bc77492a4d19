package conformance

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lunlab/test/kernel"
	"lunlab/test/kernel/kerneltest"
	"lunlab/test/need"
)

// rootSize is the size of the root file system, in bytes.
const rootSize = 128 << 20

// switchScript runs in the guest's initramfs. It does what switch_root(8) does, and
// goes on with a program of the new root.
const switchScript = `
set -e
mkdir /new
mount -t ext4 /dev/vda /new
for d in dev proc sys; do mount --move /$d /new/$d; done
cd /new
mount --move . /
exec chroot . /bin/sh /script
`

// rootScript is on the new root.
const rootScript = `
set -e
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
while read -r device dir type rest; do
  [ $dir = / ] && on="$device $type"
done < /proc/mounts
echo "root is on $on"
cat /lunlab > /copy
echo "from the guest" > /note
mount -o remount,ro /
echo "written"
`

// TestQEMURoot boots a guest whose root file system is on a LUN that QEMU takes by
// iscsi://, writes to it, and looks at what has come to the store.
func TestQEMURoot(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a kernel")
	}
	needQEMU(t)
	mke2fs, e2fsck, debugfs := need.Program(t, "mke2fs", "e2fsprogs"), need.Program(t, "e2fsck", "e2fsprogs"), need.Program(t, "debugfs", "e2fsprogs")
	need.Program(t, "mount", "mount")
	lunlab := kerneltest.Lunlab(t)

	dir := t.TempDir()
	root, image := filepath.Join(dir, "root"), filepath.Join(dir, "image")
	for _, d := range []string{"dev", "proc", "sys", "bin"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{"sh", "cat", "mount"} {
		path := need.Program(t, p, "")
		files, err := kernel.Program(path)
		if err != nil {
			t.Fatal(err)
		}
		files["/bin/"+p] = path
		for guest, host := range files {
			copyFile(t, filepath.Join(root, guest), host)
		}
	}
	copyFile(t, filepath.Join(root, "lunlab"), lunlab)
	script := filepath.Join(root, "script")
	if err := os.WriteFile(script, []byte(rootScript), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, mke2fs, "-q", "-t", "ext4", "-d", root, image, fmt.Sprintf("%dk", rootSize>>10))

	config := filepath.Join(dir, "lab.yaml")
	err := os.WriteFile(config, fmt.Appendf(nil, "targets:\n  - {name: lab, luns: [{lun: 0, store: {kind: file, path: %q}}]}\n", image), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	first := filepath.Join(dir, "first")
	if err := os.WriteFile(first, []byte(switchScript), 0o600); err != nil {
		t.Fatal(err)
	}
	// When it has ended, the guest is off and the server has stopped.
	t.Run("boot", func(t *testing.T) { bootRoot(t, lunlab, first, config) })
	if t.Failed() {
		return
	}
	run(t, e2fsck, "-f", "-n", image)
	if got := run(t, debugfs, "-R", "cat /note", image); !strings.Contains(got, "from the guest\n") {
		t.Errorf("/note has %q", got)
	}
	back := filepath.Join(dir, "back")
	run(t, debugfs, "-R", "dump /copy "+back, image)
	got, err := os.ReadFile(back)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(lunlab)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("/copy has %d bytes, not the %d that were written", len(got), len(want))
	}
}

// bootRoot boots a guest with a LUN of the configuration as /dev/vda, and runs the
// script first in it.
func bootRoot(t *testing.T, lunlab, first, config string) {
	portal := serve(t, "-f", config)
	vm := kerneltest.Boot(t, kerneltest.Stock(t), kernel.Config{
		Init:  lunlab,
		Load:  []string{"virtio_blk", "ext4", "crc32c_generic"},
		Files: map[string]string{"/script": first},
		QEMUArgs: []string{
			"-drive", "if=none,id=root,format=raw,file=" + url(portal, 0),
			"-device", "virtio-blk-pci,drive=root",
		},
	}, "sh", "mkdir", "mount", "chroot")
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var out strings.Builder
	code, err := vm.Run(ctx, []string{need.Program(t, "sh", "dash"), "/script"}, nil, &out, &out)
	if err != nil || code != 0 {
		t.Fatalf("exit status %d (%v)\n%s", code, err, out.String())
	}
	wantLines(t, out.String(), `root is on /dev/vda ext4`, `written`)
	for _, c := range vm.Complaints() {
		t.Errorf("the kernel complained: %v", c)
	}
}

// copyFile copies a program or library to a path, whose folders it makes.
func copyFile(t *testing.T, to, from string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
}
