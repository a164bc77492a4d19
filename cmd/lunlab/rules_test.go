package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"lunlab/queue"
)

func runRules(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c := rulesCommand()
	c.SilenceUsage, c.SilenceErrors = true, true
	c.SetOut(&out)
	c.SetArgs(args)
	err := c.Execute()
	return out.String(), err
}

func TestRulesTable(t *testing.T) {
	out, err := runRules(t, "--can-queue", "64", "--cmd-per-lun", "128")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 4 {
			if _, err := queue.Lookup(f[0]); err == nil {
				rows[f[0]] = strings.Join(f[1:], " ")
			}
		}
	}
	if len(rows) != len(queue.All()) {
		t.Errorf("got %d rows, want %d:\n%s", len(rows), len(queue.All()), out)
	}
	for name, want := range map[string]string{
		"6.12": "allocated 64 64 held at 8 ",
		"v2":   "elided 0 64 EINVAL, stays 0 ",
		"v3":   "elided 64 64 stored, 64 in flight elided: one hardware queue and depth 64 >= can_queue 64",
	} {
		if !strings.HasPrefix(rows[name], want) {
			t.Errorf("%s: got %q, want %q", name, rows[name], want)
		}
	}
	if !strings.Contains(out, "cmd_per_lun 64,") {
		t.Errorf("cmd_per_lun isn't shown as the kernel clamps it:\n%s", out)
	}
}

func TestRulesJSON(t *testing.T) {
	out, err := runRules(t, "--json", "--rules", "v4,v2b", "--configured-depth", "32", "--can-queue", "32", "--cmd-per-lun", "1", "--needs-budget-token")
	if err != nil {
		t.Fatal(err)
	}
	var got []queue.Prediction
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Rules != "v4" || !got[0].Allocated || got[1].Rules != "v3" || got[1].Allocated {
		t.Errorf("got %+v, want v4 allocated and v3 elided", got)
	}
}

func TestRulesErrors(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--can-queue 0", "can_queue 0: want 1 to 2147483647"},
		{"--rules v9", "there are 6.12, v1"},
		{"extra", "unknown command"},
	} {
		if _, err := runRules(t, strings.Fields(c.args)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("rules %s: got %v, want %q", c.args, err, c.want)
		}
	}
}
