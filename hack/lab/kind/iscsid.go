package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// socket is where iscsid listens, and iscsiadm looks for it: an abstract name, of
	// which each network namespace has its own (open-iscsi, usr/mgmt_ipc.h).
	socket = "@ISCSIADM_ABSTRACT_NAMESPACE"
	// initiatorFile has the name without which iscsid does not start. Sessions of
	// nearflash log in with that of their node.
	initiatorFile = "/etc/iscsi/initiatorname.iscsi"
	startLimit    = 10 * time.Second
)

// serve makes the iscsid of this network namespace answer in the namespaces of the
// processes too, until ctx ends. The kernel talks to an iscsid in its first network
// namespace alone (scsi_transport_iscsi.c), which is none of kind's nodes.
func serve(ctx context.Context, pids []string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	end, err := ensureISCSID(ctx, cancel)
	if err != nil {
		return err
	}
	defer end()
	for _, pid := range pids {
		l, err := listenIn(filepath.Join("/proc", pid, "ns/net"))
		if err != nil {
			cancel(err)
			return fmt.Errorf("listen in the network of process %s: %w", pid, err)
		}
		wg.Go(func() { <-ctx.Done(); _ = l.Close() })
		wg.Go(func() {
			if err := relay(ctx, l, socket); err != nil {
				cancel(fmt.Errorf("network of process %s: %w", pid, err))
			}
		})
	}
	fmt.Println("serving")
	<-ctx.Done()
	return context.Cause(ctx)
}

// listenIn listens on the socket in another network namespace. What comes from there is
// answered from this one.
func listenIn(namespace string) (net.Listener, error) {
	runtime.LockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	defer func() { _ = own.Close() }()
	other, err := os.Open(namespace)
	if err != nil {
		return nil, err
	}
	defer func() { _ = other.Close() }()
	if err := unix.Setns(int(other.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("enter the namespace: %w", err)
	}
	l, err := net.Listen("unix", socket)
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
		// The thread stays locked, and ends with its goroutine.
		return nil, errors.Join(err, fmt.Errorf("leave the namespace: %w", back))
	}
	runtime.UnlockOSThread()
	return l, err
}

// relay passes every connection on to an address until the listener is closed.
func relay(ctx context.Context, l net.Listener, to string) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		in, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accept: %w", err)
		}
		wg.Go(func() {
			var d net.Dialer
			out, err := d.DialContext(ctx, "unix", to)
			if err != nil {
				fmt.Fprintln(os.Stderr, "kind: iscsid:", err)
				_ = in.Close()
				return
			}
			join(ctx, in, out)
		})
	}
}

// join copies both ways until one side has ended or ctx has.
func join(ctx context.Context, a, b net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		wg.Go(func() {
			defer cancel()
			_, _ = io.Copy(way[0], way[1]) // iscsiadm speaks of a broken answer
		})
	}
	<-ctx.Done()
	_ = a.Close()
	_ = b.Close()
	wg.Wait()
}

// ensureISCSID starts an iscsid unless one answers, and ends it again. cancel is
// called when it ends by itself.
func ensureISCSID(ctx context.Context, cancel context.CancelCauseFunc) (end func(), err error) {
	if answers(ctx) {
		return func() {}, nil
	}
	if _, err := os.Stat(initiatorFile); errors.Is(err, os.ErrNotExist) {
		if err := os.WriteFile(initiatorFile, []byte("InitiatorName=iqn.2026-11.io.nearflash.kind:machine\n"), 0o600); err != nil {
			return nil, fmt.Errorf("name of the initiator: %w", err)
		}
	}
	if err := os.MkdirAll("/run/lock/iscsi", 0o700); err != nil {
		return nil, fmt.Errorf("lock of the initiator's records: %w", err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "iscsid", "--foreground")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start iscsid: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cancel(fmt.Errorf("iscsid has ended: %w", errors.Join(cmd.Wait(), context.Cause(ctx))))
	}()
	end = func() {
		_ = cmd.Process.Kill()
		<-ended
	}
	for began := time.Now(); !answers(ctx); {
		select {
		case <-ctx.Done():
			end()
			return nil, context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
		if time.Since(began) > startLimit {
			end()
			return nil, fmt.Errorf("iscsid does not answer after %s", startLimit)
		}
	}
	return end, nil
}

func answers(ctx context.Context) bool {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}
