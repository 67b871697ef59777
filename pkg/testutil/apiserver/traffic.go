package apiserver

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"

	"k8s.io/client-go/rest"
)

// Traffic counts the requests that clients make of the API server, what they send and get, and
// the events of their watches. Its zero value has counted nothing.
type Traffic struct {
	mu sync.Mutex
	n  Counts
}

// Counts are what was counted.
type Counts struct {
	// Requests are by verb and kind of object; a list is LIST, a watch WATCH.
	Requests map[string]int
	// Refused are the requests that were answered with 429, each time.
	Refused int
	// Sent and Received are the bytes of bodies, received ones without compression; Watched is
	// the part of Received that came by watches.
	Sent, Received, Watched int64
	// Events are those of watches, by type and kind of object: "MODIFIED cachedvolumes".
	Events map[string]int
}

// Counted returns a configuration whose requests are counted.
func (c *Traffic) Counted(config *rest.Config) *rest.Config {
	out := rest.CopyConfig(config)
	out.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) { return c.roundTrip(next, req) })
	})
	return out
}

// Take returns what was counted since the last time.
func (c *Traffic) Take() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.n
	c.n = Counts{}
	return out
}

// Asked is how often something was asked for since the last Take, as in Requests.
func (c *Traffic) Asked(request string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n.Requests[request]
}

// Add adds counts to counts.
func (n *Counts) Add(o Counts) {
	n.Requests, n.Events = added(n.Requests, o.Requests), added(n.Events, o.Events)
	n.Refused += o.Refused
	n.Sent, n.Received, n.Watched = n.Sent+o.Sent, n.Received+o.Received, n.Watched+o.Watched
}

func added(a, b map[string]int) map[string]int {
	out := maps.Clone(a)
	if out == nil {
		out = map[string]int{}
	}
	for k, n := range b {
		out[k] += n
	}
	return out
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func (c *Traffic) roundTrip(next http.RoundTripper, req *http.Request) (*http.Response, error) {
	what := requestOf(req)
	c.count(Counts{Requests: map[string]int{what: 1}, Sent: max(req.ContentLength, 0)})
	resp, err := next.RoundTrip(req)
	if err != nil {
		return resp, err
	}
	if resp.StatusCode == http.StatusTooManyRequests {
		c.count(Counts{Refused: 1})
	}
	body := &countedBody{ReadCloser: resp.Body, traffic: c}
	if verb, kind, _ := strings.Cut(what, " "); verb == watchVerb {
		body.watched = kind
	}
	resp.Body = body
	return resp, nil
}

func (c *Traffic) count(n Counts) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n.Add(n)
}

const watchVerb = "WATCH"

// requestOf is the verb and the kind of a request.
func requestOf(req *http.Request) string {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		parts = parts[3:]
	default:
		return req.Method + " " + req.URL.Path
	}
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	verb := req.Method
	switch {
	case req.URL.Query().Get("watch") != "":
		verb = watchVerb
	case req.URL.Query().Get("limit") == "1":
		verb = "LOOK" // for one, however many there are
	case verb == http.MethodGet && len(parts) == 1:
		verb = "LIST"
	}
	return verb + " " + parts[0]
}

// headBytes of an event in JSON have its type: {"type":"MODIFIED",
const headBytes = 32

// countedBody counts what is read. The events of a watch of JSON are a line each.
type countedBody struct {
	io.ReadCloser
	traffic *Traffic
	// watched is the kind of object of a watch.
	watched string
	// head is the beginning of the line that is being read.
	head []byte
}

// Read implements io.Reader.
func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	counts := Counts{Received: int64(n)}
	if b.watched != "" {
		counts.Watched, counts.Events = int64(n), b.events(p[:n])
	}
	b.traffic.count(counts)
	return n, err
}

func (b *countedBody) events(p []byte) map[string]int {
	var out map[string]int
	for len(p) > 0 {
		line, rest, ended := bytes.Cut(p, []byte{'\n'})
		b.head = append(b.head, line[:min(len(line), headBytes-len(b.head))]...)
		if p = rest; !ended {
			break
		}
		_, kind, _ := bytes.Cut(b.head, []byte(`"type":"`))
		kind, _, _ = bytes.Cut(kind, []byte{'"'})
		if out == nil {
			out = map[string]int{}
		}
		out[string(kind)+" "+b.watched]++
		b.head = b.head[:0]
	}
	return out
}
