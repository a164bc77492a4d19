package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// Image is a kernel and the folder of its modules.
type Image struct {
	Kernel, Modules string
}

// distributionPackages are the packages whose first dependency is a kernel
// image, in the order of preference: Debian 12's and 13's 6.12, Ubuntu's own.
var distributionPackages = []string{"linux-image-6.12-amd64", "linux-image-amd64", "linux-image-generic"}

var imagePackage = regexp.MustCompile(`linux-image-(\d\S*)`)

// Distribution returns the distribution's own kernel. It is downloaded with
// apt-get and unpacked below cacheDir once, never installed, which needs no
// root. Without apt's package lists, the newest that is unpacked already serves.
func Distribution(ctx context.Context, cacheDir string, logf func(string, ...any)) (Image, error) {
	version, aptErr := distributionVersion(ctx)
	if aptErr != nil {
		if img, ok := latest(cacheDir); ok {
			return img, nil
		}
		return Image{}, aptErr
	}
	dir := filepath.Join(cacheDir, version)
	if img, err := unpacked(dir); err == nil {
		return img, nil
	}
	logf("downloading the kernel linux-image-%s and its modules, once, to %s", version, dir)
	if err := download(ctx, version, dir); err != nil {
		return Image{}, err
	}
	return unpacked(dir)
}

// latest returns the kernel that was unpacked last.
func latest(cacheDir string) (img Image, ok bool) {
	var when time.Time
	dirs, _ := filepath.Glob(filepath.Join(cacheDir, "*"))
	for _, dir := range dirs {
		fi, err := os.Stat(dir)
		if err != nil || !fi.ModTime().After(when) {
			continue
		}
		if found, err := unpacked(dir); err == nil {
			img, ok, when = found, true, fi.ModTime()
		}
	}
	return img, ok
}

// distributionVersion asks apt which version the preferred package stands for.
func distributionVersion(ctx context.Context) (string, error) {
	for _, p := range distributionPackages {
		apt := exec.CommandContext(ctx, "apt-cache", "depends", "--important", p)
		apt.Env = append(os.Environ(), "LC_ALL=C")
		out, err := apt.Output()
		if errors.Is(err, exec.ErrNotFound) {
			return "", errors.New("kernel: no apt-cache here: name a kernel of your own with --kernel FILE --modules DIR")
		}
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		for line := range strings.Lines(string(out)) {
			if dep, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok {
				if m := imagePackage.FindStringSubmatch(dep); m != nil {
					return m[1], nil
				}
			}
		}
	}
	return "", fmt.Errorf("kernel: apt knows none of %s: run apt-get update (as root), or name a kernel of your own with --kernel FILE --modules DIR",
		strings.Join(distributionPackages, ", "))
}

// download gets the packages and unpacks them to dir, which is there whole or
// not at all.
func download(ctx context.Context, version, dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("kernel: %w", err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "tmp-")
	if err != nil {
		return fmt.Errorf("kernel: %w", err)
	}
	defer os.RemoveAll(tmp)
	tree := filepath.Join(tmp, "tree")
	// Ubuntu has the modules in packages of their own.
	for _, p := range []string{"linux-image-" + version, "linux-modules-" + version, "linux-modules-extra-" + version} {
		if out, err := exec.CommandContext(ctx, "apt-cache", "show", p).Output(); err != nil || len(out) == 0 {
			continue
		}
		if err := runIn(ctx, tmp, "apt-get", "-q", "download", p); err != nil {
			return err
		}
	}
	debs, _ := filepath.Glob(filepath.Join(tmp, "*.deb"))
	for _, d := range debs {
		if err := runIn(ctx, tmp, "dpkg-deb", "-x", d, tree); err != nil {
			return err
		}
	}
	if _, err := unpacked(tree); err != nil {
		return err
	}
	if err := os.Rename(tree, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("kernel: %w", err)
	}
	return nil
}

func runIn(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kernel: %s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// unpacked finds the image and the modules in an unpacked package.
func unpacked(dir string) (Image, error) {
	images, _ := filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-*"))
	for _, top := range []string{"lib/modules", "usr/lib/modules"} {
		mods, _ := filepath.Glob(filepath.Join(dir, top, "*"))
		if len(images) == 1 && len(mods) == 1 {
			return Image{Kernel: images[0], Modules: mods[0]}, nil
		}
	}
	return Image{}, fmt.Errorf("kernel: %s: not one boot/vmlinuz-VERSION and one lib/modules/VERSION", dir)
}

// CacheDir is where downloaded kernels are kept: kernels below the user's
// cache folder for lunlab.
func CacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("kernel: %w", err)
	}
	return filepath.Join(dir, "lunlab", "kernels"), nil
}

// ModulesOf finds the modules that go with a kernel image: a folder "modules"
// beside it, or /lib/modules/VERSION for a file vmlinuz-VERSION; "" if there
// is neither.
func ModulesOf(image string) string {
	candidates := []string{filepath.Join(filepath.Dir(image), "modules")}
	if v, ok := strings.CutPrefix(filepath.Base(image), "vmlinuz-"); ok {
		up := filepath.Dir(filepath.Dir(image)) // the root that boot/ is in
		candidates = append(candidates, filepath.Join(up, "lib/modules", v), filepath.Join(up, "usr/lib/modules", v))
	}
	for _, c := range candidates {
		if fi, err := os.Stat(c); err == nil && fi.IsDir() {
			return c
		}
	}
	return ""
}
