package fault

import (
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"lunlab/lun"
)

// SyntaxError says what is wrong with the text of a rule.
type SyntaxError struct {
	Offset int // in the text, in bytes, of the word that is wrong
	Msg    string
}

func (e *SyntaxError) Error() string { return e.Msg }

// maxText bounds the text of a rule.
const maxText = 4096

// Parse reads a rule: words, some with a value, in any order.
//
// Which commands, all that apply:
//
//	cmd=NAME,…           by name (read(10), read10; read for all lengths; inquiry), by
//	                     operation code (0x28), with service action (0x9e/0x10)
//	lba=N, N-M or N+COUNT  that touch the range, with one block or more
//	initiator=PATTERN    of this initiator: iqn.2026-01.example:*
//	above=N              while N others are in flight, or more: so many get through
//	after=TIME for=TIME  from that time on after the rule was added, and so long
//	nth=N                the N-th one only
//	every=N              each N-th one
//	probability=P seed=N by chance, 0.01 or 1%; the same seed gives the same chances
//	count=N              N times at the most
//
// What becomes of them, one of:
//
//	status=STATUS        busy, task-set-full, reservation-conflict, good …, or 0x28;
//	                     not executed, unless "execute" says so
//	sense=KEY/ASC/ASCQ   medium-error/11/00 or 3/11/00; with info=N or info=lba,
//	                     field=cdb:BYTE.BIT or field=data:BYTE, deferred, descriptor
//	medium-error         the blocks of lba=… can't be read until they are written
//	attention=ASC/ASCQ   a unit attention for all initiators
//	never                no answer; with execute, only the answer is lost
//	answer-after-abort   an answer only when the command was aborted
//	short=N              only N bytes are transferred, or said to be
//	corrupt=OFFSET+LENGTH  data whose bits are flipped; ^MASK: these bits; =BYTE: set so
//	drop=LINK            connection, session or ring
//	stall                the whole unit stands still
//
// And before that, or by itself:
//
//	delay=TIME           or uniform:1ms,5ms normal:5ms,1ms lognormal:5ms,0.5
//	                     exponential:5ms percentiles:50=1ms,99=10ms,100=1s
//
// An error is a [*SyntaxError].
func Parse(text string) (*Rule, error) {
	if len(text) > maxText {
		return nil, &SyntaxError{0, fmt.Sprintf("the rule has more than %d characters", maxText)}
	}
	p := parser{rule: &Rule{Seed: 1}, at: map[string]int{}}
	for off := 0; off < len(text); {
		if isSpace(text[off]) {
			off++
			continue
		}
		end := off
		for end < len(text) && !isSpace(text[end]) {
			end++
		}
		if err := p.word(text[off:end], off); err != nil {
			return nil, err
		}
		p.words = append(p.words, text[off:end])
		off = end
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	p.rule.Text = strings.Join(p.words, " ")
	return p.rule, nil
}

func isSpace(b byte) bool { return b == ' ' || b == '\t' || b == '\n' || b == '\r' }

type parser struct {
	rule  *Rule
	words []string
	at    map[string]int // keys that were there, with their offsets
}

// keyword is a word of a rule. read is nil for one without a value.
type keyword struct {
	name string
	read func(r *Rule, value string) error
	set  func(r *Rule)
	act  bool // it says what becomes of the command: there can be but one
}

var keywords = []keyword{
	{name: "cmd", read: readCommands},
	{name: "lba", read: readBlocks},
	{name: "initiator", read: func(r *Rule, v string) error {
		if _, err := path.Match(v, ""); err != nil || v == "" {
			return fmt.Errorf("want a pattern such as iqn.2026-01.example:*")
		}
		r.Initiator = v
		return nil
	}},
	{name: "above", read: func(r *Rule, v string) (err error) {
		n, err := parseNumber(v, 1, 1<<20)
		r.Above = int(n)
		return err
	}},
	{name: "after", read: func(r *Rule, v string) (err error) { r.After, err = parseWindow(v); return err }},
	{name: "for", read: func(r *Rule, v string) (err error) { r.For, err = parseWindow(v); return err }},
	{name: "nth", read: func(r *Rule, v string) (err error) { r.Nth, err = parseNumber(v, 1, math.MaxInt64); return err }},
	{name: "every", read: func(r *Rule, v string) (err error) { r.Every, err = parseNumber(v, 1, math.MaxInt64); return err }},
	{name: "probability", read: readProbability},
	{name: "seed", read: func(r *Rule, v string) (err error) { r.Seed, err = parseNumber(v, 0, math.MaxUint64); return err }},
	{name: "count", read: func(r *Rule, v string) (err error) { r.Count, err = parseNumber(v, 1, math.MaxInt64); return err }},

	{name: "delay", read: func(r *Rule, v string) (err error) { r.Delay, err = parseDelay(v); return err }},
	{name: "status", act: true, read: readStatus},
	{name: "sense", act: true, read: readSense},
	{name: "info", read: readInfo},
	{name: "field", read: readField},
	{name: "deferred", set: func(r *Rule) { r.Sense.Deferred = true }},
	{name: "descriptor", set: func(r *Rule) { r.Descriptor = true }},
	{name: "execute", set: func(r *Rule) { r.Execute = true }},
	{name: "medium-error", act: true, set: func(r *Rule) { r.Act = MediumError }},
	{name: "attention", act: true, read: func(r *Rule, v string) (err error) {
		r.Act = Attention
		r.Sense.Key = lun.UnitAttention
		asc, ascq, ok := strings.Cut(v, "/")
		if r.Sense.Code, err = parseCode(asc, ascq); err != nil || !ok {
			return fmt.Errorf("want ASC/ASCQ in hexadecimal, such as 29/00")
		}
		return nil
	}},
	{name: "never", act: true, set: func(r *Rule) { r.Act = Never }},
	{name: "answer-after-abort", act: true, set: func(r *Rule) { r.Act = AnswerAfterAbort }},
	{name: "short", act: true, read: func(r *Rule, v string) (err error) {
		r.Act = Short
		r.Short, err = parseNumber(v, 0, math.MaxInt64)
		return err
	}},
	{name: "corrupt", act: true, read: readCorruption},
	{name: "drop", act: true, read: readLink},
	{name: "stall", act: true, set: func(r *Rule) { r.Act = Stall }},
}

func (p *parser) word(w string, off int) error {
	name, value, hasValue := strings.Cut(w, "=")
	i := slices.IndexFunc(keywords, func(k keyword) bool { return k.name == name })
	if i < 0 {
		return &SyntaxError{off, fmt.Sprintf("unknown word %q; there are %s", w, wordList())}
	}
	k := &keywords[i]
	if _, ok := p.at[name]; ok {
		return &SyntaxError{off, fmt.Sprintf("%s is there twice", name)}
	}
	p.at[name] = off
	if k.act {
		for _, o := range keywords {
			if _, ok := p.at[o.name]; ok && o.act && o.name != name {
				return &SyntaxError{off, fmt.Sprintf("%s and %s can't be in one rule; make two", o.name, name)}
			}
		}
	}
	switch {
	case k.read == nil && hasValue:
		return &SyntaxError{off, fmt.Sprintf("%s has no value", name)}
	case k.read == nil:
		k.set(p.rule)
	case !hasValue:
		return &SyntaxError{off, fmt.Sprintf("%s has a value: %s=…", name, name)}
	default:
		if err := k.read(p.rule, value); err != nil {
			return &SyntaxError{off, fmt.Sprintf("%s: %v", w, err)}
		}
	}
	return nil
}

func wordList() string {
	var s []string
	for _, k := range keywords {
		if k.read != nil {
			s = append(s, k.name+"=…")
		} else {
			s = append(s, k.name)
		}
	}
	return strings.Join(s, " ")
}

// needs are words that mean nothing without one of some others.
var needs = []struct {
	word string
	one  []string
}{
	{"info", []string{"sense=…"}},
	{"field", []string{"sense=…"}},
	{"deferred", []string{"sense=…"}},
	{"descriptor", []string{"sense=…"}},
	{"execute", []string{"status=…", "sense=…", "never"}},
	{"seed", []string{"probability=…", "delay=…"}},
	{"medium-error", []string{"lba=…"}},
}

// check sees whether the words go together.
func (p *parser) check() error {
	r := p.rule
	for _, n := range needs {
		off, ok := p.at[n.word]
		if ok && !slices.ContainsFunc(n.one, func(w string) bool { _, ok := p.at[strings.TrimSuffix(w, "=…")]; return ok }) {
			return &SyntaxError{off, fmt.Sprintf("%s is for a rule with %s", n.word, strings.Join(n.one, " or "))}
		}
	}
	if r.Act == None && r.Delay == nil {
		return &SyntaxError{0, "the rule doesn't say what becomes of the command: status=… sense=… medium-error attention=… never answer-after-abort short=… corrupt=… drop=… stall delay=…"}
	}
	if off, ok := p.at["every"]; ok && r.Nth > 0 {
		return &SyntaxError{off, "nth and every can't be in one rule; make two"}
	}
	if off, ok := p.at["field"]; ok && r.Sense.Key != lun.IllegalRequest {
		return &SyntaxError{off, "field is for sense=illegal-request/… (SPC-5 4.4.2.4.2)"}
	}
	if off, ok := p.at["delay"]; ok && (r.Act == Never || r.Act == AnswerAfterAbort || r.Act == Stall) {
		return &SyntaxError{off, "a delay means nothing for a command that isn't answered"}
	}
	return nil
}

func readBlocks(r *Rule, v string) error {
	bad := fmt.Errorf("want a block N, a range N-M (M included) or N+COUNT; 0x for hexadecimal")
	i := strings.IndexAny(v, "-+")
	if i < 0 {
		n, err := parseNumber(v, 0, math.MaxUint64)
		r.Blocks = &Blocks{n, n}
		if err != nil {
			return bad
		}
		return nil
	}
	first, err1 := parseNumber(v[:i], 0, math.MaxUint64)
	last, err2 := parseNumber(v[i+1:], 0, math.MaxUint64)
	if err1 != nil || err2 != nil {
		return bad
	}
	if v[i] == '+' {
		if last == 0 || last-1 > math.MaxUint64-first {
			return bad
		}
		last = first + last - 1
	}
	if last < first {
		return bad
	}
	r.Blocks = &Blocks{first, last}
	return nil
}

func readProbability(r *Rule, v string) error {
	digits, percent := strings.CutSuffix(v, "%")
	p, err := strconv.ParseFloat(digits, 64)
	if percent {
		p /= 100
	}
	if err != nil || !(p > 0 && p <= 1) {
		return fmt.Errorf("want a chance above 0 up to 1, such as 0.01 or 1%%")
	}
	r.Probability = p
	return nil
}

func readCorruption(r *Rule, v string) error {
	const want = "want OFFSET+LENGTH, in bytes, and perhaps ^MASK or =BYTE: corrupt=16+4^0x01"
	r.Act = Corrupt
	c := &Corruption{Length: 1, Value: 0xff}
	r.Corrupt = c
	if i := strings.IndexAny(v, "^="); i >= 0 {
		n, err := parseNumber(v[i+1:], 0, 255)
		c.Set, c.Value = v[i] == '=', byte(n)
		if err != nil || !c.Set && n == 0 {
			return errors.New(want)
		}
		v = v[:i]
	}
	offset, length, ok := strings.Cut(v, "+")
	var err, err2 error
	c.Offset, err = parseNumber(offset, 0, math.MaxInt32)
	if ok {
		c.Length, err2 = parseNumber(length, 1, math.MaxInt32)
	}
	if err != nil || err2 != nil {
		return errors.New(want)
	}
	return nil
}

var links = map[string]lun.Link{"connection": lun.ConnectionLink, "session": lun.SessionLink, "ring": lun.RingLink}

func readLink(r *Rule, v string) error {
	l, ok := links[v]
	if !ok {
		return fmt.Errorf("want connection or session (iSCSI), or ring (TCMU)")
	}
	r.Act, r.Link = Drop, l
	return nil
}

// parseNumber reads a number, in decimal or with 0x in hexadecimal.
func parseNumber(s string, low, high uint64) (uint64, error) {
	digits, hex := strings.CutPrefix(s, "0x")
	base := 10
	if hex {
		base = 16
	}
	n, err := strconv.ParseUint(digits, base, 64)
	if err != nil || n < low || n > high {
		if high >= math.MaxInt64 {
			return 0, fmt.Errorf("want a number from %d on", low)
		}
		return 0, fmt.Errorf("want a number from %d to %d", low, high)
	}
	return n, nil
}

func parseWindow(s string) (time.Duration, error) {
	d, err := parseTime(s)
	if err == nil && d == 0 {
		err = fmt.Errorf("want a time above 0")
	}
	return d, err
}
