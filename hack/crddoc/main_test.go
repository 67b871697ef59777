package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const definition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: things.example.com
spec:
  group: example.com
  names: {kind: Thing, plural: things, singular: thing, listKind: ThingList, shortNames: [th]}
  scope: Cluster
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns:
    - {name: Colour, type: string, jsonPath: .spec.colour}
    - {name: Parts, type: string, priority: 1, jsonPath: '.status.parts[*].name'}
    selectableFields:
    - jsonPath: .spec.colour
    schema:
      openAPIV3Schema:
        description: Thing is a thing.
        type: object
        x-kubernetes-validations:
        - {rule: self.metadata.name == self.mark, message: it has another mark}
        properties:
          mark: {description: mark of it., type: string, maxLength: 5}
          metadata: {type: object}
          spec:
            description: spec is asked for.
            type: object
            required: [colour]
            x-kubernetes-validations:
            - {rule: self.colour != 'a' || self.size > 0, message: size is missing}
            properties:
              colour: {description: "colour\nof it.", type: string, enum: [a, b], default: a}
              size: {description: size in bytes., type: integer, minimum: 0, maximum: 100, multipleOf: 5}
              words:
                description: words of it.
                type: array
                maxItems: 8
                items: {type: string, minLength: 1, maxLength: 9, pattern: ^a|b$}
          status:
            description: status is observed.
            type: object
            properties:
              conditions: {description: conditions say how., type: array, maxItems: 8, items: {type: object, properties: {type: {type: string}}}}
              free: {description: free space., x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}], pattern: x}
              parts:
                description: parts of it.
                type: array
                minItems: 1
                maxItems: 8
                x-kubernetes-list-map-keys: [name]
                x-kubernetes-list-type: map
                items:
                  type: object
                  required: [name]
                  properties:
                    name: {description: name of the part., type: string, maxLength: 63}
                    time: {description: time of it., type: string, format: date-time}
`

const want = head + `
## Thing

Thing is a thing.

| | |
|---|---|
| API | ` + "`example.com/v1`, kind `Thing`" + ` |
| with kubectl | ` + "`things`, `th`" + ` |
| scope | Cluster |
| field selector | ` + "`spec.colour`" + ` |

| column of ` + "`kubectl get`" + ` | from | shown |
|---|---|---|
| COLOUR | ` + "`spec.colour`" + ` | always |
| PARTS | ` + "`status.parts[*].name`" + ` | with ` + "`-o wide`" + ` |

### Fields of a Thing

| field | type | accepted | meaning |
|---|---|---|---|
| ` + "`mark`" + ` | string | up to 5 characters | mark of it. |

### Spec of a Thing

spec is asked for.

| field | type | accepted | meaning |
|---|---|---|---|
| ` + "`spec.colour`" + ` | string | required; ` + "`a`, `b`; default `a`" + ` | colour of it. |
| ` + "`spec.size`" + ` | integer | 0 to 100; a multiple of 5 | size in bytes. |
| ` + "`spec.words`" + ` | list of string | up to 8 entries; each 1 to 9 characters; matching ` + "`^a\\|b$`" + ` | words of it. |

### Status of a Thing

status is observed.

| field | type | accepted | meaning |
|---|---|---|---|
| ` + "`status.conditions`" + ` | list of object | up to 8 entries | conditions say how. |
| ` + "`status.free`" + ` | quantity |  | free space. |
| ` + "`status.parts`" + ` | list of object | 1 to 8 entries; one for each ` + "`name`" + ` | parts of it. |
| ` + "`status.parts[].name`" + ` | string | required; up to 63 characters | name of the part. |
| ` + "`status.parts[].time`" + ` | time |  | time of it. |

### Rules of a Thing

| of | rule (CEL) | message when it is broken |
|---|---|---|
| the object | ` + "`self.metadata.name == self.mark`" + ` | it has another mark |
| ` + "`spec`" + ` | ` + "`self.colour != 'a' \\|\\| self.size > 0`" + ` | size is missing |
`

func TestRun(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "thing.yaml"), []byte(definition), 0o600); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := run(dir, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("document (-want +got):\n%s", diff)
	}
}

func TestRunWithoutDefinitions(t *testing.T) {
	if err := run(t.TempDir(), &bytes.Buffer{}); err == nil {
		t.Error("a folder without definitions is no error")
	}
}
