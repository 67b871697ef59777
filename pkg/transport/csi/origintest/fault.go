package origintest

import (
	"context"
	"path"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Fault is what goes wrong with one call.
type Fault struct {
	// After says that the call has its effect first.
	After bool
	// Hang is an answer that does not come before the caller gives up.
	Hang bool
	// Crash is Driver.Crash during the call. Start brings the driver back.
	Crash bool
	// Code and Message are answered otherwise.
	Code    codes.Code
	Message string
}

// Inject has the next calls of a method, such as NodeStageVolume or GetInfo, fail, one for each
// fault.
func (d *Driver) Inject(method string, faults ...Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults[method] = append(d.faults[method], faults...)
}

// Heal takes back all faults that have not happened.
func (d *Driver) Heal() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.faults)
}

// Reboot is the node's unclean stop: nothing is staged, published or attached on it any more. What
// was in the caller's directories stays, as on a disk that outlives it, and so does what the
// controller has attached to it.
func (d *Driver) Reboot() error {
	return d.store.do(func(s *state) error {
		for handle, v := range s.Volumes {
			n := v.node(d.c.Node)
			if n.Staging == "" && len(n.Targets) == 0 {
				continue
			}
			if err := d.c.Devices.Detach(handle); err != nil {
				return err
			}
			n.Stayed = append(n.Stayed, n.Targets...)
			n.Staging, n.Targets = "", nil
		}
		return nil
	})
}

// next notes a call, and is what goes wrong with it.
func (d *Driver) next(method string) (Fault, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, method)
	list := d.faults[method]
	if len(list) == 0 {
		return Fault{}, false
	}
	d.faults[method] = list[1:]
	return list[0], true
}

func (d *Driver) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	f, wrong := d.next(path.Base(info.FullMethod))
	if !wrong {
		return handler(ctx, req)
	}
	if f.After {
		// Whatever becomes of the caller meanwhile.
		if answer, err := handler(context.WithoutCancel(ctx), req); err != nil {
			return answer, err
		}
	}
	switch {
	case f.Crash:
		go d.Crash() // it waits for the server, which has this call
		<-ctx.Done()
	case f.Hang:
		<-ctx.Done()
	default:
		return nil, status.Error(f.Code, f.Message)
	}
	return nil, status.FromContextError(ctx.Err()).Err()
}
