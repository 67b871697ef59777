package devmappertest

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nearflash/nearflash/pkg/devmapper"
)

// Await implements devmapper.Client: nothing here goes on by itself.
func (c *client) Await(ctx context.Context, _ ...string) error { return ctx.Err() }

// Create implements devmapper.Client.
func (c *client) Create(ctx context.Context, name, uuid string, t devmapper.Table) (info devmapper.Info, err error) {
	err = c.step.Change(ctx, "create "+name, func() error {
		info, err = c.k.create(name, uuid, t, false)
		return err
	})
	return info, err
}

// CreateReadOnly implements devmapper.Client.
func (c *client) CreateReadOnly(ctx context.Context, name, uuid string, t devmapper.Table) (info devmapper.Info, err error) {
	err = c.step.Change(ctx, "create "+name, func() error {
		info, err = c.k.create(name, uuid, t, true)
		return err
	})
	return info, err
}

// Load implements devmapper.Client.
func (c *client) Load(ctx context.Context, name string, t devmapper.Table) error {
	return c.step.Change(ctx, "load "+name, func() error { return c.k.load(name, t, false) })
}

// LoadReadOnly implements devmapper.Client.
func (c *client) LoadReadOnly(ctx context.Context, name string, t devmapper.Table) error {
	return c.step.Change(ctx, "load "+name, func() error { return c.k.load(name, t, true) })
}

// Resume implements devmapper.Client.
func (c *client) Resume(ctx context.Context, name string) error {
	return c.step.Change(ctx, "resume "+name, func() error { return c.k.resume(name) })
}

// ResumeUnfrozen implements devmapper.Client.
func (c *client) ResumeUnfrozen(ctx context.Context, name string) error { return c.Resume(ctx, name) }

// Clear implements devmapper.Client.
func (c *client) Clear(ctx context.Context, name string) error {
	return c.step.Change(ctx, "clear "+name, func() error { return c.k.clear(name) })
}

// Remove implements devmapper.Client. A device that is open stays open: nothing here opens
// one for a moment only.
func (c *client) Remove(ctx context.Context, name string) error {
	return c.step.Change(ctx, "remove "+name, func() error { return c.k.remove(name) })
}

// Rename implements devmapper.Client.
func (c *client) Rename(ctx context.Context, name, to string) error {
	return c.step.Change(ctx, "rename "+name, func() error { return c.k.rename(name, to) })
}

// Message implements devmapper.Client.
func (c *client) Message(ctx context.Context, name string, _ uint64, words ...string) error {
	return c.step.Change(ctx, "message "+name+" "+strings.Join(words, " "), func() error {
		return c.on(name, func(d *device) error {
			if t, ok := d.only().(interface{ message(words []string) error }); ok {
				return t.message(words)
			}
			return fmt.Errorf("%w: %s takes no message", devmapper.ErrInvalid, name)
		})
	})
}

// on runs do with a device, under the kernel's lock.
func (c *client) on(name string, do func(*device) error) error {
	c.k.mu.Lock()
	defer c.k.mu.Unlock()
	d, err := c.k.get(name)
	if err != nil {
		return err
	}
	return do(d)
}

// query is on for what changes nothing.
func (c *client) query(ctx context.Context, what, name string, do func(*device) error) error {
	if err := c.step.Query(ctx, what+" of "+name); err != nil {
		return err
	}
	return c.on(name, do)
}

// Table implements devmapper.Client.
func (c *client) Table(ctx context.Context, name string) (t devmapper.Table, err error) {
	err = c.query(ctx, "table", name, func(d *device) error {
		t = slices.Clone(d.lines())
		return nil
	})
	return t, err
}

// Deps implements devmapper.Client.
func (c *client) Deps(ctx context.Context, name string) (deps []string, err error) {
	err = c.query(ctx, "deps", name, func(d *device) error {
		if d.live != nil {
			deps = slices.Clone(d.live.deps)
		}
		return nil
	})
	return deps, err
}

// StatusAll implements devmapper.Client.
func (c *client) StatusAll(ctx context.Context) (map[string]devmapper.CacheStatus, error) {
	if err := c.step.Query(ctx, "status of all"); err != nil {
		return nil, err
	}
	c.k.mu.Lock()
	defer c.k.mu.Unlock()
	out := map[string]devmapper.CacheStatus{}
	for name, d := range c.k.devices {
		if t := d.cache(); t != nil {
			out[name] = t.status()
		}
	}
	return out, nil
}

// Status implements devmapper.Client.
func (c *client) Status(ctx context.Context, name string) (s devmapper.CacheStatus, found bool, err error) {
	err = c.query(ctx, "status", name, func(d *device) error {
		t := d.cache()
		if found = t != nil; found {
			s = t.status()
		}
		return nil
	})
	return s, found, err
}

// CommitAll implements devmapper.Client.
func (c *client) CommitAll(ctx context.Context) error {
	return c.step.Change(ctx, "commit of all", func() error {
		c.k.mu.Lock()
		defer c.k.mu.Unlock()
		for _, d := range c.k.devices {
			d.commit()
		}
		return nil
	})
}

// Commit implements devmapper.Client.
func (c *client) Commit(ctx context.Context, name string) error {
	return c.step.Change(ctx, "commit of "+name, func() error {
		return c.on(name, func(d *device) error {
			d.commit()
			return nil
		})
	})
}

// commit has a cache write its map. Its status shows what it could not.
func (d *device) commit() {
	if t := d.cache(); t != nil {
		_ = t.meta.commit(false)
	}
}

// CloneStatusAll implements devmapper.Client.
func (c *client) CloneStatusAll(ctx context.Context) (map[string]devmapper.CloneStatus, error) {
	if err := c.step.Query(ctx, "status of clones"); err != nil {
		return nil, err
	}
	c.k.mu.Lock()
	defer c.k.mu.Unlock()
	out := map[string]devmapper.CloneStatus{}
	for name, d := range c.k.devices {
		if t, ok := d.only().(*clone); ok {
			out[name] = t.status()
		}
	}
	return out, nil
}

// CloneStatus implements devmapper.Client.
func (c *client) CloneStatus(ctx context.Context, name string) (s devmapper.CloneStatus, found bool, err error) {
	err = c.query(ctx, "status", name, func(d *device) error {
		t, ok := d.only().(*clone)
		if found = ok; found {
			s = t.status()
		}
		return nil
	})
	return s, found, err
}

// MultipathStatus implements devmapper.Client.
func (c *client) MultipathStatus(ctx context.Context, name string) (s devmapper.MultipathStatus, err error) {
	err = c.query(ctx, "status", name, func(d *device) error {
		t, ok := d.only().(*multipath)
		if !ok {
			return fmt.Errorf("%w: %s is no multipath device", devmapper.ErrParse, name)
		}
		s = t.status()
		return nil
	})
	return s, err
}

// StatsCreate implements devmapper.Client.
func (c *client) StatsCreate(ctx context.Context, name string) error {
	return c.step.Change(ctx, "statistics of "+name, func() error {
		return c.on(name, func(d *device) error {
			if d.region == 0 {
				c.k.regions++
				d.region = c.k.regions
			}
			return nil
		})
	})
}

// StatsAll implements devmapper.Client. It counts nothing.
func (c *client) StatsAll(ctx context.Context, prefix string) (map[string]devmapper.Stats, error) {
	if err := c.step.Query(ctx, "statistics of all"); err != nil {
		return nil, err
	}
	c.k.mu.Lock()
	defer c.k.mu.Unlock()
	out := map[string]devmapper.Stats{}
	for name, d := range c.k.devices {
		if d.region != 0 && strings.HasPrefix(name, prefix) {
			out[name] = devmapper.Stats{Region: d.region}
		}
	}
	return out, nil
}

// TrackWrites implements devmapper.Client.
func (c *client) TrackWrites(ctx context.Context, name, tag string, areaSectors uint64) error {
	return c.step.Change(ctx, "track writes to "+name, func() error {
		return c.on(name, func(d *device) error {
			n := (d.lines().Sectors() + areaSectors - 1) / areaSectors
			d.tracked = &tracked{tag: tag, written: devmapper.Written{AreaSectors: areaSectors, Areas: make([]bool, n)}}
			return nil
		})
	})
}

// WrittenAreas implements devmapper.Client.
func (c *client) WrittenAreas(ctx context.Context, name, tag string) (w devmapper.Written, err error) {
	err = c.query(ctx, "writes", name, func(d *device) error {
		if d.tracked == nil || d.tracked.tag != tag {
			return fmt.Errorf("%w: nothing was tracked as %q", devmapper.ErrNotExist, tag)
		}
		w = devmapper.Written{AreaSectors: d.tracked.written.AreaSectors, Areas: slices.Clone(d.tracked.written.Areas)}
		return nil
	})
	return w, err
}

// UntrackWrites implements devmapper.Client.
func (c *client) UntrackWrites(ctx context.Context, name string) error {
	return c.step.Change(ctx, "untrack writes to "+name, func() error {
		return c.on(name, func(d *device) error {
			d.tracked = nil
			return nil
		})
	})
}

// fakeCPUs is what areas are made for here.
const fakeCPUs = 2

// TrackReads implements devmapper.Client.
func (c *client) TrackReads(ctx context.Context, name string, chunkSectors uint64) error {
	return c.step.Change(ctx, "track reads of "+name, func() error {
		return c.on(name, func(d *device) error {
			sectors := d.lines().Sectors()
			area := devmapper.HeatAreaSectors(sectors, chunkSectors, fakeCPUs)
			if area == 0 {
				return nil
			}
			n := (sectors + area - 1) / area
			if d.reads == nil || d.reads.AreaSectors != area || uint64(len(d.reads.Counts)) != n {
				d.reads = &devmapper.Reads{AreaSectors: area, Counts: make([]uint64, n)}
			}
			return nil
		})
	})
}

// ReadAreas implements devmapper.Client.
func (c *client) ReadAreas(ctx context.Context, name string) (r devmapper.Reads, err error) {
	err = c.query(ctx, "reads", name, func(d *device) error {
		if d.reads == nil {
			return fmt.Errorf("%w: nothing is counted", devmapper.ErrNotExist)
		}
		r = *d.reads
		r.Counts = slices.Clone(d.reads.Counts)
		return nil
	})
	return r, err
}

// ClearReads implements devmapper.Client.
func (c *client) ClearReads(ctx context.Context, name string) error {
	return c.step.Change(ctx, "clear reads of "+name, func() error {
		return c.on(name, func(d *device) error {
			if d.reads == nil {
				return fmt.Errorf("%w: nothing is counted", devmapper.ErrNotExist)
			}
			clear(d.reads.Counts)
			d.reads.ReadSectors, d.reads.Writes, d.reads.WriteSectors = 0, 0, 0
			return nil
		})
	})
}

// Info implements devmapper.Client.
func (c *client) Info(ctx context.Context, prefix string) (map[string]devmapper.Info, error) {
	if err := c.step.Query(ctx, "info of "+prefix); err != nil {
		return nil, err
	}
	return c.k.infos(prefix), nil
}

// Targets implements devmapper.Client.
func (c *client) Targets(ctx context.Context) (map[string]devmapper.Version, error) {
	return map[string]devmapper.Version{
		"linear": {Major: 1, Minor: 4}, "error": {Major: 1, Minor: 6}, "zero": {Major: 1, Minor: 2}, "cache": {Major: 2, Minor: 4},
		"clone": {Major: 1}, "integrity": {Major: 1, Minor: 13}, "multipath": {Major: 1, Minor: 15},
	}, ctx.Err()
}
