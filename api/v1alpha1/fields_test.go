package v1alpha1_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// fieldsFile lists each field, and each value of an enumeration, that the definitions have had since
// the first version whose data this one reads. It only grows: a controller does not start where a
// field that it knows is unknown, and definitions are never taken back, also not with the driver
// (docs/explanation/compatibility.md).
const fieldsFile = "testdata/fields.txt"

func TestNoFieldIsTakenAway(t *testing.T) {
	files, err := filepath.Glob("../../deploy/helm/nearflash/crds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no definitions: %v", err)
	}
	var now []string
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(b, &crd); err != nil {
			t.Fatal(err)
		}
		now = append(now, fieldsOf(crd.Spec.Names.Kind, crd.Spec.Versions[0].Schema.OpenAPIV3Schema)...)
	}
	b, err := os.ReadFile(fieldsFile)
	if err != nil {
		t.Fatal(err)
	}
	ever := strings.Fields(string(b))
	for _, field := range ever {
		if !slices.Contains(now, field) {
			t.Errorf("%s is gone: an older version that knows it does not work with these definitions", field)
		}
	}
	for _, field := range now {
		if !slices.Contains(ever, field) {
			t.Errorf("%s is new: add it to %s, which keeps it from being taken away", field, fieldsFile)
		}
	}
}

// fieldsOf returns the paths below a schema, PATH:TYPE, and PATH=VALUE of enumerations.
func fieldsOf(path string, s *apiextensionsv1.JSONSchemaProps) []string {
	out := []string{path + ":" + s.Type}
	for _, value := range s.Enum {
		out = append(out, fmt.Sprintf("%s=%s", path, strings.Trim(string(value.Raw), `"`)))
	}
	for name := range s.Properties {
		property := s.Properties[name]
		out = append(out, fieldsOf(path+"."+name, &property)...)
	}
	if s.Items != nil && s.Items.Schema != nil {
		out = append(out, fieldsOf(path+"[]", s.Items.Schema)...)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		out = append(out, fieldsOf(path+"{}", s.AdditionalProperties.Schema)...)
	}
	return out
}
