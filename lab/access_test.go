package lab_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lunlab/lab"
)

const accessFile = `iscsi:
  discovery_chap: {user: d, secret: s}
targets:
- name: a
  iscsi:
    access:
    - {initiator: "iqn.*", luns: [1, 3], chap: {user: u, secret: s, target_user: t, target_secret: v}}
    - {}
    redirect: {address: "[::1]:3260", permanent: true}
  luns:
  - {lun: 1, store: {kind: mem, size: 512}}
`

func TestAccess(t *testing.T) {
	c := load(t, accessFile)
	if d := cmp.Diff(lab.ISCSI{DiscoveryCHAP: &lab.CHAP{User: "d", Secret: "s"}}, c.ISCSI); d != "" {
		t.Errorf("iscsi (-want +got):\n%s", d)
	}
	want := lab.ISCSITarget{
		Access: []lab.Access{
			{Initiator: "iqn.*", LUNs: []int{1, 3}, CHAP: &lab.CHAP{User: "u", Secret: "s", TargetUser: "t", TargetSecret: "v"}},
			{},
		},
		Redirect: &lab.Redirect{Address: "[::1]:3260", Permanent: true},
	}
	if d := cmp.Diff(want, c.Targets[0].ISCSI); d != "" {
		t.Errorf("the target's iscsi (-want +got):\n%s", d)
	}
	for _, tt := range []struct{ old, new, want string }{
		{`"iqn.*"`, `"[a"`, `7:19: initiator is "[a"`},
		{`[1, 3]`, `[256]`, `7:`},
		{`, target_secret: v`, ``, `only one of target_user and target_secret`},
		{`target_secret: v`, `target_secret: s`, `the same secret for both sides`},
		{`user: u, `, ``, `chap has no "user"`},
		{`"[::1]:3260"`, `elsewhere`, `9:25: address is "elsewhere"`},
	} {
		if _, err := lab.Load(write(t, strings.Replace(accessFile, tt.old, tt.new, 1))); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("with %s for %s: %v, want %s", tt.new, tt.old, err, tt.want)
		}
	}
}

// TestCopiesStayWithinTarget shows what third-party copies reach: nothing on
// another target, and on their own the LUNs by their numbers, which masks are about.
func TestCopiesStayWithinTarget(t *testing.T) {
	const luns = `
  luns:
  - {lun: 1, store: {kind: mem, size: 512}}
  - {lun: 2, store: {kind: mem, size: 512}}
`
	c := load(t, `targets:
- name: a
  iscsi: {access: [{initiator: "iqn.*"}]}`+luns+`- name: b`+luns+`- name: masked
  iscsi: {access: [{initiator: "iqn.*", luns: [1]}, {}]}`+luns)
	l, err := c.Build(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for i, x := range l.LUNs {
		if got := x.Disk.Options().LUN; int(got) != x.Config.Number {
			t.Errorf("LUN %d is %d for masks", x.Config.Number, got)
		}
		for j, y := range l.LUNs[:i] {
			want := x.Target == y.Target
			if got := x.Disk.Options().Copies == y.Disk.Options().Copies; got != want {
				t.Errorf("LUN %d of %s and LUN %d of %s reach each other: %v, want %v",
					l.LUNs[j].Config.Number, y.Target.Name, x.Config.Number, x.Target.Name, got, want)
			}
		}
	}
}
