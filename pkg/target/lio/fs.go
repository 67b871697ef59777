package lio

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// DefaultRoot is where the kernel's target tree is when configfs is mounted.
const DefaultRoot = "/sys/kernel/config/target"

// Entry is one entry of a directory.
type Entry struct {
	Name string
	Dir  bool
	Link bool
}

// FS is what this package needs of configfs. Paths are relative to the target
// tree. Errors wrap the fs.ErrNotExist and fs.ErrExist of package io/fs.
type FS interface {
	Mkdir(path string) error
	Rmdir(path string) error
	// Symlink makes link point to target, both relative to the tree.
	Symlink(target, link string) error
	Unlink(link string) error
	// Write sets an attribute in one write; the value is never part of an error.
	Write(path, value string) error
	// Read returns an attribute without the final newline.
	Read(path string) (string, error)
	List(dir string) ([]Entry, error)
}

type configFS struct {
	root string
}

// NewFS returns the FS of the tree at root, normally [DefaultRoot].
func NewFS(root string) FS {
	return configFS{root: root}
}

func (c configFS) path(p string) string {
	return filepath.Join(c.root, filepath.FromSlash(p))
}

func (c configFS) Mkdir(p string) error {
	return os.Mkdir(c.path(p), 0o755) // configfs ignores the mode
}

func (c configFS) Rmdir(p string) error {
	// Not os.Remove: on ENOTDIR it would fall back to unlinking.
	if err := rmdir(c.path(p)); err != nil {
		return &os.PathError{Op: "rmdir", Path: c.path(p), Err: err}
	}
	return nil
}

func (c configFS) Symlink(target, link string) error {
	return os.Symlink(c.path(target), c.path(link))
}

func (c configFS) Unlink(link string) error {
	return os.Remove(c.path(link))
}

func (c configFS) Write(p, value string) (err error) {
	f, err := os.OpenFile(c.path(p), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := f.Close(); cerr != nil {
			err = errors.Join(err, cerr)
		}
	}()
	if _, err := f.WriteString(value); err != nil {
		return fmt.Errorf("set attribute: %w", err)
	}
	return nil
}

func (c configFS) Read(p string) (string, error) {
	b, err := os.ReadFile(c.path(p))
	if err != nil {
		return "", err
	}
	return strings.TrimSuffix(string(b), "\n"), nil
}

func (c configFS) List(dir string) ([]Entry, error) {
	list, err := os.ReadDir(c.path(dir))
	if err != nil {
		return nil, err
	}
	out := make([]Entry, 0, len(list))
	for _, e := range list {
		out = append(out, Entry{Name: e.Name(), Dir: e.IsDir(), Link: e.Type()&os.ModeSymlink != 0})
	}
	return out, nil
}
