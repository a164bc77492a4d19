// Package control adds, lists and removes the fault rules of a running server, over
// HTTP on a unix socket.
package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"lunlab/lun"
	"lunlab/lun/fault"
)

// LUN is a logical unit whose rules can be changed.
type LUN struct {
	Target string
	Number int
	Unit   *fault.Unit

	// Links are those that the transport can break.
	Links []lun.Link
}

// Rules is the rules of one LUN, as JSON.
type Rules struct {
	Target string         `json:"target"`
	Number int            `json:"lun"`
	Rules  []fault.Status `json:"rules"`
}

// request asks for a change.
type request struct {
	LUN  string   `json:"lun"`            // see Find
	Rule string   `json:"rule,omitempty"` // to add
	IDs  []uint64 `json:"ids,omitempty"`  // to remove; none: all
}

// reply is what came of it.
type reply struct {
	ID      uint64 `json:"id,omitempty"`
	Removed int    `json:"removed,omitempty"`
	Error   string `json:"error,omitempty"`
}

// maxRequest bounds the body of a request, in bytes.
const maxRequest = 64 << 10

// Handler answers /faults: GET lists the rules, POST adds one, DELETE removes some.
// luns is asked each time, as LUNs may come and go.
func Handler(luns func() []LUN) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /faults", func(w http.ResponseWriter, r *http.Request) {
		list := []Rules{}
		for _, l := range luns() {
			list = append(list, Rules{l.Target, l.Number, l.Unit.Rules()})
		}
		write(w, http.StatusOK, list)
	})
	mux.HandleFunc("POST /faults", change(luns, func(to []LUN, q request) (reply, error) {
		if len(to) != 1 {
			return reply{}, errors.New("name the LUN as TARGET/LUN")
		}
		rule, err := fault.Parse(q.Rule)
		if err != nil {
			return reply{}, err
		}
		if err := to[0].Check(rule); err != nil {
			return reply{}, err
		}
		id, err := to[0].Unit.Add(rule)
		return reply{ID: id}, err
	}))
	mux.HandleFunc("DELETE /faults", change(luns, func(to []LUN, q request) (p reply, err error) {
		if len(to) != 1 && len(q.IDs) > 0 {
			return p, errors.New("name the LUN whose rules these are, as TARGET/LUN")
		}
		for _, l := range to {
			n, err := l.Unit.Remove(q.IDs...)
			if err != nil {
				return p, fmt.Errorf("%w on LUN %d of %s", err, l.Number, l.Target)
			}
			p.Removed += n
		}
		return p, nil
	}))
	return mux
}

// change answers a request for a change of the LUNs that it names.
func change(luns func() []LUN, do func([]LUN, request) (reply, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var q request
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(&q)
		to := luns()
		if err == nil && q.LUN != "" {
			var i int
			if i, err = Find(to, q.LUN); err == nil {
				to = to[i : i+1]
			}
		}
		var p reply
		if err == nil {
			p, err = do(to, q)
		}
		if err != nil {
			write(w, http.StatusBadRequest, reply{Error: err.Error()})
			return
		}
		write(w, http.StatusOK, p)
	}
}

func write(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v) // fails if the client has gone
}

// Check tells whether a rule makes sense on this LUN: not if it breaks a link that
// the transport doesn't have.
func (l *LUN) Check(r *fault.Rule) error {
	if r.Act != fault.Drop || slices.Contains(l.Links, r.Link) {
		return nil
	}
	var have []string
	for _, k := range l.Links {
		have = append(have, fault.LinkName(k))
	}
	return fmt.Errorf("LUN %d of %s has no %s that could be dropped; want drop=%s", l.Number, l.Target, fault.LinkName(r.Link), strings.Join(have, " or drop="))
}

// Find returns which LUN has an address: the target's name, or what comes after its
// last colon, a slash, and the number. The target may be left out if there is but
// one.
func Find(list []LUN, address string) (int, error) {
	name, number := "", address
	if i := strings.LastIndexByte(address, '/'); i >= 0 {
		name, number = address[:i], address[i+1:]
	}
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%q is no LUN; want TARGET/LUN as lunlab status shows them, such as disks/0", address)
	}
	found := -1
	targets := map[string]bool{}
	for i, l := range list {
		if name != "" && name != l.Target && name != l.Target[strings.LastIndexByte(l.Target, ':')+1:] {
			continue
		}
		targets[l.Target] = true
		if l.Number == int(n) {
			found = i
		}
	}
	switch {
	case len(targets) > 1:
		return 0, fmt.Errorf("there are several targets; choose one:%s", choices(list))
	case found < 0:
		return 0, fmt.Errorf("there is no LUN %s; there are:%s", address, choices(list))
	}
	return found, nil
}

// maxChoices is how many LUNs are named in an error.
const maxChoices = 16

func choices(list []LUN) string {
	var b strings.Builder
	for i, l := range list {
		if i == maxChoices {
			fmt.Fprintf(&b, "\n  and %d more", len(list)-i)
			break
		}
		fmt.Fprintf(&b, "\n  %s/%d", l.Target, l.Number)
	}
	return b.String()
}
