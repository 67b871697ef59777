package devmappertest

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/devmapper"
)

// multipath is a target with paths to one device. A path whose I/O fails is lost until it
// is reinstated. Without a path, I/O waits or fails (dm-mpath.c).
type multipath struct {
	k     *Kernel
	paths []*path
	queue bool
	// closed ends whatever waits: its table is gone.
	closed bool
}

type path struct {
	lower
	devno    string
	lost     bool
	failures uint64
}

func (k *Kernel) multipath(t *table, l devmapper.Line, v devmapper.MultipathTarget) (target, error) {
	m := &multipath{k: k, queue: v.QueueIfNoPath}
	for _, devno := range v.Paths {
		d, err := k.take(t, devno, l.Length)
		if err != nil {
			return nil, err
		}
		m.paths = append(m.paths, &path{lower: d, devno: devno})
	}
	t.closers = append(t.closers, func() {
		m.closed = true
		k.changed.Broadcast()
	})
	return m, nil
}

// over does I/O on a path. Only here somebody waits, and the kernel's lock is free
// meanwhile.
func (m *multipath) over(do func(lower) error) error {
	for {
		i := slices.IndexFunc(m.paths, func(p *path) bool { return !p.lost })
		switch {
		case i < 0 && (!m.queue || m.closed):
			return unix.EIO
		case i < 0:
			m.k.changed.Wait()
			continue
		}
		if do(m.paths[i].lower) == nil {
			return nil
		}
		m.paths[i].lost = true
		m.paths[i].failures++
	}
}

func (m *multipath) read(p []byte, off int64) error {
	return m.over(func(l lower) error { return l.read(p, off) })
}

func (m *multipath) write(p []byte, off int64) error {
	return m.over(func(l lower) error { return l.write(p, off) })
}

func (m *multipath) flush() error { return m.over(lower.flush) }

func (m *multipath) discard(off, n int64) error {
	return m.over(func(l lower) error { return l.discard(off, n) })
}

// waits reports whether I/O would wait. It tries a path first, as a request does.
func (m *multipath) waits() bool {
	buf := make([]byte, devmapper.SectorSize)
	for _, p := range m.paths {
		if !p.lost && p.read(buf, 0) != nil {
			p.lost = true
			p.failures++
		}
	}
	return m.queue && !slices.ContainsFunc(m.paths, func(p *path) bool { return !p.lost })
}

// waits reports whether a read of the device would wait.
func (d *device) waits() bool {
	m, ok := d.only().(*multipath)
	return ok && m.waits()
}

func (m *multipath) status() devmapper.MultipathStatus {
	var s devmapper.MultipathStatus
	for _, p := range m.paths {
		s.Paths = append(s.Paths, devmapper.PathStatus{Device: p.devno, Active: !p.lost, Failures: p.failures})
	}
	return s
}

func (m *multipath) message(words []string) error {
	defer m.k.changed.Broadcast()
	switch {
	case len(words) == 1 && (words[0] == "queue_if_no_path" || words[0] == "fail_if_no_path"):
		m.queue = words[0] == "queue_if_no_path"
		return nil
	case len(words) == 2 && (words[0] == "fail_path" || words[0] == "reinstate_path"):
		i := slices.IndexFunc(m.paths, func(p *path) bool { return p.devno == words[1] })
		if i >= 0 {
			m.paths[i].lost = words[0] == "fail_path"
			return nil
		}
	}
	return fmt.Errorf("%w: message %q", devmapper.ErrInvalid, words)
}
