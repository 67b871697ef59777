package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Plugged is a disk that comes and goes while its guest runs.
type Plugged struct {
	// Letter is the device's: c for /dev/ubdc.
	Letter string `json:"letter"`
	// File is the raw image; a running guest holds its lock.
	File string `json:"file"`
	// Serial is the device's serial number, by which the guest finds it.
	Serial   string `json:"serial"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// letters are those of ubd disks; the first are the root and what [Guest] names in
// Disks.
const letters = "abcdefghijklmnop"

// FreeLetter returns the first letter that neither the guest's own disks nor these
// have. It returns [ErrGuest] when there is none.
func FreeLetter(own int, plugged []Plugged) (string, error) {
next:
	for _, c := range letters[own:maxUBDs] {
		for _, p := range plugged {
			if p.Letter == string(c) {
				continue next
			}
		}
		return string(c), nil
	}
	return "", fmt.Errorf("%w with more disks than %d", ErrGuest, maxUBDs)
}

// parameter is the disk on a command line and on the console. "d" takes the file as
// it is: what a guest writes to its first sector must not make it a copy-on-write
// image. Nothing is synchronous: as with the guest's own disks, the host's page cache
// outlives the guest, and the host's crash is no one's concern.
func (p Plugged) parameter() string {
	flags := "d"
	if p.ReadOnly {
		flags = "rd"
	}
	return fmt.Sprintf("ubd%s%s=%s,,%s", p.Letter, flags, p.File, p.Serial)
}

// check refuses what cannot be said on a command line, which the kernel splits at
// blanks and disks at commas and colons.
func (p Plugged) check() error {
	if p.File == "" || p.Serial == "" || strings.ContainsAny(p.File+p.Serial, " \t\n,:\"") {
		return fmt.Errorf("%w: disk %q of %q is empty or has blanks, commas, colons or quotes", ErrGuest, p.Serial, p.File)
	}
	return nil
}

// Console talks to a running User-Mode Linux guest (mconsole,
// arch/um/drivers/mconsole.h).
type Console struct {
	// Guest and RunDir are as in [Guest].
	Guest, RunDir string
}

// socket is where a running guest listens, by its parameters umid and uml_dir.
func (c Console) socket() string { return filepath.Join(c.RunDir, c.Guest, "mconsole") }

// Clear removes the console of a guest that was killed. The next one would take another
// place if it finds the number of the last one in use, be it by one that nobody has
// waited for yet.
func (c Console) Clear() error {
	if err := os.RemoveAll(filepath.Dir(c.socket())); err != nil {
		return fmt.Errorf("console of %s: %w", c.Guest, err)
	}
	return nil
}

// Plug gives the guest a disk.
func (c Console) Plug(ctx context.Context, p Plugged) error {
	if err := p.check(); err != nil {
		return err
	}
	_, err := c.command(ctx, "config "+p.parameter())
	return err
}

// ErrInUse is returned for a disk that the guest has open.
var ErrInUse = errors.New("the guest uses the disk")

// Unplug takes a disk away; [ErrInUse] says that the guest has it open.
func (c Console) Unplug(ctx context.Context, letter string) error {
	answer, err := c.command(ctx, "remove ubd"+letter)
	if err != nil && strings.Contains(answer, "currently open") {
		return fmt.Errorf("%w: %w", ErrInUse, err)
	}
	return err
}

// Has tells whether the guest has a disk of that letter.
func (c Console) Has(ctx context.Context, letter string) (bool, error) {
	answer, err := c.command(ctx, "config ubd"+letter)
	return err == nil && answer != "", err
}

// The protocol's numbers.
const (
	consoleMagic   = 0xcafebabe
	consoleVersion = 2
	consoleData    = 512
	// consoleLimit bounds one command: the kernel answers at once, unless it is
	// just booting.
	consoleLimit = 10 * time.Second
)

// command sends one command and returns the answer, which is in the error too.
func (c Console) command(ctx context.Context, command string) (string, error) {
	if len(command) >= consoleData {
		return "", fmt.Errorf("%w: %q is too long for its console", ErrGuest, command)
	}
	ctx, cancel := context.WithTimeout(ctx, consoleLimit)
	defer cancel()
	conn, err := c.dial(ctx)
	if err != nil {
		return "", fmt.Errorf("console of %s: %w", c.Guest, err)
	}
	defer conn.close()
	var request bytes.Buffer
	for _, v := range []uint32{consoleMagic, consoleVersion, uint32(len(command))} { // below consoleData
		_ = binary.Write(&request, binary.NativeEndian, v) // a buffer takes everything
	}
	request.WriteString(command)
	request.Write(make([]byte, consoleData-len(command)))
	if _, err := conn.Write(request.Bytes()); err != nil {
		return "", fmt.Errorf("console of %s: %w", c.Guest, err)
	}
	return conn.answer(c.Guest, command)
}

// consoleConn is a socket that the guest can answer to.
type consoleConn struct {
	*net.UnixConn
	path string
}

// dial waits for the console of a guest that has just been started.
func (c Console) dial(ctx context.Context) (*consoleConn, error) {
	own := filepath.Join(c.RunDir, fmt.Sprintf("console.%d", os.Getpid()))
	_ = os.Remove(own) // of another process with this number
	remote := c.socket()
	for {
		conn, err := net.DialUnix("unixgram", &net.UnixAddr{Name: own, Net: "unixgram"}, &net.UnixAddr{Name: remote, Net: "unixgram"})
		if err == nil {
			deadline, _ := ctx.Deadline()
			return &consoleConn{UnixConn: conn, path: own}, conn.SetDeadline(deadline)
		}
		_ = os.Remove(own)
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (c *consoleConn) close() {
	_ = c.Close()
	_ = os.Remove(c.path)
}

// answer reads the answer, which may come in pieces.
func (c *consoleConn) answer(guest, command string) (string, error) {
	var text bytes.Buffer
	buf := make([]byte, 3*4+consoleData)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return "", fmt.Errorf("console of %s: %w", guest, err)
		}
		if n < 3*4 {
			return "", fmt.Errorf("console of %s: answer of %d bytes", guest, n)
		}
		failed, more := binary.NativeEndian.Uint32(buf), binary.NativeEndian.Uint32(buf[4:])
		text.Write(buf[12:min(n, 12+int(binary.NativeEndian.Uint32(buf[8:])))])
		if more != 0 {
			continue
		}
		answer := strings.Trim(text.String(), "\x00\n ")
		if failed != 0 {
			return answer, fmt.Errorf("console of %s: %s: %s", guest, command, answer)
		}
		return answer, nil
	}
}
