package lab

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"time"

	"lunlab/lun/store"
	"lunlab/lun/store/cache"
	"lunlab/lun/store/file"
	"lunlab/lun/store/mem"
	"lunlab/lun/store/nbd"
	"lunlab/lun/store/null"
)

// lies is what a LUN lies on.
type lies struct {
	top   store.Store  // which the disk uses
	cache *cache.Store // the same, if it is one
	room  *mem.Room    // what memory it takes, nil if it isn't in memory
}

func newRoom(limit int64, temporary bool) *mem.Room {
	r := mem.NewRoom(limit)
	r.Expect(temporary)
	return r
}

// openTime is how long an NBD server may take until it is connected to.
const openTime = 30 * time.Second

// open opens a store. rooms are those of the pools.
func (s *Store) open(readOnly bool, rooms map[string]*mem.Room) (*lies, error) {
	l := &lies{room: rooms[s.Pool]}
	if l.room == nil && s.Kind == Memory {
		l.room = newRoom(s.Limit, s.Temporary)
	}
	var err error
	if l.top, err = s.openBelow(readOnly, l.room); err != nil {
		return nil, err
	}
	if s.Cache > 0 {
		l.cache = cache.New(l.top, s.Cache)
		l.top = l.cache
	}
	return l, nil
}

// blocking tells whether the store outlives the disk: it has what the disk keeps
// of its own too, such as write pointers of zones.
func (s *Store) blocking() bool { return s.Kind == File || s.Kind == NBD || s.Cache > 0 }

func (s *Store) openBelow(readOnly bool, room *mem.Room) (store.Store, error) {
	switch s.Kind {
	case Memory:
		return room.New(s.Size)
	case File:
		return file.Open(s.Path, file.Options{Size: s.Size, ReadOnly: readOnly, Direct: s.Direct})
	case Null:
		return null.New(s.Size)
	case NBD:
		config, err := s.TLS.config()
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeoutCause(context.Background(), openTime, fmt.Errorf("not connected within %v", openTime))
		defer cancel()
		return nbd.Open(ctx, s.Address, nbd.Options{Connections: s.Connections, Timeout: s.Timeout, Reconnect: s.Reconnect, TLS: config})
	}
	return nil, fmt.Errorf("no store of kind %q", s.Kind)
}

// config reads the files. It returns nil for what the system trusts.
func (t *TLS) config() (*tls.Config, error) {
	if t == nil {
		return nil, nil
	}
	c := &tls.Config{ServerName: t.ServerName}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, err
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificate in PEM", t.CA)
		}
	}
	if t.Cert != "" {
		own, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, err
		}
		c.Certificates = []tls.Certificate{own}
	}
	return c, nil
}
