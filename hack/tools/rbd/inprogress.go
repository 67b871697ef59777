package main

import (
	"regexp"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// imagePattern is a pool and an image, which is a volume's id: they go into commands and
// into the kernel's interface, where blanks and "@" mean something.
var imagePattern = regexp.MustCompile(`^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$`)

// inProgress are the images with a call under way.
type inProgress struct {
	mu     sync.Mutex
	images map[string]bool
}

// begin keeps other calls for an image away until the returned function is called. A call
// that comes meanwhile is refused, and repeated by who made it.
func (p *inProgress) begin(image string) (end func(), err error) {
	if !imagePattern.MatchString(image) {
		return nil, status.Errorf(codes.InvalidArgument, "%q is no POOL/IMAGE", image)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.images[image] {
		return nil, status.Errorf(codes.Aborted, "another call for %s is under way", image)
	}
	if p.images == nil {
		p.images = map[string]bool{}
	}
	p.images[image] = true
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.images, image)
	}, nil
}
