package target_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"lunlab/lun"
	"lunlab/target"
)

// ruled is a unit with a Control mode page. Commands whose second byte is 1 fail.
type ruled struct {
	unit
	control lun.TaskControl
	pending []lun.Sense
}

func (u *ruled) TaskControl() *lun.TaskControl { return &u.control }

func (u *ruled) Attention(*lun.Nexus) (int, lun.Sense) {
	if len(u.pending) == 0 {
		return 0, lun.Sense{}
	}
	return len(u.pending), u.pending[0]
}

func (u *ruled) Execute(c *lun.Command) {
	if c.CDB[1] == 1 {
		c.Fail(lun.Sense{Key: lun.IllegalRequest})
		return
	}
	u.unit.Execute(c)
}

// stage runs tasks step by step in one goroutine: a task is in Execute, as far as
// its task set knows, from a call of execute to one of leave.
type stage struct {
	t       *testing.T
	unit    *ruled
	lu      *target.LogicalUnit
	nexuses []*target.Nexus
	tasks   []*actor
	log     []string // what the actors were told, in order
}

type actor struct {
	target.Task
	stage   *stage
	name    string
	nexus   int
	refused bool
	aborted bool
	waits   bool
	running bool
	began   bool // ran before the last step; see model_test.go
}

func (a *actor) TaskDeferred(*target.Task) { a.waits = true }

func (a *actor) TaskReady(*target.Task) {
	a.waits = false
	a.stage.log = append(a.stage.log, a.name+" ready")
}

func (a *actor) TaskAborted(*target.Task) {
	a.aborted = true
	told := " aborted"
	if a.Status == lun.TaskAborted {
		told = " answered"
	}
	a.stage.log = append(a.stage.log, a.name+told)
}

func newStage(t *testing.T, r lun.TaskRules, l target.Limits) *stage {
	t.Helper()
	s := &stage{t: t, unit: &ruled{}}
	s.unit.control.SetRules(r)
	d := target.New()
	var err error
	if s.lu, err = d.Add(0, s.unit, l); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s.nexuses = append(s.nexuses, d.Open(lun.Nexus{}, nil))
	}
	t.Cleanup(func() {
		s.resume()
		s.nexuses[1].LogicalUnitReset(s.lu)
		for _, a := range s.tasks {
			if a.running {
				a.Leave()
			}
		}
		for _, n := range s.nexuses {
			n.Close()
		}
		if n := s.lu.InFlight(); n != 0 {
			t.Errorf("%d in flight at rest", n)
		}
	})
	return s
}

var attributes = map[byte]lun.TaskAttribute{'S': lun.Simple, 'O': lun.Ordered, 'H': lun.HeadOfQueue, 'A': lun.ACA}

// The CDBs that spec names by what follows the nexus.
var cdbs = map[string][]byte{
	"":     {0, 0, 0, 0, 0, 0},
	"n":    {0, 0, 0, 0, 0, 4},             // NACA
	"f":    {0, 1, 0, 0, 0, 0},             // fails
	"fn":   {0, 1, 0, 0, 0, 4},             // fails, with NACA
	"p":    {0x5f, 5, 0, 0, 0, 0, 0, 0, 0}, // PREEMPT AND ABORT
	"10fn": {0x25, 1, 0, 0, 0, 0, 0, 0, 0, 4},
	"12fn": {0xa3, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4},
	"16fn": {0x88, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4},
}

// enter enters a task like "O1fn": an attribute, a nexus and a CDB. Tasks are
// called a, b, c ... in turn.
func (s *stage) enter(spec string) *actor {
	s.t.Helper()
	a := &actor{stage: s, name: string(rune('a' + len(s.tasks))), nexus: int(spec[1] - '0')}
	a.Attr, a.CDB = attributes[spec[0]], cdbs[spec[2:]]
	s.tasks = append(s.tasks, a)
	switch got := s.nexuses[a.nexus].Enter(&a.Task, a, s.lu, uint64(len(s.tasks))); got {
	case target.Admitted:
	case target.Refused:
		a.refused = true
	default:
		s.t.Fatalf("%s: Enter: %v", spec, got)
	}
	return a
}

func (s *stage) execute(a *actor) {
	a.running = a.Execute()
}

// add enters and executes tasks.
func (s *stage) add(specs string) {
	s.t.Helper()
	for _, spec := range strings.Fields(specs) {
		if a := s.enter(spec); !a.refused {
			s.execute(a)
		}
	}
}

func (s *stage) named(name string) *actor {
	r, _ := utf8.DecodeRuneInString(name)
	return s.tasks[r-'a']
}

// leave ends a running task and returns how, then lets those execute that may.
func (s *stage) leave(name string) string {
	s.t.Helper()
	a := s.named(name)
	if !a.running {
		s.t.Fatalf("%s isn't running", name)
	}
	a.running = false
	answer := a.Leave()
	s.resume()
	if !answer {
		return "silent"
	}
	return fmt.Sprintf("%02x", uint8(a.Status))
}

// resume executes the tasks that were told to be ready.
func (s *stage) resume() {
	for _, l := range s.log {
		if name, ok := strings.CutSuffix(l, " ready"); ok {
			if a := s.named(name); !a.running && !a.aborted {
				s.execute(a)
			}
		}
	}
	s.log = slices.DeleteFunc(s.log, func(l string) bool { return strings.HasSuffix(l, " ready") })
}

func (s *stage) names(which func(*actor) bool) string {
	var b strings.Builder
	for _, a := range s.tasks {
		if which(a) {
			b.WriteString(a.name)
		}
	}
	return b.String()
}

func (s *stage) running(want string) {
	s.t.Helper()
	if got := s.names(func(a *actor) bool { return a.running }); got != want {
		s.t.Fatalf("%q run, want %q", got, want)
	}
}

// told requires what the actors were told since the last time.
func (s *stage) told(want ...string) {
	s.t.Helper()
	slices.Sort(s.log)
	if !slices.Equal(s.log, want) {
		s.t.Fatalf("told %q, want %q", s.log, want)
	}
	s.log = nil
}

// TestOrder has tasks wait as SAM-5 8.6 says. A step is a task that ends, and
// what runs then.
func TestOrder(t *testing.T) {
	for _, tt := range []struct {
		name  string
		rules lun.TaskRules
		add   string
		runs  string
		steps string
	}{
		{"SIMPLE ones together", lun.TaskRules{}, "S0 S1 S0", "abc", "b:ac a:c"},
		{"ORDERED waits for all that are older", lun.TaskRules{}, "S0 S1 O0", "ab", "a:b b:c"},
		{"SIMPLE waits for ORDERED", lun.TaskRules{}, "S0 O1 S0 S1", "a", "a:b b:cd"},
		{"ORDERED ones in turn", lun.TaskRules{}, "O0 O1 O0", "a", "a:b b:c"},
		{"an ORDERED one between SIMPLE ones", lun.TaskRules{}, "S0 S0 O0 S0 O1 S1", "ab", "b:a a:c c:d d:e e:f"},
		{"HEAD OF QUEUE goes first", lun.TaskRules{}, "S0 O0 S0 H1", "ad", "a:d d:b b:c"},
		{"HEAD OF QUEUE ones together", lun.TaskRules{}, "H0 H1 S0 O0", "ab", "a:b b:c c:d"},
		{"HEAD OF QUEUE beside ORDERED", lun.TaskRules{}, "O0 H0 S0", "ab", "a:b b:c"},
		{"a task set a nexus", lun.TaskRules{PerNexus: true}, "S0 O0 S1 O1 H2 S2", "ace", "c:ade a:bde e:bdf b:df"},
		{"restricted reordering", lun.TaskRules{Restricted: true}, "S0 S0 S1 S0 S1", "ac", "a:bc c:be b:de e:d"},
		{"restricted, with ORDERED", lun.TaskRules{Restricted: true}, "S0 S1 O0 S1", "ab", "b:a a:c c:d"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStage(t, tt.rules, target.Limits{})
			s.add(tt.add)
			s.running(tt.runs)
			for _, step := range strings.Fields(tt.steps) {
				if got := s.leave(step[:1]); got != "00" {
					t.Fatalf("%s ends with %s", step[:1], got)
				}
				s.running(step[2:])
			}
		})
	}
}

// Tasks count from their entering, not from when their data is there.
func TestOrderBeforeData(t *testing.T) {
	s := newStage(t, lun.TaskRules{}, target.Limits{})
	first := s.enter("S0")
	s.add("O0 S1")
	s.running("")
	s.execute(first)
	s.running("a")
	s.leave("a")
	s.running("b")
	s.leave("b")
	s.running("c")
	s.leave("c")
	// One that fails for want of it makes room as well.
	write := s.enter("O0")
	s.add("S0")
	s.running("")
	if !write.FailUnexecuted(lun.Sense{Key: lun.AbortedCommand}) {
		t.Fatal("it can't fail")
	}
	s.resume()
	s.running("e")
	s.leave("e")
}

// What is aborted makes room, whatever it was doing.
func TestAbortInOrder(t *testing.T) {
	s := newStage(t, lun.TaskRules{}, target.Limits{})
	s.add("S0 O1 S2 S0")
	a := s.nexuses[1].AbortTaskSet(s.lu) // b, which waits
	a.Wait()
	s.told("b aborted", "c ready", "d ready")
	s.log = []string{"c ready", "d ready"}
	s.resume()
	s.running("acd")
	// A running one blocks until it has ended.
	s.add("O1")
	s.named("a").running = false
	ab, _ := s.nexuses[0].AbortTask(s.lu, 1)
	if !ab.Pending() {
		t.Error("the function doesn't wait for a task that executes")
	}
	s.leave("c")
	s.leave("d")
	s.running("")
	if s.named("a").Leave() {
		t.Error("the aborted task is answered")
	}
	ab.Wait()
	s.resume()
	s.running("e")
	// One that was told to go on, and aborted before it did.
	s.add("S0")
	s.named("e").running = false
	s.named("e").Leave()
	ab = s.nexuses[0].AbortTaskSet(s.lu)
	s.resume()
	ab.Wait()
	s.running("")
	s.told("f aborted")
}

func TestRulesOfTheMoment(t *testing.T) {
	s := newStage(t, lun.TaskRules{}, target.Limits{})
	s.add("S0 O0 S1")
	s.running("a")
	// MODE SELECT to a task set a nexus: what is older in another doesn't count.
	s.unit.control.SetRules(lun.TaskRules{PerNexus: true})
	s.add("S2")
	s.running("ad")
	s.leave("a")
	s.running("bcd")
	for _, n := range []string{"b", "c", "d"} {
		s.leave(n)
	}
}

// A parked task isn't forgotten when the rule that it waits by ends, and others
// come before those end that it waits for.
func TestRuleEnds(t *testing.T) {
	s := newStage(t, lun.TaskRules{Restricted: true}, target.Limits{})
	s.add("S0 S0")
	s.running("a")
	s.unit.control.SetRules(lun.TaskRules{})
	s.add("S1")
	s.running("ac")
	s.leave("c")
	s.running("ab")
	s.leave("a")
	s.leave("b")
	// One that waits by a rule that was there for a moment, and for a nexus that
	// doesn't count.
	s = newStage(t, lun.TaskRules{PerNexus: true}, target.Limits{})
	s.add("S0 S1")
	s.unit.control.SetRules(lun.TaskRules{})
	s.add("O2")
	s.unit.control.SetRules(lun.TaskRules{PerNexus: true})
	s.running("ab")
	s.leave("b")
	s.running("ac")
	s.leave("c")
	s.leave("a")
}

// TestAbortedStatus has one nexus abort another's tasks, with TAS and without.
func TestAbortedStatus(t *testing.T) {
	abort := map[string]func(s *stage) target.Aborting{
		"CLEAR TASK SET":     func(s *stage) target.Aborting { return s.nexuses[0].ClearTaskSet(s.lu) },
		"LOGICAL UNIT RESET": func(s *stage) target.Aborting { return s.nexuses[0].LogicalUnitReset(s.lu) },
	}
	for name, do := range abort {
		for _, tas := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, TAS %v", name, tas), func(t *testing.T) {
				s := newStage(t, lun.TaskRules{AbortedStatus: tas}, target.Limits{})
				s.add("S0 S1 O1 O0")
				s.running("ab")
				a := do(s)
				how, running := "c aborted", "silent"
				if tas {
					how, running = "c answered", "40"
				}
				s.told(how, "d aborted")
				if got := s.leave("a"); got != "silent" {
					t.Errorf("one's own ends with %s", got)
				}
				if got := s.leave("b"); got != running {
					t.Errorf("another's ends with %s, want %s", got, running)
				}
				a.Wait()
				// In silence means with a unit attention (SAM-5 5.6).
				if lost := slices.Contains(s.unit.told(), lun.CommandsLost); lost == tas {
					t.Errorf("COMMANDS CLEARED for the other nexus: %v", lost)
				}
			})
		}
	}
	t.Run("a task set a nexus", func(t *testing.T) {
		s := newStage(t, lun.TaskRules{PerNexus: true}, target.Limits{})
		s.add("S0 S1")
		a := s.nexuses[0].ClearTaskSet(s.lu)
		if got := s.leave("a") + s.leave("b"); got != "silent00" {
			t.Errorf("they end with %s", got)
		}
		a.Wait()
	})
}

// TestErrors has a task fail, with each QERR.
func TestErrors(t *testing.T) {
	for _, tt := range []struct {
		name  string
		rules lun.TaskRules
		told  []string
		runs  string
	}{
		{"resume", lun.TaskRules{}, nil, "bc"},
		{"abort all", lun.TaskRules{OnError: lun.AbortAll}, []string{"d aborted", "e aborted"}, "bc"},
		{"abort all, TAS", lun.TaskRules{OnError: lun.AbortAll, AbortedStatus: true}, []string{"d aborted", "e answered"}, "bc"},
		{"abort the nexus's", lun.TaskRules{OnError: lun.AbortNexus}, []string{"d aborted"}, "bc"},
		{"abort all, a task set a nexus", lun.TaskRules{OnError: lun.AbortAll, PerNexus: true}, []string{"d aborted"}, "bc"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStage(t, tt.rules, target.Limits{})
			s.add("S0f S0 S1 O0 O1")
			s.running("abc")
			if got := s.leave("a"); got != "02" {
				t.Fatalf("it ends with %s", got)
			}
			s.told(tt.told...)
			s.running(tt.runs)
			own, other := "00", "00"
			if tt.rules.OnError != lun.ResumeAll {
				own = "silent"
			}
			if tt.rules.OnError == lun.AbortAll && !tt.rules.PerNexus {
				if other = "silent"; tt.rules.AbortedStatus {
					other = "40"
				}
			}
			if got := s.leave("b"); got != own {
				t.Errorf("one's own ends with %s, want %s", got, own)
			}
			if got := s.leave("c"); got != other {
				t.Errorf("another's ends with %s, want %s", got, other)
			}
			for len(s.names(func(a *actor) bool { return a.running })) > 0 {
				s.leave(s.names(func(a *actor) bool { return a.running }))
			}
		})
	}
}
