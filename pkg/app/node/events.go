package node

import (
	"context"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/client-go/tools/events"
)

const (
	// component is the reporting controller of the plugin's events.
	component = "nearflash-node"
	// maxEventInstance is what the API server takes of a reporting instance.
	maxEventInstance = 128
)

// eventInstance is what the events of a node's plugin are signed with. The chart's
// admission policy refuses any other, so that a node cannot speak for another; the
// host's name, which client-go takes, need not be the node's.
func eventInstance(node string) string {
	name := component + "-" + node
	return name[:min(len(name), maxEventInstance)]
}

// signedEvents stores events in the name of one instance.
type signedEvents struct {
	events.EventSink
	instance string
}

// Create implements events.EventSink. What it returns has the instance that it was
// given: the broadcaster finds the event of a series by it.
func (s signedEvents) Create(ctx context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	signed := event.DeepCopy()
	signed.ReportingInstance = s.instance
	stored, err := s.EventSink.Create(ctx, signed)
	if err != nil {
		return nil, err
	}
	stored = stored.DeepCopy()
	stored.ReportingInstance = event.ReportingInstance
	return stored, nil
}
