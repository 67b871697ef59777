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
	err = c.change(ctx, "create "+name, func() error {
		info, err = c.k.create(name, uuid, t, false)
		return err
	})
	return info, err
}

// CreateReadOnly implements devmapper.Client.
func (c *client) CreateReadOnly(ctx context.Context, name, uuid string, t devmapper.Table) (info devmapper.Info, err error) {
	err = c.change(ctx, "create "+name, func() error {
		info, err = c.k.create(name, uuid, t, true)
		return err
	})
	return info, err
}

// Load implements devmapper.Client.
func (c *client) Load(ctx context.Context, name string, t devmapper.Table) error {
	return c.change(ctx, "load "+name, func() error { return c.k.load(name, t, false) })
}

// LoadReadOnly implements devmapper.Client.
func (c *client) LoadReadOnly(ctx context.Context, name string, t devmapper.Table) error {
	return c.change(ctx, "load "+name, func() error { return c.k.load(name, t, true) })
}

// Resume implements devmapper.Client.
func (c *client) Resume(ctx context.Context, name string) error {
	return c.change(ctx, "resume "+name, func() error { return c.k.resume(name) })
}

// ResumeUnfrozen implements devmapper.Client.
func (c *client) ResumeUnfrozen(ctx context.Context, name string) error { return c.Resume(ctx, name) }

// Clear implements devmapper.Client.
func (c *client) Clear(ctx context.Context, name string) error {
	return c.change(ctx, "clear "+name, func() error { return c.k.clear(name) })
}

// Remove implements devmapper.Client. A device that is open stays open: nothing here opens
// one for a moment only.
func (c *client) Remove(ctx context.Context, name string) error {
	return c.change(ctx, "remove "+name, func() error { return c.k.remove(name) })
}

// Message implements devmapper.Client.
func (c *client) Message(ctx context.Context, name string, _ uint64, words ...string) error {
	return c.change(ctx, "message "+name+" "+strings.Join(words, " "), func() error {
		return c.onCache(name, func(t *cache) error { return t.message(words) })
	})
}

// onCache does something with a cache that is live.
func (c *client) onCache(name string, do func(*cache) error) error {
	c.k.mu.Lock()
	defer c.k.mu.Unlock()
	d, err := c.k.get(name)
	if err != nil {
		return err
	}
	if d.live == nil || d.live.cache == nil {
		return fmt.Errorf("%w: %s is no cache", devmapper.ErrInvalid, name)
	}
	return do(d.live.cache)
}

// look runs do with a device, under the kernel's lock.
func (c *client) look(ctx context.Context, what, name string, do func(*device) error) error {
	c.step("look at " + what + " of " + name)
	if err := ctx.Err(); err != nil {
		return err
	}
	c.k.mu.Lock()
	defer c.k.mu.Unlock()
	d, err := c.k.get(name)
	if err != nil {
		return err
	}
	return do(d)
}

// Table implements devmapper.Client.
func (c *client) Table(ctx context.Context, name string) (t devmapper.Table, err error) {
	err = c.look(ctx, "table", name, func(d *device) error {
		t = slices.Clone(d.lines())
		return nil
	})
	return t, err
}

// Deps implements devmapper.Client.
func (c *client) Deps(ctx context.Context, name string) (deps []string, err error) {
	err = c.look(ctx, "deps", name, func(d *device) error {
		if d.live != nil {
			deps = slices.Clone(d.live.deps)
		}
		return nil
	})
	return deps, err
}

// StatusAll implements devmapper.Client.
func (c *client) StatusAll(ctx context.Context) (map[string]devmapper.CacheStatus, error) {
	c.step("look at status of all")
	c.k.mu.Lock()
	defer c.k.mu.Unlock()
	out := map[string]devmapper.CacheStatus{}
	for name, d := range c.k.devices {
		if d.live != nil && d.live.cache != nil {
			out[name] = d.live.cache.status()
		}
	}
	return out, ctx.Err()
}

// Status implements devmapper.Client.
func (c *client) Status(ctx context.Context, name string) (s devmapper.CacheStatus, found bool, err error) {
	err = c.look(ctx, "status", name, func(d *device) error {
		if found = d.live != nil && d.live.cache != nil; found {
			s = d.live.cache.status()
		}
		return nil
	})
	return s, found, err
}

// CommitAll implements devmapper.Client.
func (c *client) CommitAll(ctx context.Context) error {
	return c.change(ctx, "commit of all", func() error {
		c.k.mu.Lock()
		defer c.k.mu.Unlock()
		for _, d := range c.k.devices {
			if d.live != nil && d.live.cache != nil {
				_ = d.live.cache.meta.commit(false) // the status shows it
			}
		}
		return nil
	})
}

// Commit implements devmapper.Client.
func (c *client) Commit(ctx context.Context, name string) error {
	return c.change(ctx, "commit of "+name, func() error {
		c.k.mu.Lock()
		defer c.k.mu.Unlock()
		d, err := c.k.get(name)
		if err == nil && d.live != nil && d.live.cache != nil {
			_ = d.live.cache.meta.commit(false)
		}
		return err
	})
}

// CloneStatusAll implements devmapper.Client: there is no clone.
func (c *client) CloneStatusAll(ctx context.Context) (map[string]devmapper.CloneStatus, error) {
	return map[string]devmapper.CloneStatus{}, ctx.Err()
}

// MultipathStatus implements devmapper.Client: there is no multipath device.
func (c *client) MultipathStatus(ctx context.Context, name string) (devmapper.MultipathStatus, error) {
	return devmapper.MultipathStatus{}, c.look(ctx, "status", name, func(*device) error {
		return fmt.Errorf("%w: %s is no multipath device", devmapper.ErrParse, name)
	})
}

// StatsCreate implements devmapper.Client.
func (c *client) StatsCreate(ctx context.Context, name string) error {
	return c.change(ctx, "statistics of "+name, func() error {
		c.k.mu.Lock()
		defer c.k.mu.Unlock()
		d, err := c.k.get(name)
		if err == nil && d.region == 0 {
			c.k.regions++
			d.region = c.k.regions
		}
		return err
	})
}

// StatsAll implements devmapper.Client. It counts nothing.
func (c *client) StatsAll(ctx context.Context, prefix string) (map[string]devmapper.Stats, error) {
	c.step("look at statistics of all")
	c.k.mu.Lock()
	defer c.k.mu.Unlock()
	out := map[string]devmapper.Stats{}
	for name, d := range c.k.devices {
		if d.region != 0 && strings.HasPrefix(name, prefix) {
			out[name] = devmapper.Stats{Region: d.region}
		}
	}
	return out, ctx.Err()
}

// TrackWrites implements devmapper.Client.
func (c *client) TrackWrites(ctx context.Context, name, tag string, areaSectors uint64) error {
	return c.change(ctx, "track writes to "+name, func() error {
		c.k.mu.Lock()
		defer c.k.mu.Unlock()
		d, err := c.k.get(name)
		if err != nil {
			return err
		}
		n := (d.lines().Sectors() + areaSectors - 1) / areaSectors
		d.tracked = &tracked{tag: tag, written: devmapper.Written{AreaSectors: areaSectors, Areas: make([]bool, n)}}
		return nil
	})
}

// WrittenAreas implements devmapper.Client.
func (c *client) WrittenAreas(ctx context.Context, name, tag string) (w devmapper.Written, err error) {
	err = c.look(ctx, "writes", name, func(d *device) error {
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
	return c.change(ctx, "untrack writes to "+name, func() error {
		c.k.mu.Lock()
		defer c.k.mu.Unlock()
		d, err := c.k.get(name)
		if err == nil {
			d.tracked = nil
		}
		return err
	})
}

// Info implements devmapper.Client.
func (c *client) Info(ctx context.Context, prefix string) (map[string]devmapper.Info, error) {
	c.step("look at info of " + prefix)
	return c.k.infos(prefix), ctx.Err()
}

// Targets implements devmapper.Client.
func (c *client) Targets(ctx context.Context) (map[string]devmapper.Version, error) {
	return map[string]devmapper.Version{
		"linear": {Major: 1, Minor: 4}, "error": {Major: 1, Minor: 6}, "zero": {Major: 1, Minor: 2}, "cache": {Major: 2, Minor: 4},
	}, ctx.Err()
}
