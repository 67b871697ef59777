package rpc

import (
	"context"
	"crypto/rand"
	"runtime/debug"
	"strings"
	"time"

	"github.com/kubernetes-csi/csi-lib-utils/protosanitizer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
)

// Recorder records the outcome of a call.
type Recorder interface {
	RecordMetrics(operationName string, operationErr error, operationDuration time.Duration)
}

// quietMethods are called by probes and sidecars every few seconds.
var quietMethods = []string{"/Probe", "/GetPluginInfo", "GetCapabilities", "/GetPluginCapabilities", "/NodeGetVolumeStats"}

// withLogger puts a logger with the request's identity into the context.
func withLogger(log klog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		l := log.WithValues("requestID", rand.Text()[:8], "method", methodName(info.FullMethod))
		if v, ok := req.(interface{ GetVolumeId() string }); ok && v.GetVolumeId() != "" {
			l = l.WithValues("volumeID", v.GetVolumeId())
		} else if v, ok := req.(interface{ GetName() string }); ok && v.GetName() != "" {
			l = l.WithValues("name", v.GetName())
		}
		return handler(klog.NewContext(ctx, l), req)
	}
}

// withMetrics records duration and code of every call.
func withMetrics(rec Recorder) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if rec == nil {
			return handler(ctx, req)
		}
		start := time.Now()
		resp, err := handler(ctx, req)
		rec.RecordMetrics(info.FullMethod, err, time.Since(start))
		return resp, err
	}
}

// withLog writes one line per call. Requests and responses appear only at V(5),
// and only as protosanitizer shows them: fields marked csi_secret are replaced.
func withLog(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	log := klog.FromContext(ctx)
	log.V(5).Info("Call started", "request", protosanitizer.StripSecrets(req))
	start := time.Now()
	resp, err := handler(ctx, req)
	duration := time.Since(start)
	if err != nil {
		// The interceptor is where an error leaves the process, so it is logged
		// here and nowhere below.
		log.Error(err, "Call failed", "code", status.Code(err), "duration", duration)
		return nil, err
	}
	log.V(verbosity(info.FullMethod)).Info("Call done", "code", codes.OK, "duration", duration)
	log.V(5).Info("Call answered", "response", protosanitizer.StripSecrets(resp))
	return resp, nil
}

// withRecover turns a panic into an error, so that one request cannot end the
// attachment of every other volume.
func withRecover(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if p := recover(); p != nil {
			klog.FromContext(ctx).Error(nil, "Call panicked", "panic", p, "stack", string(debug.Stack()))
			resp, err = nil, status.Errorf(codes.Internal, "%s: internal error, see the log of the driver", methodName(info.FullMethod))
		}
	}()
	return handler(ctx, req)
}

func verbosity(fullMethod string) int {
	for _, m := range quietMethods {
		if strings.HasSuffix(fullMethod, m) {
			return 5
		}
	}
	return 2
}

func methodName(fullMethod string) string {
	return fullMethod[strings.LastIndexByte(fullMethod, '/')+1:]
}
