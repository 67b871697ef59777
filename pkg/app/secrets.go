package app

import (
	"regexp"

	"k8s.io/klog/v2"
)

// secretless is what klog writes no secret through. From --v=8 on client-go logs the bodies of
// requests and answers (rest/request.go, logBody): the tokens of TokenReviews, whatever is in a
// Secret. It does so with the logger of the context, or the program's if a library has detached
// the context, as apiserver's cache of tokens does; both write to klog.
type secretless struct{}

var _ klog.LogFilter = secretless{}

const (
	// bodyKey is the key of a body in client-go's lines.
	bodyKey = "body"
	hidden  = "(not shown)"
)

// jwt is a JSON web token, as those of service accounts are, also one that was cut short.
var jwt = regexp.MustCompile(`eyJ[\w-]+\.eyJ[\w-]+(\.[\w-]*)?`)

// Filter implements klog.LogFilter.
func (secretless) Filter(args []any) []any {
	out := make([]any, len(args))
	for i, a := range args {
		out[i] = withoutTokens(a)
	}
	return out
}

// FilterF implements klog.LogFilter.
func (f secretless) FilterF(format string, args []any) (string, []any) {
	return format, f.Filter(args)
}

// FilterS implements klog.LogFilter.
func (f secretless) FilterS(msg string, keysAndValues []any) (string, []any) {
	out := f.Filter(keysAndValues)
	for i := 0; i+1 < len(out); i += 2 {
		if out[i] == bodyKey {
			out[i+1] = hidden
		}
	}
	return msg, out
}

// withoutTokens returns a value without the tokens that it shows. An error that shows none stays
// what it is.
func withoutTokens(v any) any {
	var text string
	switch v := v.(type) {
	case string:
		text = v
	case error:
		text = v.Error()
	default:
		return v
	}
	if !jwt.MatchString(text) {
		return v
	}
	return jwt.ReplaceAllString(text, hidden)
}
