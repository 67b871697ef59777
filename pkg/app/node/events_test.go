package node

import (
	"context"
	"errors"
	"strings"
	"testing"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/client-go/tools/events"
)

// eventStore keeps the last event that was stored.
type eventStore struct {
	events.EventSink
	got *eventsv1.Event
	err error
}

func (s *eventStore) Create(_ context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	s.got = e
	return e, s.err
}

func TestSignedEvents(t *testing.T) {
	store := &eventStore{}
	sink := signedEvents{EventSink: store, instance: eventInstance("node-a")}
	event := &eventsv1.Event{ReportingInstance: "nearflash-node-host"}
	back, err := sink.Create(t.Context(), event)
	if err != nil {
		t.Fatal(err)
	}
	if store.got.ReportingInstance != "nearflash-node-node-a" {
		t.Errorf("stored in the name of %q", store.got.ReportingInstance)
	}
	if back.ReportingInstance != event.ReportingInstance || event.ReportingInstance != "nearflash-node-host" {
		t.Errorf("the broadcaster gets %q for %q", back.ReportingInstance, event.ReportingInstance)
	}
	store.err = errors.New("refused")
	if _, err := sink.Create(t.Context(), event); !errors.Is(err, store.err) {
		t.Errorf("error is %v, want that of the sink", err)
	}
}

func TestEventInstance(t *testing.T) {
	if got := eventInstance(strings.Repeat("a", 200)); len(got) != maxEventInstance {
		t.Errorf("%d characters, the API server takes %d", len(got), maxEventInstance)
	}
}
