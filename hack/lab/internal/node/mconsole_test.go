package node

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeConsole answers commands as a guest does: config and remove of disks.
func fakeConsole(t *testing.T, answer func(command string) (text string, failed bool)) Console {
	t.Helper()
	dir, err := os.MkdirTemp("", "mc") // a short path: sockets have 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c := Console{Guest: "g", RunDir: dir}
	if err := os.Mkdir(filepath.Dir(c.socket()), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: c.socket(), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		buf := make([]byte, 1024)
		for {
			n, from, err := l.ReadFromUnix(buf)
			if err != nil {
				return
			}
			if n != 12+consoleData || binary.NativeEndian.Uint32(buf) != consoleMagic {
				t.Errorf("request of %d bytes", n)
			}
			text, failed := answer(string(buf[12 : 12+binary.NativeEndian.Uint32(buf[8:])]))
			// In two pieces.
			for i, part := range []string{text[:len(text)/2], text[len(text)/2:]} {
				reply := make([]byte, 12+consoleData)
				if failed && i == 1 {
					reply[0] = 1
				}
				reply[4], reply[8] = byte(1-i), byte(len(part))
				copy(reply[12:], part)
				if _, err := l.WriteToUnix(reply, from); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	return c
}

func TestConsole(t *testing.T) {
	var commands []string
	c := fakeConsole(t, func(command string) (string, bool) {
		commands = append(commands, command)
		switch {
		case strings.HasPrefix(command, "remove"):
			return "Device is currently open", true
		case command == "config ubdc":
			return "/x/d.img", false
		}
		return "", false
	})
	ctx := t.Context()
	d := Plugged{Letter: "c", File: "/x/d.img", Serial: "d", ReadOnly: true}
	if err := c.Plug(ctx, d); err != nil {
		t.Error(err)
	}
	if has, err := c.Has(ctx, "c"); err != nil || !has {
		t.Errorf("has %v, %v", has, err)
	}
	if err := c.Unplug(ctx, "c"); !errors.Is(err, ErrInUse) {
		t.Errorf("unplug of an open disk: %v", err)
	}
	if want := "config ubdcrd=/x/d.img,,d|config ubdc|remove ubdc"; strings.Join(commands, "|") != want {
		t.Errorf("commands %q, want %s", commands, want)
	}
	d.File = "/a,b"
	if err := c.Plug(ctx, d); !errors.Is(err, ErrGuest) {
		t.Errorf("a comma in the path: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(c.RunDir, "console.*")); len(left) != 0 {
		t.Errorf("sockets are left: %v", left)
	}
}

func TestConsoleOfNoGuest(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := Console{Guest: "g", RunDir: t.TempDir()}
	if _, err := c.Has(ctx, "c"); err == nil {
		t.Error("no guest has answered")
	}
	if err := c.Clear(); err != nil {
		t.Error(err)
	}
}

func TestFreeLetter(t *testing.T) {
	list := []Plugged{{Letter: "c"}, {Letter: "e"}}
	if got, err := FreeLetter(2, list); got != "d" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	list = nil
	for _, c := range letters[2:] {
		list = append(list, Plugged{Letter: string(c)})
	}
	if _, err := FreeLetter(2, list); !errors.Is(err, ErrGuest) {
		t.Errorf("no letter is free: %v", err)
	}
}
