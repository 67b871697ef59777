package preflight

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// ErrCRD means that the API server lacks a resource of nearflash, or has it in
// another version than this program was built with.
var ErrCRD = errors.New("the CustomResourceDefinitions of nearflash are missing or of another version")

// crdRemedy is what every error about a definition ends with. Helm installs the
// definitions of a chart once and never upgrades them.
const crdRemedy = "remedy: kubectl apply --server-side --force-conflicts -f crds/ with the directory crds of the chart of this version"

// openAPI is what is read of the API server's OpenAPI v3 document of a group.
type openAPI struct {
	Components struct {
		Schemas map[string]apiSchema `json:"schemas"`
	} `json:"components"`
}

// apiKind names a kind in the document.
type apiKind struct {
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
}

// apiSchema is what is read of the schema of one type.
type apiSchema struct {
	Kinds      []apiKind            `json:"x-kubernetes-group-version-kind"`
	Properties map[string]apiSchema `json:"properties"`
	Items      *apiSchema           `json:"items"`
}

// API makes sure that the API server answers and stores every field of the
// objects of nearflash: a field that an older definition lacks is dropped by the
// server without an error, and the fence would rest on nothing.
//
// It reads /openapi/v3, which every authenticated account may. Errors: ErrCRD
// with the missing thing and the remedy; anything else means that the server
// could not be asked.
func API(ctx context.Context, config *rest.Config) error {
	doc, err := fetch(ctx, config)
	if err != nil {
		return err
	}
	var errs []error
	for _, kind := range []struct {
		name string
		of   any
	}{
		{"CachedVolume", v1alpha1.CachedVolume{}},
		{"CachePool", v1alpha1.CachePool{}},
		{"CacheMigration", v1alpha1.CacheMigration{}},
		{"CacheHotSet", v1alpha1.CacheHotSet{}},
	} {
		schema, ok := doc.kind(kind.name)
		if !ok {
			errs = append(errs, fmt.Errorf("%w: the API server has no %s of %s; %s", ErrCRD, kind.name, v1alpha1.GroupVersion, crdRemedy))
			continue
		}
		var missing []string
		t := reflect.TypeOf(kind.of)
		for i := range t.NumField() {
			field := t.Field(i)
			if field.Anonymous { // what every object has
				continue
			}
			name := jsonName(field)
			below, ok := schema.Properties[name]
			if field.Type.Kind() != reflect.Struct && !ok {
				missing = append(missing, name)
			}
			missing = append(missing, missingFields(field.Type, below, name)...)
		}
		if len(missing) > 0 {
			errs = append(errs, fmt.Errorf("%w: the %s of the API server lacks %s; %s", ErrCRD, kind.name, strings.Join(missing, ", "), crdRemedy))
		}
	}
	return errors.Join(errs...)
}

// fetch reads the schemas of the group.
func fetch(ctx context.Context, config *rest.Config) (openAPI, error) {
	api, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return openAPI{}, fmt.Errorf("client of the API server: %w", err)
	}
	path := "/openapi/v3/apis/" + v1alpha1.GroupVersion.String()
	text, err := api.RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return openAPI{}, fmt.Errorf("%w: the API server does not know %s; %s", ErrCRD, v1alpha1.GroupVersion, crdRemedy)
	}
	if err != nil {
		return openAPI{}, fmt.Errorf("ask the API server %s for %s: %w; remedy: check the network between this pod and the API server, and its service account", config.Host, path, err)
	}
	var doc openAPI
	if err := json.Unmarshal(text, &doc); err != nil {
		return openAPI{}, fmt.Errorf("read %s of the API server: %w", path, err)
	}
	return doc, nil
}

// kind returns the schema of a kind.
func (d openAPI) kind(name string) (apiSchema, bool) {
	want := apiKind{Group: v1alpha1.GroupName, Version: v1alpha1.GroupVersion.Version, Kind: name}
	for _, s := range d.Components.Schemas {
		if slices.Contains(s.Kinds, want) {
			return s, true
		}
	}
	return apiSchema{}, false
}

// missingFields lists the JSON fields of t, below path, that schema lacks. Types
// of other packages are theirs to describe.
func missingFields(t reflect.Type, schema apiSchema, path string) []string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() == reflect.Slice && schema.Items != nil {
		return missingFields(t.Elem(), *schema.Items, path+"[]")
	}
	if t.Kind() != reflect.Struct || t.PkgPath() != reflect.TypeFor[v1alpha1.CachedVolume]().PkgPath() {
		return nil
	}
	var out []string
	for i := range t.NumField() {
		field := t.Field(i)
		name := jsonName(field)
		below, ok := schema.Properties[name]
		if !ok {
			out = append(out, path+"."+name)
			continue
		}
		out = append(out, missingFields(field.Type, below, path+"."+name)...)
	}
	return out
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}
