package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// Client talks to a server that has a [Handler].
type Client struct {
	Name string       // of the server, for errors
	HTTP *http.Client // goes to the server, whatever the host
}

// List returns the rules of all LUNs, those without any among them.
func (c Client) List(ctx context.Context) ([]Rules, error) {
	var list []Rules
	return list, c.do(ctx, http.MethodGet, nil, &list)
}

// Add puts a rule in force on the LUN at an address, TARGET/LUN, and returns its
// number.
func (c Client) Add(ctx context.Context, lun, rule string) (id uint64, err error) {
	var p reply
	err = c.do(ctx, http.MethodPost, request{LUN: lun, Rule: rule}, &p)
	return p.ID, err
}

// Remove takes rules off a LUN: those with the given numbers, or all. An empty
// address is all LUNs.
func (c Client) Remove(ctx context.Context, lun string, ids ...uint64) (removed int, err error) {
	var p reply
	err = c.do(ctx, http.MethodDelete, request{LUN: lun, IDs: ids}, &p)
	return p.Removed, err
}

func (c Client) do(ctx context.Context, method string, q, answer any) error {
	body, err := json.Marshal(q)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://lunlab/faults", bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return fmt.Errorf("no server answers on %s: %w", c.Name, errors.Unwrap(err))
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		err = json.NewDecoder(resp.Body).Decode(answer)
	case http.StatusBadRequest:
		var p reply
		if err = json.NewDecoder(resp.Body).Decode(&p); err == nil {
			return errors.New(p.Error)
		}
	default:
		err = errors.New(resp.Status)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c.Name, err)
	}
	return nil
}
