package reported

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func TestNews(t *testing.T) {
	at := func(d time.Duration) metav1.Time { return metav1.NewTime(time.Unix(1e9, 0).Add(d)) }
	before := Answer{
		Address: "s:1", Asked: at(0), Problems: []string{"p"}, CapacityBytes: 1000, UsedBytes: 500, MetadataRatio: 0.5, ServerNotAfter: new(at(time.Hour)),
	}
	for name, tc := range map[string]struct {
		change func(*Answer)
		want   bool
	}{
		"the same":         {func(*Answer) {}, false},
		"a little later":   {func(a *Answer) { a.Asked = at(Interval - time.Second); a.UsedBytes = 509; a.MetadataRatio = 0.505 }, false},
		"much later":       {func(a *Answer) { a.Asked = at(Interval) }, true},
		"another address":  {func(a *Answer) { a.Address = "s:2" }, true},
		"no answer":        {func(a *Answer) { a.Error = "no route" }, true},
		"no problem":       {func(a *Answer) { a.Problems = nil }, true},
		"more used":        {func(a *Answer) { a.UsedBytes = 510 }, true},
		"less used":        {func(a *Answer) { a.UsedBytes = 400 }, true},
		"larger":           {func(a *Answer) { a.CapacityBytes = 1001 }, true},
		"metadata":         {func(a *Answer) { a.MetadataRatio = 0.6 }, true},
		"renewed":          {func(a *Answer) { a.ServerNotAfter = new(at(2 * time.Hour)) }, true},
		"the client's end": {func(a *Answer) { a.ClientNotAfter = new(at(time.Hour)) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := before
			tc.change(&a)
			if got := news(before, a); got != tc.want {
				t.Errorf("news: %v", got)
			}
		})
	}
	if !news(Answer{}, Answer{Address: "s:1", Asked: at(0)}) {
		t.Error("the first answer is no news")
	}
}

// TestKeep: an answer that is news takes the place of the one before, also of a former process.
func TestKeep(t *testing.T) {
	api := fake.NewClientBuilder().Build()
	read := func() Answer {
		t.Helper()
		var obj corev1.ConfigMap
		if err := api.Get(t.Context(), client.ObjectKey{Namespace: "n", Name: Name("")}, &obj); err != nil {
			t.Fatal(err)
		}
		if obj.Labels["l"] != "v" {
			t.Errorf("labels %v", obj.Labels)
		}
		a, err := Decode(&obj)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	for process := range 2 {
		k := &Keeper{Client: api, Namespace: "n", Labels: map[string]string{"l": "v"}}
		a := Answer{Address: "s:1", Asked: metav1.NewTime(time.Unix(1e9+int64(process), 0)), CapacityBytes: 10, UsedBytes: 1, ServerNotAfter: new(metav1.NewTime(time.Unix(2e9, 0)))}
		for _, said := range []string{"", "no route", ""} {
			a.Error = said
			if err := k.Keep(t.Context(), a); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(a, read()); diff != "" {
				t.Error(diff)
			}
		}
		later := a
		later.Asked = metav1.NewTime(a.Asked.Add(time.Second))
		if err := k.Keep(t.Context(), later); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(a, read()); diff != "" {
			t.Errorf("what is no news was written: %s", diff)
		}
	}
	// That of another server is another object.
	other := &Keeper{Client: api, Namespace: "n", Target: "second", Labels: map[string]string{"l": "v"}}
	if err := other.Keep(t.Context(), Answer{Address: "s:2"}); err != nil {
		t.Fatal(err)
	}
	var obj corev1.ConfigMap
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: "n", Name: "nearflash-storage.second"}, &obj); err != nil || read().Address != "s:1" {
		t.Errorf("the second server's answer: %v; the first one's is of %s", err, read().Address)
	}
	// As many problems as a lost disk gives a server with many volumes.
	k := &Keeper{Client: api, Namespace: "n", Labels: map[string]string{"l": "v"}}
	full := Answer{Address: "s:1", Error: strings.Repeat("é", longest)}
	for range 10_000 {
		full.Problems = append(full.Problems, strings.Repeat("x", 2*longest))
	}
	if err := k.Keep(t.Context(), full); err != nil {
		t.Fatal(err)
	}
	got := read()
	if text := strings.Join(got.Problems, ""); len(text) > 30*longest || !strings.Contains(text, "and 9980 more problems") || len(got.Error) > longest+10 {
		t.Errorf("%d bytes, error of %d", len(text), len(got.Error))
	}
	if _, err := Decode(&corev1.ConfigMap{}); err == nil {
		t.Error("an object without an answer has one")
	}
}

func TestTarget(t *testing.T) {
	for name, want := range map[string]struct {
		target string
		ok     bool
	}{
		"nearflash-storage": {"", true}, "nearflash-storage.second": {"second", true}, "nearflash-storage.": {}, "nearflash-storages": {}, "nearflash-epochs": {}, "": {},
	} {
		target, ok := Target(name)
		if target != want.target || ok != want.ok {
			t.Errorf("%q is that of %q, %v", name, target, ok)
		}
		if ok && Name(target) != name {
			t.Errorf("%q has the name %s", target, Name(target))
		}
	}
}

// TestFormat: what is written has a number, one without it is of format 1, and a later one is not read.
func TestFormat(t *testing.T) {
	api := fake.NewClientBuilder().Build()
	if err := (&Keeper{Client: api, Namespace: "n"}).Keep(t.Context(), Answer{Address: "s:1"}); err != nil {
		t.Fatal(err)
	}
	var obj corev1.ConfigMap
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: "n", Name: Name("")}, &obj); err != nil {
		t.Fatal(err)
	}
	if text := obj.Data[key]; !strings.HasPrefix(text, `{"format":1,"address":"s:1"`) {
		t.Errorf("written %s", text)
	}
	obj.Data[key] = `{"address":"s:2"}`
	if a, err := Decode(&obj); err != nil || a.Address != "s:2" {
		t.Errorf("of before formats: %+v, %v", a, err)
	}
	obj.Data[key] = `{"format":2,"address":["s:3"]}`
	if _, err := Decode(&obj); !errors.Is(err, ErrNewer) || !strings.Contains(err.Error(), "format 2, known is 1") {
		t.Errorf("of a later format: %v", err)
	}
}
