package cachestream

import (
	"context"
	"fmt"
	"sync"

	"github.com/nearflash/nearflash/pkg/volume"
)

// maxStreams bounds the calls that are served at a time, and maxPerNode those of one node.
const maxStreams, maxPerNode = 64, 16

// streams are the calls that are being served.
type streams struct {
	mu  sync.Mutex
	all map[*stream]struct{}
}

// stream is one of them.
type stream struct {
	move volume.MoveID
	node string
	// end stops it, and done is closed when it has stopped.
	end  context.CancelCauseFunc
	done chan struct{}
	// open tells that it has a cache.
	open bool
}

func newStreams() *streams { return &streams{all: map[*stream]struct{}{}} }

// add begins a stream. Errors: volume.ErrUnavailable if there are too many.
func (s *streams) add(st *stream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	same := 0
	for other := range s.all {
		if other.node == st.node {
			same++
		}
	}
	if len(s.all) >= maxStreams || same >= maxPerNode {
		return fmt.Errorf("%w: this node serves %d streams already, %d of them to node %s", volume.ErrUnavailable, len(s.all), same, st.node)
	}
	s.all[st] = struct{}{}
	return nil
}

func (s *streams) opened(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.open = true
}

func (s *streams) remove(st *stream) {
	s.mu.Lock()
	delete(s.all, st)
	s.mu.Unlock()
	close(st.done)
}

// of returns the streams of a move.
func (s *streams) of(m volume.MoveID) []*stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*stream
	for st := range s.all {
		if st.move == m {
			out = append(out, st)
		}
	}
	return out
}

func (s *streams) inUse(m volume.MoveID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.all {
		if st.move == m && st.open {
			return true
		}
	}
	return false
}
