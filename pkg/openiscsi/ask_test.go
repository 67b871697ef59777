package openiscsi_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/openiscsi"
	"github.com/nearflash/nearflash/pkg/openiscsi/openiscsitest"
)

// TestAsk: a daemon of another version, and one that says nothing, are told from one that is right.
func TestAsk(t *testing.T) {
	const size = 16104
	say := func(command, code uint32, bytes int) func(net.Conn) {
		return func(conn net.Conn) {
			_, _ = io.ReadFull(conn, make([]byte, size))
			answer := make([]byte, max(bytes, 8))
			binary.NativeEndian.PutUint32(answer, command)
			binary.NativeEndian.PutUint32(answer[4:], code)
			_, _ = conn.Write(answer[:bytes])
		}
	}
	wait := func(net.Conn) { <-t.Context().Done() }
	for name, tc := range map[string]struct {
		wants  int
		handle func(net.Conn)
		ask    int
		err    error
		words  string
	}{
		"the same version":               {wants: size, ask: size},
		"an older daemon":                {wants: size - 16, ask: size, err: openiscsi.ErrRequestSize, words: "not read"},
		"a newer daemon":                 {wants: size + 8, ask: size, err: openiscsi.ErrRequestSize, words: "waits for more"},
		"no size is known":               {wants: size, ask: 0},
		"no size, and it wants a lot":    {wants: 60 << 10, ask: 0},
		"it reads nothing":               {handle: wait, ask: size, err: openiscsi.ErrSilent},
		"it reads nothing, without size": {handle: wait, ask: 0, err: openiscsi.ErrSilent},
		"it hangs up":                    {handle: func(net.Conn) {}, ask: size, err: openiscsi.ErrAnswer},
		"rubbish":                        {handle: say(0x20544547, 0, 100), ask: size, err: openiscsi.ErrAnswer, words: "another question"},
		"too short":                      {handle: say(8, 0, 3), ask: size, err: openiscsi.ErrAnswer, words: "3 bytes"},
		"a refusal":                      {handle: say(0, 24, 2464), ask: size, err: openiscsi.ErrAnswer, words: "error 24"},
		"without end": {handle: func(conn net.Conn) {
			for buf := make([]byte, 4096); ; {
				if _, err := conn.Write(buf); err != nil {
					return
				}
			}
		}, ask: size, err: openiscsi.ErrAnswer},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The real one is in the abstract namespace too.
			socket := fmt.Sprintf("@nearflash-test-%d-%s", os.Getpid(), strings.ReplaceAll(t.Name(), "/", "-"))
			if tc.handle == nil {
				openiscsitest.Serve(t, socket, tc.wants)
			} else {
				openiscsitest.Handle(t, socket, tc.handle)
			}
			d := openiscsi.Daemon{Socket: socket, Patience: 2 * time.Second}
			if err := d.Listens(t.Context()); err != nil && tc.handle == nil {
				t.Error(err)
			}
			began := time.Now()
			err := d.Ask(t.Context(), tc.ask)
			if !errors.Is(err, tc.err) || tc.err == nil && err != nil {
				t.Fatalf("got %v, want %v", err, tc.err)
			}
			if err != nil && !strings.Contains(err.Error(), tc.words) {
				t.Errorf("%q lacks %q", err, tc.words)
			}
			if took := time.Since(began); took > time.Minute {
				t.Errorf("it took %s", took)
			}
		})
	}
	if err := (openiscsi.Daemon{Socket: "@nearflash-test-nobody"}).Ask(t.Context(), size); !errors.Is(err, openiscsi.ErrNoDaemon) {
		t.Errorf("nobody listens: %v", err)
	}
}

// TestVersions: what programs say of themselves, and which sizes belong to it.
func TestVersions(t *testing.T) {
	for said, want := range map[string]struct {
		text  string
		known bool
		size  int
	}{
		"iscsiadm version 2.1.13\n":                 {"2.1.13", true, 16136},
		"iscsid version 2.1.11\n":                   {"2.1.11", true, 16112},
		"iscsiadm version 2.1.8":                    {"2.1.8", true, 16104},
		"iscsiadm version 2.1.1":                    {"2.1.1", true, 16104},
		"iscsiadm version 2.1.0":                    {"2.1.0", true, 16088},
		"iscsiadm version 2.0-875":                  {"2.0-875", true, 16088},
		"iscsiadm version 2.0-874":                  {"2.0-874", true, 16080},
		"iscsiadm version 2.0-873":                  {"2.0-873", true, 12856},
		"iscsiadm version 2.0-872":                  {"2.0-872", true, 0},
		"iscsiadm version 2.1.12":                   {"2.1.12", true, 0},
		"iscsiadm version 2.9.0":                    {"2.9.0", true, 0},
		"iscsiadm version 6.2.1.4-1":                {"6.2.1.4-1", false, 0},
		"iscsiadm version 6.2.0.874-22":             {"6.2.0.874-22", false, 0},
		"iscsiadm version 2.1.11-patched":           {"2.1.11-patched", false, 16112},
		"iscsiadm: unknown option":                  {},
		"":                                          {},
		"iscsiadm version 99999999999999999999.1.1": {},
	} {
		v, text, known := openiscsi.ParseVersion(said)
		if text != want.text || known != want.known || openiscsi.RequestSize(v) != want.size {
			t.Errorf("%q: %s, %q, known %t, size %d; want %+v", said, v, text, known, openiscsi.RequestSize(v), want)
		}
	}
}

// TestAskAtOnce: a daemon that has answered and is gone before it was asked to the end has answered.
func TestAskAtOnce(t *testing.T) {
	socket := fmt.Sprintf("@nearflash-test-%d-at-once", os.Getpid())
	openiscsitest.Handle(t, socket, func(conn net.Conn) {
		_, _ = conn.Write(binary.NativeEndian.AppendUint64(nil, 8)) // whoever asked sees that
	})
	for range 3000 {
		if err := (openiscsi.Daemon{Socket: socket}).Ask(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	}
}
