package moves

import (
	"testing"
	"time"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

func TestDecide(t *testing.T) {
	const grace = 5 * time.Second
	cases := map[string]struct {
		facts
		want decision
	}{
		"nothing":                          {facts{}, nothing},
		"object just gone":                 {facts{served: true, missing: time.Second}, wait},
		"object gone":                      {facts{served: true, missing: grace}, release},
		"new":                              {facts{asked: true}, exportCache},
		"answer lost":                      {facts{asked: true, served: true}, exportCache},
		"exported":                         {facts{asked: true, served: true, state: v1alpha1.ExportStateExported}, nothing},
		"exported before a restart":        {facts{asked: true, state: v1alpha1.ExportStateExported}, exportCache},
		"refused":                          {facts{asked: true, state: v1alpha1.ExportStateRefused}, nothing},
		"refused, yet served":              {facts{asked: true, served: true, state: v1alpha1.ExportStateRefused}, release},
		"released":                         {facts{asked: true, state: v1alpha1.ExportStateReleased}, nothing},
		"released, yet served":             {facts{asked: true, served: true, state: v1alpha1.ExportStateReleased}, release},
		"ended before the answer":          {facts{asked: true, ended: true}, nothing},
		"ended, answer lost":               {facts{asked: true, ended: true, served: true}, release},
		"ended":                            {facts{asked: true, ended: true, served: true, state: v1alpha1.ExportStateExported}, release},
		"ended, released, not yet said":    {facts{asked: true, ended: true, state: v1alpha1.ExportStateExported}, release},
		"ended, released":                  {facts{asked: true, ended: true, state: v1alpha1.ExportStateReleased}, nothing},
		"ended, refused":                   {facts{asked: true, ended: true, state: v1alpha1.ExportStateRefused}, nothing},
		"asked, and a clock that is wrong": {facts{asked: true, served: true, state: v1alpha1.ExportStateExported, missing: time.Hour}, nothing},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := decide(tc.facts, grace); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// TestDecideEverything walks through all facts: what is served is always somebody's
// or on its way to be released, and nothing ended is ever exported.
func TestDecideEverything(t *testing.T) {
	both := []bool{false, true}
	for _, asked := range both {
		for _, ended := range both {
			for _, served := range both {
				for _, state := range []v1alpha1.ExportState{"", v1alpha1.ExportStateExported, v1alpha1.ExportStateRefused, v1alpha1.ExportStateReleased} {
					f := facts{asked: asked, ended: ended, state: state, served: served, missing: time.Minute}
					d := decide(f, time.Second)
					if d == exportCache && (ended || !asked) {
						t.Errorf("%+v: exported", f)
					}
					wanted := asked && !ended && (state == "" || state == v1alpha1.ExportStateExported)
					if served && !wanted && d != release {
						t.Errorf("%+v: served for ever, %s", f, d)
					}
					if served && wanted && d == release {
						t.Errorf("%+v: taken away", f)
					}
				}
			}
		}
	}
}
