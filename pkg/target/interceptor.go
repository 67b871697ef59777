package target

import (
	"context"
	"fmt"
	"path"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/nearflash/nearflash/pkg/target/targetpb"
)

const stripped = "***stripped***"

// Strip returns the text of a message for logs: fields marked as secret in the
// protocol definition are replaced.
func Strip(m proto.Message) string {
	c := proto.Clone(m)
	stripMessage(c.ProtoReflect())
	b, err := protojson.Marshal(c)
	if err != nil {
		return fmt.Sprintf("<%s>", m.ProtoReflect().Descriptor().Name())
	}
	return string(b)
}

func stripMessage(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		opts, _ := f.Options().(*descriptorpb.FieldOptions)
		secret, _ := proto.GetExtension(opts, targetpb.E_Secret).(bool)
		switch {
		case secret && f.Kind() == protoreflect.StringKind && !f.IsList() && !f.IsMap():
			m.Set(f, protoreflect.ValueOfString(stripped))
		case secret:
			m.Clear(f)
		case f.IsMap():
			// No map in the protocol; should one appear, it is not logged.
			m.Clear(f)
		case f.Message() != nil && f.IsList():
			for i := range v.List().Len() {
				stripMessage(v.List().Get(i).Message())
			}
		case f.Message() != nil:
			stripMessage(v.Message())
		}
		return true
	})
}

// logCalls puts a logger with a request number into the context, and logs and counts the
// outcome of each call. The log has failures always, the rest at V(2), bodies at V(5).
func logCalls(log logr.Logger, durations *prometheus.HistogramVec) grpc.UnaryServerInterceptor {
	var count atomic.Uint64
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (res any, err error) {
		log := log.WithValues("request", strconv.FormatUint(count.Add(1), 10), "method", info.FullMethod, "client", clientName(ctx))
		if named, ok := req.(interface{ GetName() string }); ok {
			log = log.WithValues("volume", named.GetName())
		}
		if m, ok := req.(proto.Message); ok && log.V(5).Enabled() {
			log.V(5).Info("Call", "body", Strip(m))
		}
		start := time.Now()
		defer func() {
			p, took := recover(), time.Since(start)
			if p != nil {
				err = status.Error(codes.Internal, "internal error, see the server's log")
			}
			durations.WithLabelValues(path.Base(info.FullMethod), status.Code(err).String()).Observe(took.Seconds())
			switch {
			case p != nil:
				log.Error(fmt.Errorf("panic: %v", p), "Call panicked", "stack", string(debug.Stack()))
			case err != nil:
				log.Info("Call failed", "code", status.Code(err).String(), "err", status.Convert(err).Message(), "took", took.String())
			default:
				log.V(2).Info("Call done", "took", took.String())
			}
		}()
		return handler(logr.NewContext(ctx, log), req)
	}
}
