package target_test

import (
	"testing"

	"lunlab/lun"
	"lunlab/target"
)

// faulted makes nexus 0 the faulted one, by a task that is called a.
func faulted(t *testing.T, r lun.TaskRules, more string) *stage {
	t.Helper()
	s := newStage(t, r, target.Limits{})
	s.add("S0fn")
	s.add(more)
	if got := s.leave("a"); got != "02" {
		t.Fatalf("it ends with %s", got)
	}
	return s
}

// refused enters a task and requires the status that it is refused with; 0 is none.
func (s *stage) refused(spec string, want lun.Status) *actor {
	s.t.Helper()
	a := s.enter(spec)
	if a.refused != (want != lun.Good) || a.refused && a.Status != want {
		s.t.Errorf("%s: refused %v with status %02x, want %02x", spec, a.refused, a.Status, want)
	}
	return a
}

// TestACAEnter tries what may enter a task set with an ACA condition
// (SAM-5 5.9.2).
func TestACAEnter(t *testing.T) {
	s := faulted(t, lun.TaskRules{}, "")
	s.refused("S0", lun.ACAActive)
	s.refused("S0n", lun.ACAActive)
	s.refused("H0", lun.ACAActive)
	s.refused("S1", lun.Busy)
	s.refused("S1n", lun.ACAActive)
	s.refused("A1", lun.Busy)
	p := s.refused("S1p", lun.Good)
	k := s.refused("A0", lun.Good)
	s.refused("A0", lun.ACAActive) // a second one
	s.execute(p)
	s.execute(k)
	s.running(p.name + k.name)
	s.leave(p.name)
	s.leave(k.name)
	s.refused("S0", lun.ACAActive) // it is still there
	s.nexuses[1].ClearACA(s.lu)    // not by another
	s.refused("S0", lun.ACAActive)
	s.nexuses[0].ClearACA(s.lu)
	s.add("S0 S1")
	if a := s.refused("A0", lun.CheckCondition); len(a.Sense) == 0 || a.Sense[2] != 5 || a.Sense[12] != 0x49 {
		t.Errorf("ACA without a condition: sense %x", a.Sense)
	}
	// Other task sets aren't concerned.
	s = faulted(t, lun.TaskRules{PerNexus: true}, "")
	s.refused("S0", lun.ACAActive)
	s.refused("A1", lun.CheckCondition)
	s.add("S1")
	s.running("d")
	s.leave("d")
	s.nexuses[0].ClearACA(s.lu)
}

// TestACABlocks has tasks of before the condition wait until it is over.
func TestACABlocks(t *testing.T) {
	s := faulted(t, lun.TaskRules{}, "O0 S1")
	s.running("")
	s.add("A0")
	s.running("d")
	// CLEAR ACA ends that too.
	a := s.nexuses[0].ClearACA(s.lu)
	s.running("d")
	if got := s.leave("d"); got != "silent" {
		t.Errorf("the ACA task ends with %s", got)
	}
	a.Wait()
	s.resume()
	s.running("b")
	s.leave("b")
	s.running("c")
	s.leave("c")
}

// TestACAEnds ends conditions in other ways than by CLEAR ACA (SAM-5 5.9.5).
func TestACAEnds(t *testing.T) {
	for name, end := range map[string]func(s *stage){
		"LOGICAL UNIT RESET": func(s *stage) { a := s.nexuses[1].LogicalUnitReset(s.lu); a.Wait() },
		"I_T NEXUS RESET":    func(s *stage) { a := s.nexuses[0].NexusReset(); a.Wait() },
		"loss":               func(s *stage) { s.nexuses[0].Close() },
		"an ACA task that fails": func(s *stage) {
			s.add("A0f")
			s.leave(s.tasks[len(s.tasks)-1].name)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := faulted(t, lun.TaskRules{}, "")
			end(s)
			s.add("S1")
			last := s.tasks[len(s.tasks)-1].name
			s.running(last)
			s.leave(last)
		})
	}
	// One that fails with NACA establishes it anew.
	s := faulted(t, lun.TaskRules{}, "")
	s.add("A0fn")
	s.leave("b")
	s.refused("S0", lun.ACAActive)
}

// TestACAOnError has QERR abort what else would wait.
func TestACAOnError(t *testing.T) {
	s := faulted(t, lun.TaskRules{OnError: lun.AbortNexus}, "O0 O1")
	s.told("b aborted")
	s.running("")
	s.nexuses[0].ClearACA(s.lu)
	s.resume()
	s.running("c")
	s.leave("c")
}

// NACA lies elsewhere in each length of CDB.
func TestNACA(t *testing.T) {
	for _, kind := range []string{"fn", "10fn", "12fn", "16fn"} {
		s := newStage(t, lun.TaskRules{}, target.Limits{})
		s.add("S0" + kind)
		s.leave("a")
		s.refused("S0", lun.ACAActive)
	}
	s := newStage(t, lun.TaskRules{}, target.Limits{})
	s.add("S0f")
	s.leave("a")
	s.refused("S0", lun.Good)
}

func TestQueryAsyncEvent(t *testing.T) {
	s := newStage(t, lun.TaskRules{}, target.Limits{})
	if n, _ := s.nexuses[0].QueryAsyncEvent(s.lu); n != 0 {
		t.Errorf("%d events", n)
	}
	s.unit.pending = []lun.Sense{{Key: lun.UnitAttention, Code: 0x2900}, {Key: lun.UnitAttention, Code: 0x2a01}}
	if n, first := s.nexuses[0].QueryAsyncEvent(s.lu); n != 2 || first.Code != 0x2900 {
		t.Errorf("%d events, the first %04x", n, first.Code)
	}
	if want := lun.TaskFunctions(0xfc07); s.unit.control.Offered() != want {
		t.Errorf("functions %04x, want %04x", s.unit.control.Offered(), want)
	}
}
