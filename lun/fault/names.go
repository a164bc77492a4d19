package fault

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"lunlab/lun"
)

var statuses = map[string]lun.Status{
	"good": lun.Good, "condition-met": lun.ConditionMet, "busy": lun.Busy, "reservation-conflict": lun.ReservationConflict,
	"task-set-full": lun.TaskSetFull, "aca-active": lun.ACAActive, "task-aborted": lun.TaskAborted,
}

func readStatus(r *Rule, v string) error {
	r.Act = Answer
	s, ok := statuses[v]
	if !ok {
		n, err := parseNumber(v, 0, 0xff)
		if err != nil {
			return fmt.Errorf("want good, condition-met, busy, reservation-conflict, task-set-full, aca-active, task-aborted or a number such as 0x28")
		}
		s = lun.Status(n)
	}
	if s == lun.CheckCondition {
		return fmt.Errorf("CHECK CONDITION comes with sense data: sense=KEY/ASC/ASCQ")
	}
	r.Status = s
	return nil
}

var senseKeys = map[string]lun.SenseKey{
	"no-sense": lun.NoSense, "recovered-error": lun.RecoveredError, "not-ready": lun.NotReady, "medium-error": lun.MediumError,
	"hardware-error": lun.HardwareError, "illegal-request": lun.IllegalRequest, "unit-attention": lun.UnitAttention,
	"data-protect": lun.DataProtect, "blank-check": lun.BlankCheck, "copy-aborted": lun.CopyAborted,
	"aborted-command": lun.AbortedCommand, "miscompare": lun.Miscompare, "completed": lun.Completed,
}

func readSense(r *Rule, v string) error {
	r.Act, r.Status = Answer, lun.CheckCondition
	bad := fmt.Errorf("want KEY/ASC/ASCQ, the codes in hexadecimal: medium-error/11/00 or 3/11/00")
	parts := strings.Split(v, "/")
	if len(parts) != 3 {
		return bad
	}
	key, ok := senseKeys[parts[0]]
	if !ok {
		n, err := strconv.ParseUint(parts[0], 16, 4)
		if err != nil {
			return bad
		}
		key = lun.SenseKey(n)
	}
	code, err := parseCode(parts[1], parts[2])
	if err != nil {
		return bad
	}
	r.Sense.Key, r.Sense.Code = key, code
	return nil
}

func parseCode(asc, ascq string) (uint16, error) {
	a, err := strconv.ParseUint(strings.TrimPrefix(asc, "0x"), 16, 8)
	if err != nil {
		return 0, err
	}
	q, err := strconv.ParseUint(strings.TrimPrefix(ascq, "0x"), 16, 8)
	return uint16(a<<8 | q), err
}

func readInfo(r *Rule, v string) (err error) {
	if v == "lba" {
		r.InfoLBA = true
		return nil
	}
	r.Sense.HasInfo = true
	if r.Sense.Info, err = parseNumber(v, 0, math.MaxUint64); err != nil {
		return fmt.Errorf("want a number, or lba: the first block that the rule is about")
	}
	return nil
}

// readField makes the sense-key specific field pointer (SPC-5 4.4.2.4.2).
func readField(r *Rule, v string) error {
	const want = "want cdb:BYTE, data:BYTE, or with the bit: cdb:1.4"
	where, place, ok := strings.Cut(v, ":")
	flags := map[string]byte{"cdb": 0xc0, "data": 0x80}[where] // SKSV, C/D
	if !ok || flags == 0 {
		return errors.New(want)
	}
	digits, bit, hasBit := strings.Cut(place, ".")
	n, err := parseNumber(digits, 0, 0xffff)
	if err != nil {
		return errors.New(want)
	}
	if hasBit {
		b, err := parseNumber(bit, 0, 7)
		if err != nil {
			return errors.New(want)
		}
		flags |= 0x08 | byte(b) // BPV
	}
	r.Sense.Specific = [3]byte{flags, byte(n >> 8), byte(n)}
	return nil
}

// names are the commands by their names as a rule may write them: exactly, and
// without the length of the CDB.
var names = func() map[string][]Command {
	m := map[string][]Command{
		"persistentreservein":  {{0x5e, -1}},
		"persistentreserveout": {{0x5f, -1}},
		"atapassthrough12":     {{0xa1, -1}},
		"atapassthrough16":     {{0x85, -1}},
	}
	add := func(name string, c Command) {
		if !slices.Contains(m[name], c) {
			m[name] = append(m[name], c)
		}
	}
	for _, o := range lun.Operations() {
		if o.Code == reportLUNs {
			continue
		}
		add(plain(o.Name), Command{o.Code, o.Action})
	}
	// READ(10) is one of all that READ means, unless something else is called that.
	exact := make(map[string]bool, len(m))
	for name := range m {
		exact[name] = true
	}
	for _, o := range lun.Operations() {
		family, _, ok := strings.Cut(o.Name, "(")
		if ok && !exact[plain(family)] {
			add(plain(family), Command{o.Code, o.Action})
		}
	}
	return m
}()

// plain leaves letters and digits of a name, in lower case.
func plain(name string) string {
	return strings.Map(func(c rune) rune {
		if strings.ContainsRune(" ()-_", c) {
			return -1
		}
		return c
	}, strings.ToLower(name))
}

func readCommands(r *Rule, v string) error {
	for _, s := range strings.Split(v, ",") {
		if c, ok := names[plain(s)]; ok {
			r.Commands = append(r.Commands, c...)
			continue
		}
		code, action, hasAction := strings.Cut(s, "/")
		c := Command{Action: -1}
		n, err := strconv.ParseUint(strings.TrimPrefix(code, "0x"), 16, 8)
		if !strings.HasPrefix(code, "0x") || err != nil {
			return unknownCommand(s)
		}
		c.Code = uint8(n)
		if hasAction {
			a, err := parseNumber(action, 0, 0xffff)
			if err != nil {
				return fmt.Errorf("service action %s: %w", action, err)
			}
			c.Action = int32(a)
		}
		if c.Code == reportLUNs {
			return unknownCommand("report-luns")
		}
		r.Commands = append(r.Commands, c)
	}
	return nil
}

func unknownCommand(s string) error {
	if plain(s) == "reportluns" {
		return fmt.Errorf("REPORT LUNS is answered by the target and comes to no unit")
	}
	return fmt.Errorf("no command is called %q; want names as in the standards (read(10), read10, or read for all READs; mode-sense), or operation codes (0x28, 0x9e/0x10)", s)
}

// LinkName is what a rule calls a link.
func LinkName(l lun.Link) string {
	for name, k := range links {
		if k == l {
			return name
		}
	}
	return fmt.Sprintf("link %d", l)
}
