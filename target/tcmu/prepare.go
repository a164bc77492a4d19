package tcmu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const configfsMagic = 0x62656570 // CONFIGFS_MAGIC, linux/magic.h

// Prepare loads the modules target_core_user and tcm_loop and mounts configfs,
// as far as that isn't done already. Its error says all that is missing, and
// what to do about it.
func Prepare(ctx context.Context, opts Options) error {
	o := newEngine(opts, osSystem{}).opts
	if os.Geteuid() != 0 {
		return errors.New("tcmu: needs root: run it with sudo")
	}
	err := errors.Join(
		loadModule(ctx, o, "target_core_user"),
		loadModule(ctx, o, "tcm_loop"),
		mountConfigfs(ctx, o),
	)
	if err != nil {
		return fmt.Errorf("tcmu: this kernel (%s) can't attach LUNs:\n%w", release(), err)
	}
	return nil
}

func loadModule(ctx context.Context, o Options, name string) error {
	// Both have parameters, so that they are listed also when built in.
	if _, err := os.Stat(filepath.Join(o.Sysfs, "module", name)); err == nil {
		return nil
	}
	modprobe, err := exec.LookPath("modprobe")
	if err != nil {
		modprobe = "/sbin/modprobe"
	}
	out, err := exec.CommandContext(ctx, modprobe, name).CombinedOutput()
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("module %s is not loaded, and there is no modprobe to load it (Debian: apt-get install kmod)", name)
	case err != nil:
		msg := strings.TrimSpace(string(out))
		if msg == "" {
			msg = err.Error()
		}
		return fmt.Errorf("module %s is not loaded, and `modprobe %s` fails: %s (the kernel needs CONFIG_TCM_USER2 and CONFIG_LOOPBACK_TARGET; Debian: linux-image-amd64, not the cloud image)", name, name, msg)
	}
	return nil
}

func mountConfigfs(ctx context.Context, o Options) error {
	mounted := func() bool {
		var st unix.Statfs_t
		return unix.Statfs(o.Configfs, &st) == nil && st.Type == configfsMagic
	}
	if mounted() {
		return nil
	}
	if err := unix.Mount("configfs", o.Configfs, "configfs", 0, ""); err != nil && !mounted() {
		return fmt.Errorf("configfs is not mounted, and `mount -t configfs configfs %s` fails: %w", o.Configfs, err)
	}
	return nil
}

func release() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
