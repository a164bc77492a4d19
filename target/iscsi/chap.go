package iscsi

import (
	"crypto/md5"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha3"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"strconv"
	"strings"
	"sync"

	"lunlab/target/iscsi/pdu"
)

// CHAP says how an initiator proves who it is (RFC 7143 12.1.3), and, if
// TargetUser isn't empty, how the target does in return.
type CHAP struct {
	User, Secret             string
	TargetUser, TargetSecret string
}

// maxBinary is the most bytes that a challenge or response may have.
const maxBinary = 1024

// check tells what is wrong with the secrets.
func (a *CHAP) check() error {
	switch {
	case a.User == "" || a.Secret == "":
		return errors.New("CHAP needs a user and a secret")
	case (a.TargetUser == "") != (a.TargetSecret == ""):
		return errors.New("mutual CHAP needs both a target user and a target secret")
	case a.Secret == a.TargetSecret:
		// Else whoever can ask the target learns what answers the target's
		// own question (RFC 7143 9.2.1).
		return errors.New("the target's CHAP secret has to differ from the initiator's")
	}
	return nil
}

// chapHashes are the algorithms by CHAP_A (RFC 7143 12.1.3, IANA's PPP
// authentication algorithms).
var chapHashes = map[string]func() hash.Hash{
	"5": md5.New,
	"6": sha1.New,
	"7": sha256.New,
	"8": func() hash.Hash { return sha3.New256() },
}

// chapState is how far the authentication of a login has come.
type chapState uint8

const (
	chapStart  chapState = iota // AuthMethod is open
	chapMethod                  // CHAP was agreed on
	chapAsked                   // the challenge is out
	chapDone                    // the initiator is who it says
)

// authenticator is the target's side of one CHAP exchange.
type authenticator struct {
	secrets   *CHAP
	state     chapState
	hash      func() hash.Hash
	id        byte
	challenge []byte
	out       *challenges
}

// challenges are those that the server waits for the answers to. One that comes
// in as a question to the target, on whatever connection, is a reflection
// (RFC 7143 12.1.3).
type challenges struct {
	mu  sync.Mutex
	set map[string]struct{}
}

func (c *challenges) add(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.set == nil {
		c.set = map[string]struct{}{}
	}
	c.set[string(b)] = struct{}{}
}

func (c *challenges) remove(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.set, string(b))
}

func (c *challenges) has(b []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.set[string(b)]
	return ok
}

func (a *authenticator) end() {
	if a.challenge != nil {
		a.out.remove(a.challenge)
		a.challenge = nil
	}
}

// step takes the CHAP keys of one request and says the answers.
func (a *authenticator) step(kv map[string]string, say func(key, value string)) error {
	if len(kv) == 0 {
		return nil
	}
	algorithms, hasA := kv["CHAP_A"]
	_, hasN := kv["CHAP_N"]
	switch {
	case a.state == chapMethod && hasA && len(kv) == 1:
		return a.ask(algorithms, say)
	case a.state == chapAsked && hasN:
		return a.verify(kv, say)
	}
	return failLogin(pdu.AuthenticationFailure, "CHAP keys out of turn")
}

func (a *authenticator) ask(algorithms string, say func(key, value string)) error {
	for v := range strings.SplitSeq(algorithms, ",") {
		if a.hash = chapHashes[v]; a.hash != nil {
			say("CHAP_A", v)
			break
		}
	}
	if a.hash == nil {
		return failLogin(pdu.AuthenticationFailure, "no CHAP algorithm in %q is known", algorithms)
	}
	b := make([]byte, 1+a.hash().Size())
	rand.Read(b)
	a.id, a.challenge = b[0], b[1:]
	a.out.add(a.challenge)
	a.state = chapAsked
	say("CHAP_I", strconv.Itoa(int(a.id)))
	say("CHAP_C", "0x"+hex.EncodeToString(a.challenge))
	return nil
}

func (a *authenticator) verify(kv map[string]string, say func(key, value string)) error {
	for k := range kv {
		switch k {
		case "CHAP_N", "CHAP_R", "CHAP_I", "CHAP_C":
		default:
			return failLogin(pdu.AuthenticationFailure, "CHAP keys out of turn")
		}
	}
	got, err := parseBinary(kv["CHAP_R"])
	if err != nil {
		return failLogin(pdu.AuthenticationFailure, "CHAP_R: %v", err)
	}
	want := a.response(a.id, a.secrets.Secret, a.challenge)
	user := subtle.ConstantTimeCompare([]byte(kv["CHAP_N"]), []byte(a.secrets.User))
	if user&subtle.ConstantTimeCompare(got, want) != 1 {
		return failLogin(pdu.AuthenticationFailure, "CHAP: wrong user or secret")
	}
	id, asks := kv["CHAP_I"]
	challenge, both := kv["CHAP_C"]
	if asks != both {
		return failLogin(pdu.AuthenticationFailure, "CHAP_I and CHAP_C belong together")
	}
	if asks {
		if a.secrets.TargetUser == "" {
			return failLogin(pdu.AuthenticationFailure, "the initiator asks for the target's secret, and there is none")
		}
		n, err := parseNumber(id)
		if err != nil || n > 255 {
			return failLogin(pdu.AuthenticationFailure, "CHAP_I is %q", id)
		}
		c, err := parseBinary(challenge)
		if err != nil || len(c) == 0 {
			return failLogin(pdu.AuthenticationFailure, "CHAP_C is malformed")
		}
		if a.out.has(c) {
			return failLogin(pdu.AuthenticationFailure, "CHAP_C is a challenge of the target's own")
		}
		say("CHAP_N", a.secrets.TargetUser)
		say("CHAP_R", "0x"+hex.EncodeToString(a.response(byte(n), a.secrets.TargetSecret, c)))
	}
	a.state = chapDone
	a.end()
	return nil
}

// response is the hash over identifier, secret and challenge (RFC 1994 4.1).
func (a *authenticator) response(id byte, secret string, challenge []byte) []byte {
	h := a.hash()
	h.Write([]byte{id})
	h.Write([]byte(secret))
	h.Write(challenge)
	return h.Sum(nil)
}

// parseBinary reads a binary value: hexadecimal after 0x, base64 after 0b
// (RFC 7143 6.1).
func parseBinary(s string) (b []byte, err error) {
	if len(s) < 2 || s[0] != '0' {
		return nil, errText
	}
	rest := s[2:]
	switch s[1] {
	case 'x', 'X':
		if len(rest)%2 == 1 {
			rest = "0" + rest
		}
		b, err = hex.DecodeString(rest)
	case 'b', 'B':
		b, err = base64.StdEncoding.DecodeString(rest)
	default:
		return nil, errText
	}
	if err != nil {
		return nil, err
	}
	if len(b) > maxBinary {
		return nil, fmt.Errorf("%d bytes, more than %d", len(b), maxBinary)
	}
	return b, nil
}
