package iscsi

import (
	"bytes"
	"errors"
	"strings"
)

// pair is one key=value of text (RFC 7143 6.1).
type pair struct{ key, value string }

const (
	// maxKeyLen and maxValueLen bound a key and a value (RFC 7143 6.1); values
	// that are binary may be longer, up to what encodes 1024 bytes and a bit.
	maxKeyLen   = 63
	maxValueLen = 8191

	// maxTextLen bounds the text of one negotiation step, all its PDUs together
	// (RFC 7143 6.2 asks for at least 64 KiB to be understood).
	maxTextLen = 64 << 10

	maxPairs = 256
)

var errText = errors.New("iscsi: malformed text")

// parseText splits a data segment, or several put together, into its pairs.
func parseText(b []byte) ([]pair, error) {
	var ps []pair
	for len(b) > 0 {
		// Some initiators leave the last delimiter out.
		item, rest, _ := bytes.Cut(b, []byte{0})
		b = rest
		if len(item) == 0 {
			continue
		}
		k, v, ok := strings.Cut(string(item), "=")
		if !ok || len(k) == 0 || len(k) > maxKeyLen || len(v) > maxValueLen || !validKey(k) || len(ps) == maxPairs {
			return nil, errText
		}
		ps = append(ps, pair{k, v})
	}
	return ps, nil
}

// validKey checks the letters of a key (RFC 7143 6.1).
func validKey(k string) bool {
	for i := range len(k) {
		c := k[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '.', c == '-', c == '+', c == '@', c == '_', c == '#':
		default:
			return false
		}
	}
	return true
}

func appendPair(b []byte, key, value string) []byte {
	b = append(b, key...)
	b = append(b, '=')
	b = append(b, value...)
	return append(b, 0)
}
