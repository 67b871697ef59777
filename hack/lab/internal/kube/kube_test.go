package kube

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseNodes(t *testing.T) {
	const body = `{"items":[
	 {"metadata":{"name":"a"},"spec":{},"status":{"nodeInfo":{"bootID":"x"},"conditions":[
	   {"type":"DiskPressure","status":"False"},{"type":"Ready","status":"True","message":"posting"}]}},
	 {"metadata":{"name":"b"},"spec":{"taints":[{"key":"node.kubernetes.io/not-ready"}]},
	  "status":{"conditions":[{"type":"Ready","status":"Unknown","message":"stopped"}]}},
	 {"metadata":{"name":"c"},"status":{}}]}`
	got, err := parseNodes([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	want := []Node{
		{Name: "a", Ready: true, Reason: "posting", BootID: "x"},
		{Name: "b", Reason: "stopped", Taints: []string{"node.kubernetes.io/not-ready"}},
		{Name: "c", Reason: "no condition Ready"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if _, err := parseNodes([]byte("<html>")); err == nil {
		t.Error("something that is no JSON is accepted")
	}
}

func TestUsable(t *testing.T) {
	ready := Node{Ready: true, BootID: "new"}
	tests := map[string]struct {
		node   Node
		bootID string
		want   bool
	}{
		"any boot":       {node: ready, want: true},
		"this boot":      {node: ready, bootID: "new", want: true},
		"an older boot":  {node: ready, bootID: "newer"},
		"out of service": {node: Node{Ready: true, Taints: []string{"node.kubernetes.io/out-of-service"}}, want: true},
		"tainted":        {node: Node{Ready: true, Taints: []string{"x"}}},
		"never reported": {node: Node{}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.node.Usable(tc.bootID); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestParseCSINodes(t *testing.T) {
	body := `{"items": [
		{"metadata": {"name": "node-a"}, "spec": {"drivers": [{"name": "x"}, {"name": "y"}]}},
		{"metadata": {"name": "node-b"}, "spec": {"drivers": null}}]}`
	got, err := parseCSINodes([]byte(body), "y")
	if err != nil || len(got) != 1 || got[0] != "node-a" {
		t.Errorf("got %q, %v", got, err)
	}
}
