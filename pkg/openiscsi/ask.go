package openiscsi

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Errors of [Daemon].Ask; test with errors.Is.
var (
	// ErrNoDaemon: nobody listens.
	ErrNoDaemon = errors.New("iscsid does not run")
	// ErrSilent: it takes the connection and does not answer.
	ErrSilent = errors.New("iscsid takes the connection and does not answer")
	// ErrRequestSize: its requests have another size than those of the iscsiadm that was meant.
	ErrRequestSize = errors.New("iscsid and iscsiadm do not understand each other")
	// ErrAnswer: what it answers is none, or a refusal.
	ErrAnswer = errors.New("iscsid gives no usable answer")
)

// socket is where iscsid listens, in the abstract namespace of the host's network namespace
// (open-iscsi, usr/mgmt_ipc.h).
const socket = "@ISCSIADM_ABSTRACT_NAMESPACE"

const (
	// patience is how long the daemon may take: it does one thing at a time.
	patience = 10 * time.Second
	// look is the pause between two looks at what it has read.
	look = 500 * time.Millisecond
	// sure is after how many looks without an answer to a request that was read it is taken for
	// one that waits for more.
	sure = 6
	// askName asks for the initiator's name (MGMT_IPC_CONFIG_INAME), which changes nothing. Its
	// number has been the same in all versions.
	askName = 8
	// header are the bytes before what differs: the number of the command, and the length of
	// what follows the structure.
	header = 8
	// anySize is more than any version wants, and less than a socket holds.
	anySize = 64 << 10
)

// Daemon is the iscsid of a node.
type Daemon struct {
	// Socket and Patience are for tests; empty and 0 are the real ones.
	Socket   string
	Patience time.Duration
}

// Listens says why nobody listens; nil if somebody does.
func (d Daemon) Listens(ctx context.Context) error {
	conn, err := d.dial(ctx)
	if err != nil {
		return err
	}
	return conn.Close()
}

func (d Daemon) dial(ctx context.Context) (*net.UnixConn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", cmp.Or(d.Socket, socket))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoDaemon, err)
	}
	return conn.(*net.UnixConn), nil
}

// Ask has the daemon answer a request of a size, as iscsiadm sends it ([RequestSize]); 0 is any.
// Errors: ErrNoDaemon, ErrSilent, ErrRequestSize, ErrAnswer.
func (d Daemon) Ask(ctx context.Context, size int) error {
	conn, err := d.dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	request := make([]byte, cmp.Or(size, anySize))
	binary.NativeEndian.PutUint32(request, askName)
	limit := time.Now().Add(cmp.Or(d.Patience, patience))
	if until, ok := ctx.Deadline(); ok && until.Before(limit) {
		limit = until
	}
	if err := conn.SetWriteDeadline(limit); err != nil {
		return err
	}
	_, writeErr := conn.Write(request) // one that has read enough may have answered, and be gone
	answer, whole, err := d.answer(conn, limit)
	if err == nil && (errors.Is(writeErr, unix.EPIPE) || errors.Is(writeErr, unix.ECONNRESET)) {
		err = unix.ECONNRESET
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded) && whole && size > 0:
		return fmt.Errorf("%w: it has read a request of %d bytes and waits for more", ErrRequestSize, size)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w for %s", ErrSilent, cmp.Or(d.Patience, patience))
	case err != nil && !errors.Is(err, unix.ECONNRESET):
		return fmt.Errorf("%w: %w", ErrAnswer, err)
	}
	if err := judge(answer); err != nil {
		return err
	}
	if err != nil && size > 0 { // it closed the connection before it had read everything
		return fmt.Errorf("%w: it has not read a request of %d bytes to its end", ErrRequestSize, size)
	}
	return nil
}

// answer reads what the daemon says until it closes the connection. whole is set when it has read
// all of the request and said nothing.
func (d Daemon) answer(conn *net.UnixConn, limit time.Time) (answer []byte, whole bool, err error) {
	buf := make([]byte, 4<<10)
	for idle := 0; ; {
		next := time.Now().Add(min(look, cmp.Or(d.Patience, patience)/4))
		if next.After(limit) {
			next = limit
		}
		if err := conn.SetReadDeadline(next); err != nil {
			return answer, false, err
		}
		n, err := conn.Read(buf)
		answer = append(answer, buf[:n]...)
		switch {
		case errors.Is(err, io.EOF):
			return answer, false, nil
		case len(answer) > anySize:
			return answer, false, fmt.Errorf("more than %d bytes", anySize)
		case err == nil:
			continue
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return answer, false, err
		}
		left, outErr := unread(conn)
		if outErr != nil {
			return answer, false, outErr
		}
		if left == 0 && len(answer) == 0 {
			idle++
		}
		// Once it has read everything it answers this request at once, on a machine that is not
		// out of breath.
		if idle >= sure || !time.Now().Before(limit) {
			return answer, idle >= sure/2, err
		}
	}
}

// unread is more than 0 while the other side has not read everything.
func unread(conn *net.UnixConn) (n int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	ctlErr := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	return n, errors.Join(ctlErr, err)
}

// judge reads the head of an answer: the number of the command, and an error (usr/iscsi_err.h).
func judge(answer []byte) error {
	if len(answer) < header {
		return fmt.Errorf("%w: %d bytes", ErrAnswer, len(answer))
	}
	command, code := binary.NativeEndian.Uint32(answer), binary.NativeEndian.Uint32(answer[4:])
	switch {
	case code != 0:
		return fmt.Errorf("%w: error %d", ErrAnswer, code)
	case command != askName:
		return fmt.Errorf("%w: it answers another question (%d)", ErrAnswer, command)
	}
	return nil
}
