// Package hostile makes requests of gRPC services as somebody would who means harm.
package hostile

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Strings are values that somebody may put where a string is expected.
func Strings() []string {
	return []string{
		"", " ", "v", "..", "../../etc/passwd", "/dev/sda", "a/b", "-rf", "--help", "$(reboot)", "a b\nc", "\x00", "\u202e", strings.Repeat("x", 5000),
		"18446744073709551616", "-1", "1e308", "9223372036854775807", "%s%n", "iqn.2026-11.io.example:x", "127.0.0.1:3260", "[::1]:0", "{\"iqn\":1}", "writeback", "110%", "NaN",
	}
}

// Numbers are values that somebody may put where a number is expected.
func Numbers() []int64 { return []int64{0, 1, 5, -1, 1 << 40, 1<<63 - 1, -1 << 63} }

// Fill puts one text and one number into every field of a message, down to a depth:
// each list and map gets one element, and of a choice the last is taken.
func Fill(m proto.Message, text string, number int64, depth int) {
	fill(m.ProtoReflect(), text, number, depth)
}

func fill(m protoreflect.Message, text string, number int64, depth int) {
	if depth == 0 {
		return
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsMap():
			entries := m.Mutable(f).Map()
			entries.Set(protoreflect.ValueOfString(text).MapKey(), value(f.MapValue(), entries.NewValue, text, number, depth))
		case f.IsList():
			list := m.Mutable(f).List()
			list.Append(value(f, list.NewElement, text, number, depth))
		default:
			m.Set(f, value(f, func() protoreflect.Value { return m.NewField(f) }, text, number, depth))
		}
	}
}

// value is that of one field, or element of one. fresh makes an empty one.
func value(f protoreflect.FieldDescriptor, fresh func() protoreflect.Value, text string, number int64, depth int) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(text)
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(text))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(number%2 != 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(number))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(number)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(number))
	case protoreflect.MessageKind:
		v := fresh()
		fill(v.Message(), text, number, depth-1)
		return v
	default:
		return fresh()
	}
}
