// Package isns registers iSCSI targets with an iSNS server (RFC 4171), so that
// initiators find them there.
package isns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"
)

// Target is a target to be found.
type Target struct {
	Name, Alias string

	// Groups are the tags of the portal groups by which it is reached. An empty
	// list means all.
	Groups []uint16
}

// Portal is where targets are served.
type Portal struct {
	// Addr may have an unspecified address. The one by which this machine
	// reaches the iSNS server stands for it then.
	Addr  netip.AddrPort
	Group uint16
}

// Options say where to register, and as what. The zero value of each but Server,
// Targets and Portals stands for a default.
type Options struct {
	// Server is HOST or HOST:PORT. The port is 3205 by default.
	Server string

	Targets []Target
	Portals []Portal

	// Entity is the entity identifier: a name for this server that no other has.
	// Default: the machine's host name and the port of the first portal.
	Entity string

	// NoInquiries does without a port on which the iSNS server asks whether the
	// portals are still there (ESI) and tells of changes (SCN). With one, it has
	// to be reachable from the server, or the server forgets the portals.
	NoInquiries bool

	// Retry is how long to wait until the server is tried again that didn't
	// answer. Default 10 s.
	Retry time.Duration

	Log *slog.Logger
}

const (
	defaultPort = "3205"

	// timeout bounds the wait for the server in one exchange.
	timeout = 10 * time.Second

	// esiInterval is how often the server is asked to inquire, in seconds.
	esiInterval = 60

	// maxChunk is the most bytes of attributes in a registration. More are
	// registered one after the other.
	maxChunk = 32 << 10
)

// Client keeps a registration up until it is closed.
type Client struct {
	opt  Options
	log  *slog.Logger
	stop context.CancelFunc
	done chan struct{}

	// kick has a value when it is time to look whether the registration is there.
	kick chan struct{}

	mu        sync.Mutex
	listeners map[netip.Addr]net.Listener // for inquiries
	answering sync.WaitGroup

	// The rest belongs to the goroutine that registers.
	xid        uint16 // of the last message
	registered bool   // the server knows, as far as we do
	said       bool   // it may
}

// Start registers in the background, as often as it takes.
func Start(opt Options) (*Client, error) {
	if len(opt.Targets) == 0 || len(opt.Portals) == 0 {
		return nil, errors.New("isns: nothing to register")
	}
	if _, _, err := net.SplitHostPort(opt.Server); err != nil {
		opt.Server = net.JoinHostPort(opt.Server, defaultPort)
	}
	if opt.Entity == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("isns: %w", err)
		}
		opt.Entity = fmt.Sprintf("%s:%d", host, opt.Portals[0].Addr.Port())
	}
	if len(opt.Entity) > 255 {
		return nil, fmt.Errorf("isns: the entity identifier is %d bytes long, more than 255", len(opt.Entity))
	}
	if opt.Retry == 0 {
		opt.Retry = 10 * time.Second
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	ctx, stop := context.WithCancel(context.Background())
	c := &Client{
		opt: opt, log: opt.Log.With("isns", opt.Server), stop: stop, done: make(chan struct{}), kick: make(chan struct{}, 1),
		listeners: map[netip.Addr]net.Listener{},
	}
	go c.run(ctx)
	return c, nil
}

// Close takes the registration back, if the server answers, and returns when all
// has ended. It may be called again.
func (c *Client) Close() {
	c.stop()
	<-c.done
	c.mu.Lock()
	for _, ln := range c.listeners {
		ln.Close()
	}
	c.mu.Unlock()
	c.answering.Wait()
}

// run registers, and looks from time to time whether that holds.
func (c *Client) run(ctx context.Context) {
	defer close(c.done)
	failing := false
	for {
		wait, err := c.round(ctx)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			wait = c.opt.Retry
			if !failing {
				c.log.Warn("not registered", "err", err)
			}
		}
		failing = err != nil
		select {
		case <-ctx.Done():
		case <-c.kick:
		case <-time.After(wait):
		}
		if ctx.Err() != nil {
			break
		}
	}
	if c.said {
		if err := c.deregister(); err != nil {
			c.log.Warn("still registered", "err", err)
		}
	}
}

// round registers, or sees that the registration is still there, and says how
// long that is good for.
func (c *Client) round(ctx context.Context) (time.Duration, error) {
	x, err := c.dial(ctx)
	if err != nil {
		return 0, err
	}
	defer x.close()
	if c.registered {
		attrs, err := x.exchange(fnDevAttrQry, 0, []attribute{text(tagEntity, c.opt.Entity)}, []attribute{{tag: tagEntity}, {tag: tagPeriod}})
		switch i := slices.IndexFunc(attrs, func(a attribute) bool { return a.tag == tagPeriod }); {
		case err == nil && i >= 0 && slices.ContainsFunc(attrs, isEntity):
			return refreshAfter(attrs[i].number()), nil
		case err != nil && !isStatus(err):
			return 0, err
		}
		c.log.Info("the server has forgotten the targets")
		c.registered = false
	}
	c.said = true
	period, err := x.register(!c.opt.NoInquiries)
	if errors.Is(err, statusNoESI) {
		period, err = x.register(false)
	}
	if err != nil {
		return 0, err
	}
	c.registered = true
	c.log.Info("registered", "entity", c.opt.Entity, "targets", len(c.opt.Targets))
	return refreshAfter(period), nil
}

func isEntity(a attribute) bool { return a.tag == tagEntity && len(a.value) > 0 }

func isStatus(err error) bool {
	var s status
	return errors.As(err, &s)
}

// refreshAfter is when to say something, so that a server which forgets those who
// are silent for period seconds doesn't. It is no longer than a minute, so that
// the loss of a server's memory is noticed.
func refreshAfter(period uint32) time.Duration {
	if period == 0 {
		return time.Minute
	}
	return max(time.Second, min(time.Minute, time.Duration(period)*time.Second/3))
}

// deregister takes all back (RFC 4171 5.6.5.4).
func (c *Client) deregister() error {
	x, err := c.dial(context.Background())
	if err != nil {
		return err
	}
	defer x.close()
	_, err = x.exchange(fnDevDereg, 0, nil, []attribute{text(tagEntity, c.opt.Entity)})
	return err
}

// exchanger is a connection to the server.
type exchanger struct {
	*Client
	nc   net.Conn
	stop func() bool
}

func (c *Client) dial(ctx context.Context) (*exchanger, error) {
	d := net.Dialer{Timeout: timeout}
	nc, err := d.DialContext(ctx, "tcp", c.opt.Server)
	if err != nil {
		return nil, err
	}
	return &exchanger{c, nc, context.AfterFunc(ctx, func() { nc.Close() })}, nil
}

func (x *exchanger) close() {
	x.stop()
	x.nc.Close()
}

// exchange sends a request, of the first target, and returns what the response
// has after its status.
func (x *exchanger) exchange(f function, flags uint16, key, operating []attribute) ([]attribute, error) {
	x.xid++
	m := message{function: f, flags: flagClient | flags, xid: x.xid}
	m.payload = appendAttributes(nil, text(tagName, x.opt.Targets[0].Name))
	m.payload = appendAttributes(m.payload, key...)
	m.payload = appendAttributes(m.payload, attribute{tag: tagDelimiter})
	m.payload = appendAttributes(m.payload, operating...)
	x.nc.SetDeadline(time.Now().Add(timeout))
	if _, err := x.nc.Write(m.encode()); err != nil {
		return nil, err
	}
	r, err := readMessage(x.nc)
	switch {
	case err != nil:
		return nil, err
	case r.function != f|fnResponse || r.xid != m.xid:
		return nil, fmt.Errorf("%w: function %04x of transaction %d answers %04x of %d", errMessage, r.function, r.xid, f, m.xid)
	}
	return parseResponse(r.payload)
}
