package isns

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// object is what describes one thing, key attributes first.
type object []attribute

func (o object) size() (n int) {
	for _, a := range o {
		n += a.size()
	}
	return n
}

// register says what there is (RFC 4171 5.6.5.1), in place of what was said
// before, and returns the registration period in seconds, 0 for none.
func (x *exchanger) register(inquiries bool) (period uint32, err error) {
	portals, err := x.portals()
	if err != nil {
		return 0, err
	}
	var objects []object
	for _, p := range portals {
		o := object{{tagPortalIP, address(p.Addr)}, number(tagPortalPort, uint32(p.Addr.Port()))}
		if inquiries {
			port, err := x.inquiryPort(p.Addr.Addr())
			if err != nil {
				return 0, err
			}
			o = append(o, number(tagESIInterval, esiInterval), number(tagESIPort, port), number(tagSCNPort, port))
		}
		objects = append(objects, o)
	}
	for _, t := range x.opt.Targets {
		o := object{text(tagName, t.Name), number(tagNodeType, nodeTypeTarget)}
		if t.Alias != "" {
			o = append(o, text(tagAlias, t.Alias))
		}
		objects = append(objects, o)
	}
	for _, t := range x.opt.Targets {
		for _, p := range portals {
			group := attribute{tag: tagPGTag} // none: not to be reached by it
			if len(t.Groups) == 0 || slices.Contains(t.Groups, p.Group) {
				group = number(tagPGTag, uint32(p.Group))
			}
			objects = append(objects, object{
				text(tagPGName, t.Name), {tagPGPortalIP, address(p.Addr)}, number(tagPGPortalPort, uint32(p.Addr.Port())), group,
			})
		}
	}
	entity := text(tagEntity, x.opt.Entity)
	operating := []attribute{entity, number(tagProtocol, protocolISCSI)}
	flags := uint16(flagReplace)
	size := 0
	send := func() error {
		attrs, err := x.exchange(fnDevAttrReg, flags, []attribute{entity}, operating)
		for _, a := range attrs {
			if a.tag == tagPeriod && len(a.value) == 4 {
				period = a.number()
			}
		}
		flags, operating, size = 0, []attribute{entity}, 0
		return err
	}
	for _, o := range objects {
		if n := o.size(); size+n > maxChunk {
			if err := send(); err != nil {
				return 0, fmt.Errorf("register: %w", err)
			}
		}
		operating = append(operating, o...)
		size += o.size()
	}
	if err := send(); err != nil {
		return 0, fmt.Errorf("register: %w", err)
	}
	if inquiries {
		for _, t := range x.opt.Targets {
			if _, err := x.exchange(fnSCNReg, 0, []attribute{text(tagName, t.Name)}, []attribute{number(tagSCNBitmap, scnSelf)}); err != nil {
				return 0, fmt.Errorf("ask for notifications: %w", err)
			}
		}
	}
	return period, nil
}

// portals are those of the options, each with an address to be reached by.
func (x *exchanger) portals() ([]Portal, error) {
	local, err := netip.ParseAddrPort(x.nc.LocalAddr().String())
	if err != nil {
		return nil, err
	}
	ps := slices.Clone(x.opt.Portals)
	for i, p := range ps {
		if p.Addr.Addr().IsUnspecified() {
			ps[i].Addr = netip.AddrPortFrom(local.Addr(), p.Addr.Port())
		}
	}
	return ps, nil
}

// address is an IP address in 16 bytes (RFC 4171 6.3.1).
func address(a netip.AddrPort) []byte {
	b := a.Addr().As16()
	return b[:]
}

// inquiryPort is where inquiries to portals with address a are answered.
func (c *Client) inquiryPort(a netip.Addr) (uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ln := c.listeners[a]
	if ln == nil {
		var err error
		if ln, err = net.Listen("tcp", netip.AddrPortFrom(a, 0).String()); err != nil {
			return 0, fmt.Errorf("listen for inquiries: %w", err)
		}
		c.listeners[a] = ln
		c.answering.Go(func() { c.answer(ln) })
	}
	// The bit that says UDP is 0.
	return uint32(ln.Addr().(*net.TCPAddr).Port), nil
}
