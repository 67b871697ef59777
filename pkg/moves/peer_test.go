package moves

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestLeadsTo: what a node says of its export is believed only where it leads to that node, and
// to the volume: else a hostile node has another one log in to, and later cut, the session of
// another volume.
func TestLeadsTo(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "node-a"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.1"},
		{Type: corev1.NodeInternalIP, Address: "2001:db8::1"}, {Type: corev1.NodeExternalIP, Address: "198.51.100.1"},
	}}}
	own := volume.ExportIQN("node-a", "v")
	for name, tc := range map[string]struct {
		iqn     string
		portals []string
		ok      bool
	}{
		"its own":                   {own, []string{"192.0.2.1:3262"}, true},
		"its own, IPv6":             {own, []string{"[2001:db8::1]:3262"}, true},
		"IPv4 in IPv6":              {own, []string{"[::ffff:192.0.2.1]:3262"}, true},
		"both":                      {own, []string{"192.0.2.1:3262", "[2001:db8::1]:3262"}, true},
		"another volume's":          {volume.ExportIQN("node-a", "w"), []string{"192.0.2.1:3262"}, false},
		"another node's":            {volume.ExportIQN("node-b", "v"), []string{"192.0.2.1:3262"}, false},
		"a volume of the server":    {"iqn.2026-11.io.nearflash:s1:v:g4", []string{"192.0.2.1:3262"}, false},
		"another address":           {own, []string{"192.0.2.2:3262"}, false},
		"an address of the outside": {own, []string{"198.51.100.1:3262"}, false},
		"one of two is another":     {own, []string{"192.0.2.1:3262", "192.0.2.2:3262"}, false},
		"another port":              {own, []string{"192.0.2.1:3260"}, false},
		"a name":                    {own, []string{"node-a:3262"}, false},
		"no port":                   {own, []string{"192.0.2.1"}, false},
		"a zone":                    {own, []string{"[2001:db8::1%eth0]:3262"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			err := leadsTo(node, 3262, "v", &v1alpha1.MigrationSource{IQN: tc.iqn, Portals: tc.portals})
			if (err == nil) != tc.ok {
				t.Errorf("got %v, want it accepted: %t", err, tc.ok)
			}
		})
	}
	if err := leadsTo(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}, 3262, "v", &v1alpha1.MigrationSource{IQN: own, Portals: []string{"192.0.2.1:3262"}}); err == nil {
		t.Error("a node without addresses exports")
	}
}
