package queue_test

import (
	"strings"
	"testing"

	"lunlab/queue"
)

func TestIdentify(t *testing.T) {
	facts := func(token, pseudo, walkV1, walk, depth, libata queue.Answer) queue.Facts {
		return queue.Facts{NeedsBudgetToken: token, PseudoDevice: pseudo, WalkV1: walkV1, Walk: walk, DepthNeedsMap: depth, LibataRequestTag: libata}
	}
	const u, n, y = queue.Unknown, queue.No, queue.Yes
	for _, c := range []struct {
		name  string
		facts queue.Facts
		want  string
		why   string
	}{
		{"6.12", queue.Facts{NeedsBudgetToken: n, PseudoDevice: n, WalkV1: n, Walk: n}, "6.12", "device_busy is the map's weight"},
		{"6.19", queue.Facts{NeedsBudgetToken: n, PseudoDevice: y, WalkV1: n, Walk: n}, "6.19", "pseudo device"},
		{"v1", queue.Facts{NeedsBudgetToken: n, PseudoDevice: n, WalkV1: y, Walk: n}, "v1", "v1's walk"},
		{"v2", facts(n, n, n, y, y, n), "v2", "refuses without a map"},
		{"v3", facts(n, n, n, y, n, y), "v3", "libata takes the request tag"},
		{"v3 on a later kernel", facts(n, y, n, y, n, y), "v3", "never refuses"},
		{"v3 without libata's", facts(n, n, n, y, n, n), "v3-scsi", "budget token on SAS hosts"},
		{"v4", facts(y, n, n, y, n, n), "v4", "has needs_budget_token"},
		{"v4, code not read", queue.Facts{NeedsBudgetToken: y, WalkV1: n, Walk: y}, "v4", "has needs_budget_token"},
		{"code not read", queue.Facts{NeedsBudgetToken: n, WalkV1: n, Walk: y}, "v2 v3 v3-scsi", "3 sets of rules"},
		{"libata not read", facts(n, n, n, y, n, u), "v3 v3-scsi", "2 sets of rules"},
		{"a flag without the walk", queue.Facts{NeedsBudgetToken: y, PseudoDevice: n, WalkV1: n, Walk: n}, "", "has needs_budget_token"},
		{"a version that isn't known", queue.Facts{NeedsBudgetToken: n, PseudoDevice: n, WalkV1: n, Walk: n, WalkUnknown: y}, "", "as in no version"},
		{"nothing known", queue.Facts{}, "6.12 v1 6.19 v2 v3 v3-scsi v4", "7 sets of rules"},
	} {
		rules, why := queue.Identify(c.facts)
		var names []string
		for _, r := range rules {
			names = append(names, r.Name)
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
		if got := strings.Join(why, "; "); !strings.Contains(got, c.why) {
			t.Errorf("%s: evidence %q, want %q in it", c.name, got, c.why)
		}
	}
}
