package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// errNoImage is returned for an image that the pool does not have.
var errNoImage = errors.New("no such image")

// runner runs a program of Ceph with standard input and returns its standard output.
type runner func(ctx context.Context, stdin []byte, args ...string) ([]byte, error)

// commandLimit bounds one command. Ceph's programs wait for ever for a cluster that does
// not answer; every call of the controller may be repeated.
const commandLimit = 60 * time.Second

// commandRunner puts words before each command. A command is not ended with its call, which a
// sidecar gives up after some seconds: half of an image would be left. It keeps other calls for
// the image away meanwhile.
func commandRunner(prefix []string) runner {
	return func(ctx context.Context, stdin []byte, args ...string) ([]byte, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandLimit)
		defer cancel()
		argv := slices.Concat(prefix, args)
		var stdout, stderr bytes.Buffer
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
		err := cmd.Run()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
		}
		return stdout.Bytes(), nil
	}
}

// cluster is a Ceph cluster, asked by its own programs.
type cluster struct {
	run  runner
	user string
}

func (c *cluster) rbd(ctx context.Context, args ...string) ([]byte, error) {
	out, err := c.run(ctx, nil, slices.Concat([]string{"rbd", "--id", c.user}, args)...)
	// Its exit status is the error number.
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == int(syscall.ENOENT) {
		err = fmt.Errorf("%w: %w", errNoImage, err)
	}
	return out, err
}

func (c *cluster) rbdJSON(ctx context.Context, into any, args ...string) error {
	out, err := c.rbd(ctx, append(args, "--format", "json")...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(out, into); err != nil {
		return fmt.Errorf("rbd %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// imageFeatures are what a kernel of any age can map, and the lock.
const imageFeatures = "layering,exclusive-lock"

// create makes an image that info does not show. What is in its way was left by a command that was
// killed between an image's name and its header, and goes: the call fails, and is repeated.
func (c *cluster) create(ctx context.Context, image string, size int64) error {
	_, err := c.rbd(ctx, "create", "--size", strconv.FormatInt(size, 10)+"B", "--image-feature", imageFeatures, image)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == int(syscall.EEXIST) {
		err = errors.Join(err, c.removeHalf(ctx, image))
	}
	return err
}

// removeHalf removes what there is of an image, which may be nothing.
func (c *cluster) removeHalf(ctx context.Context, image string) error {
	if err := c.remove(ctx, image); err != nil && !errors.Is(err, errNoImage) {
		return err
	}
	return nil
}

// size is an image's, in bytes.
func (c *cluster) size(ctx context.Context, image string) (int64, error) {
	var info struct {
		Size int64 `json:"size"`
	}
	return info.Size, c.rbdJSON(ctx, &info, "info", image)
}

func (c *cluster) resize(ctx context.Context, image string, size int64) error {
	_, err := c.rbd(ctx, "resize", "--no-progress", "--size", strconv.FormatInt(size, 10)+"B", image)
	return err
}

func (c *cluster) remove(ctx context.Context, image string) error {
	_, err := c.rbd(ctx, "remove", "--no-progress", image)
	return err
}

// notes are what is kept beside an image, in an object of its own. An image's metadata are no
// place for it: rbd takes the exclusive lock to write them, from a client that is lost too.
func (c *cluster) notes(ctx context.Context, image string) (notes, error) {
	var n notes
	if _, err := c.size(ctx, image); err != nil {
		return n, err
	}
	out, err := c.rados(ctx, nil, image, "get", "-")
	if errors.Is(err, errNoImage) {
		return n, nil
	}
	if err == nil {
		err = json.Unmarshal(out, &n)
	}
	if err != nil {
		return n, fmt.Errorf("notes of %s: %w", image, err)
	}
	return n, nil
}

func (c *cluster) setNotes(ctx context.Context, image string, n notes) error {
	b, err := json.Marshal(n)
	if err != nil {
		return err
	}
	_, err = c.rados(ctx, b, image, "put", "-")
	return err
}

// removeNotes may be repeated.
func (c *cluster) removeNotes(ctx context.Context, image string) error {
	if _, err := c.rados(ctx, nil, image, "rm"); err != nil && !errors.Is(err, errNoImage) {
		return err
	}
	return nil
}

// rados works on the object of an image's notes.
func (c *cluster) rados(ctx context.Context, stdin []byte, image, verb string, more ...string) ([]byte, error) {
	pool, name, _ := strings.Cut(image, "/")
	out, err := c.run(ctx, stdin, slices.Concat([]string{"rados", "--id", c.user, "-p", pool, verb, "lab." + name}, more)...)
	// Its exit status is always 1; the error number is in what it says.
	if err != nil && strings.Contains(err.Error(), "(2) No such file or directory") {
		err = fmt.Errorf("%w: %w", errNoImage, err)
	}
	return out, err
}

// lock is the exclusive lock of an image, as a client has it.
type lock struct {
	ID      string `json:"id"`
	Locker  string `json:"locker"`
	Address string `json:"address"`
}

func (c *cluster) locks(ctx context.Context, image string) ([]lock, error) {
	var locks []lock
	return locks, c.rbdJSON(ctx, &locks, "lock", "list", image)
}

// clients are the addresses of all that have an image open for writing: who watches it,
// and who has its lock. A client that cannot be reached stops to be the former.
func (c *cluster) clients(ctx context.Context, image string) ([]string, error) {
	var state struct {
		Watchers []struct {
			Address string `json:"address"`
		} `json:"watchers"`
	}
	if err := c.rbdJSON(ctx, &state, "status", image); err != nil {
		return nil, err
	}
	locks, err := c.locks(ctx, image)
	var out []string
	for _, w := range state.Watchers {
		out = append(out, w.Address)
	}
	for _, l := range locks {
		out = append(out, l.Address)
	}
	slices.Sort(out)
	return slices.Compact(out), err
}

// breakLock takes the lock from a client that is fenced.
func (c *cluster) breakLock(ctx context.Context, image string, l lock) error {
	_, err := c.rbd(ctx, "--rbd-blocklist-on-break-lock=false", "lock", "remove", image, l.ID, l.Locker)
	return err
}

// block has the OSDs refuse whatever a client sends; block and allow may be repeated.
func (c *cluster) block(ctx context.Context, address string, lasts time.Duration) error {
	_, err := c.run(ctx, nil, "ceph", "--id", c.user, "osd", "blocklist", "add", address, strconv.Itoa(int(lasts.Seconds())))
	return err
}

// allow ends that.
func (c *cluster) allow(ctx context.Context, address string) error {
	_, err := c.run(ctx, nil, "ceph", "--id", c.user, "osd", "blocklist", "rm", address)
	return err
}
