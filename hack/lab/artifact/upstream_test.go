package artifact

import "testing"

func TestUpstreamImageName(t *testing.T) {
	const source = `
	configs[AgnhostPrev] = Config{list.PromoterE2eRegistry, "agnhost", "2.55"}
	configs[Agnhost] = Config{list.PromoterE2eRegistry, "agnhost", "2.63.0"}
	configs[AgnhostPrivate] = Config{list.PrivateRegistry, "agnhost", "2.6"}
`
	cases := map[string]struct {
		id      string
		want    string
		wantErr bool
	}{
		"found":             {id: "Agnhost", want: "registry.k8s.io/e2e-test-images/agnhost:2.63.0"},
		"of other registry": {id: "AgnhostPrivate", wantErr: true},
		"unknown":           {id: "BusyBox", wantErr: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := upstreamImage{id: tc.id}.imageName(source)
			if got != tc.want || (err != nil) != tc.wantErr {
				t.Errorf("got %q and %v, want %q", got, err, tc.want)
			}
		})
	}
}
