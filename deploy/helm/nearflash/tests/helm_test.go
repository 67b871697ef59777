package charttest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

const (
	chartDir  = ".."
	release   = "nearflash"
	namespace = "nearflash-system"
)

// TestMain fails at once, and once, when there is no helm: nothing here is skipped.
func TestMain(m *testing.M) {
	if _, err := helm(context.Background(), "version"); err != nil {
		fmt.Fprintln(os.Stderr, "the tests of the chart need helm:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// inlineTLS are the certificate values of a storage server, given where they belong in the
// values: of the right form, and good for nothing.
func inlineTLS(at string) []string {
	block := func(kind string) string {
		return fmt.Sprintf("-----BEGIN %s-----\nnot a real one\n-----END %s-----\n", kind, kind)
	}
	return []string{
		"--set-string", at + ".tls.ca=" + block("CERTIFICATE"),
		"--set-string", at + ".tls.cert=" + block("CERTIFICATE"),
		"--set-string", at + ".tls.key=" + block("PRIVATE "+"KEY"),
	}
}

// helm runs helm and returns its output, or an error that carries stderr.
func helm(ctx context.Context, args ...string) ([]byte, error) {
	binary := cmp.Or(os.Getenv("HELM"), "helm")
	command := exec.CommandContext(ctx, binary, args...)
	command.Env = append(os.Environ(), "GOGC=400") // hundreds of short processes, which would collect garbage for a fifth of their time
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w: set HELM to a helm 4 binary, as `make test-unit` does", err)
		}
		return nil, fmt.Errorf("helm %s: %w: %s", args[0], err, stderr.String())
	}
	return stdout.Bytes(), nil
}

// renderings are by their arguments: many tests look at the same one. That helm renders the same
// twice is what TestRenderTwice proves, without this.
var renderings sync.Map

// template renders the chart with more helm arguments. Files that they name do not change.
func template(ctx context.Context, args ...string) ([]*unstructured.Unstructured, error) {
	key := strings.Join(args, "\x00")
	if out, found := renderings.Load(key); found {
		return decode(out.([]byte))
	}
	out, err := helm(ctx, append([]string{"template", release, chartDir, "--namespace", namespace, "--kube-version", "1.36.0"}, args...)...)
	if err != nil {
		return nil, err
	}
	renderings.Store(key, out)
	return decode(out)
}

// decode splits a stream of YAML documents into objects, ordered by kind, namespace and name.
func decode(stream []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(stream), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(&object.Object); err != nil {
			if errors.Is(err, io.EOF) {
				break
			}
			return nil, fmt.Errorf("decode rendered chart: %w", err)
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
	slices.SortFunc(objects, func(a, b *unstructured.Unstructured) int {
		return cmp.Or(cmp.Compare(a.GetKind(), b.GetKind()), cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return objects, nil
}

func mustTemplate(t *testing.T, args ...string) []*unstructured.Unstructured {
	t.Helper()
	objects, err := template(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// valuesArgs are the helm arguments of one file of tests/values.
func valuesArgs(name string) []string {
	args := []string{"--values", "values/" + name + ".yaml"}
	switch name {
	case "target":
		args = append(args, inlineTLS("target")...)
	case "targets":
		args = append(args, inlineTLS("targets[1]")...)
	}
	return args
}
