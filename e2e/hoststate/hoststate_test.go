package hoststate

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseCounters(t *testing.T) {
	cases := map[string]struct {
		status  string
		want    Counters
		wantErr bool
	}{
		"working": {
			status: "0 262144 cache 8 27/2048 256 12/1024 100 7 30 4 1 13 2 1 writethrough 2 migration_threshold 2048 smq 0 rw - \n",
			want: Counters{UsedBlocks: 12, TotalBlocks: 1024, ReadHits: 100, ReadMisses: 7,
				WriteHits: 30, WriteMisses: 4, Demotions: 1, Promotions: 13, Dirty: 2},
		},
		"failed":   {status: "0 262144 cache Fail\n", wantErr: true},
		"uncached": {status: "0 262144 linear \n", wantErr: true},
		"empty":    {wantErr: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := parseCounters(tc.status)
			if (err != nil) != tc.wantErr {
				t.Fatalf("error %v, want error %t", err, tc.wantErr)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestMentioning(t *testing.T) {
	items := parse("node-a", "dm nf-pvc-1\nlv nearflash-ab/pvc-2.data\ndm nearflash--ab-pvc--1.data\n\nsession iqn.x:pvc-12\n")
	got := Mentioning(items, "pvc-1")
	want := []Item{
		{"node-a", "dm", "nf-pvc-1"},
		{"node-a", "dm", "nearflash--ab-pvc--1.data"},
		{"node-a", "session", "iqn.x:pvc-12"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestOfVolumes(t *testing.T) {
	items := parse("m", "dm nf-a\ndm nearflash-ab.a.data\ndm nearflash--ab-a.data\ndm vg-root\nlv vg/a.data\nlv vg/thinpool\nsession iqn.2026-11.io.nearflash:s:a\nsession iqn.other:x\nfile /var/lib/nearflash/id\n")
	got := OfVolumes(items)
	want := []Item{{"m", "dm", "nf-a"}, {"m", "dm", "nearflash-ab.a.data"}, {"m", "lv", "vg/a.data"}, {"m", "session", "iqn.2026-11.io.nearflash:s:a"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
