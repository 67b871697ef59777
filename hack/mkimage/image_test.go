package mkimage

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const testImage = "example.org/program:v1"

// testSpec is an image of a file layer and a program.
func testSpec(t *testing.T) Spec {
	t.Helper()
	var below bytes.Buffer
	if err := NormalizeTar(writeTar(t, time.Now(), []member{{'0', "./etc/conf", "x"}}), &below, nil); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	layer, program := filepath.Join(dir, "layer.tar"), filepath.Join(dir, "program")
	if err := os.WriteFile(layer, below.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	// Mode and time of the file must not show in the image.
	if err := os.WriteFile(program, []byte("#!/bin/true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(below.Bytes())
	base, err := FileLayer(layer, hex.EncodeToString(sum[:]))
	if err != nil {
		t.Fatal(err)
	}
	top, err := ProgramLayer(map[string]string{"/program": program, "/other": program})
	if err != nil {
		t.Fatal(err)
	}
	return Spec{Name: testImage, Entrypoint: []string{"/program"}, Layers: []*Layer{base, top}}
}

func TestImage(t *testing.T) {
	img, err := Image(testSpec(t))
	if err != nil {
		t.Fatal(err)
	}
	// Not the slow way, which takes for granted that layers are compressed.
	if err := validate.Image(img, validate.Fast); err != nil {
		t.Error(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.OS != "linux" || config.Architecture != "amd64" || !slices.Equal(config.Config.Entrypoint, []string{"/program"}) {
		t.Errorf("config %+v", config)
	}
}

// TestPlatform: an image says the same of its architecture in its configuration, by which
// an engine refuses a foreign one, and in the index, by which containerd chooses.
func TestPlatform(t *testing.T) {
	for arch, want := range map[string]string{"": "amd64", "amd64": "amd64", "arm64": "arm64"} {
		t.Run(want, func(t *testing.T) {
			spec := testSpec(t)
			spec.Arch = arch
			img, err := Image(spec)
			if err != nil {
				t.Fatal(err)
			}
			config, err := img.ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			if config.OS != "linux" || config.Architecture != want {
				t.Errorf("configuration of %s/%s, want linux/%s", config.OS, config.Architecture, want)
			}
			path := filepath.Join(t.TempDir(), "image.tar")
			if err := WriteOCIArchive(path, spec, nil); err != nil {
				t.Fatal(err)
			}
			var index v1.IndexManifest
			if err := json.Unmarshal(archiveFiles(t, path)["index.json"], &index); err != nil {
				t.Fatal(err)
			}
			if p := index.Manifests[0].Platform; p == nil || p.OS != "linux" || p.Architecture != want {
				t.Errorf("index names %v, want linux/%s", p, want)
			}
		})
	}
}

func TestProgramLayer(t *testing.T) {
	layer := testSpec(t).Layers[1]
	r, err := layer.Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	got, headers := readTar(t, data)
	want := []member{{'0', "other", "#!/bin/true\n"}, {'0', "program", "#!/bin/true\n"}}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, h := range headers {
		if h.Mode != 0o755 || h.Uid != 0 {
			t.Errorf("%s: mode %o owner %d, want root's executable", h.Name, h.Mode, h.Uid)
		}
	}
}

func TestFileLayerWrongDigest(t *testing.T) {
	if _, err := FileLayer(filepath.Join(t.TempDir(), "absent"), strings.Repeat("0", 64)); err == nil {
		t.Error("no error for an absent file")
	}
	path := filepath.Join(t.TempDir(), "layer")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := FileLayer(path, "short"); err == nil {
		t.Error("no error for what is no hash")
	}
}

func TestDockerArchive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := WriteDockerArchive(path, testSpec(t)); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(testImage, name.StrictValidation)
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(path, &tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(img); err != nil {
		t.Error(err)
	}
	if layers, err := img.Layers(); err != nil || len(layers) != 2 {
		t.Errorf("%d layers, %v, want 2", len(layers), err)
	}
}

func TestOCIArchive(t *testing.T) {
	spec := testSpec(t)
	omitBase := func(h v1.Hash) bool { return h == spec.Layers[0].digest }
	cases := map[string]struct {
		omit      func(v1.Hash) bool
		wantBlobs int
	}{
		"complete":       {nil, 4}, // manifest, config, two layers
		"without a base": {omitBase, 3},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "image.tar")
			if err := WriteOCIArchive(path, spec, tc.omit); err != nil {
				t.Fatal(err)
			}
			files := archiveFiles(t, path)
			blobs := 0
			for file, data := range files {
				digest, ok := strings.CutPrefix(file, "blobs/sha256/")
				if !ok {
					continue
				}
				blobs++
				if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != digest {
					t.Errorf("%s has other content than its name says", file)
				}
			}
			if blobs != tc.wantBlobs {
				t.Errorf("%d blobs, want %d", blobs, tc.wantBlobs)
			}
			checkIndex(t, files)
		})
	}
}

// checkIndex checks that the index leads to a manifest that lists all layers.
func checkIndex(t *testing.T, files map[string][]byte) {
	t.Helper()
	var index v1.IndexManifest
	if err := json.Unmarshal(files["index.json"], &index); err != nil {
		t.Fatal(err)
	}
	if len(index.Manifests) != 1 || index.Manifests[0].Annotations["io.containerd.image.name"] != testImage {
		t.Fatalf("index %+v does not name the image", index)
	}
	manifest, err := v1.ParseManifest(bytes.NewReader(files[blobPath(index.Manifests[0].Digest)]))
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Layers) != 2 {
		t.Errorf("%d layers, want 2", len(manifest.Layers))
	}
}

func archiveFiles(t *testing.T, path string) map[string][]byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	files := map[string][]byte{}
	r := tar.NewReader(f)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// TestArchivesDeterministic: the same input gives the same bytes.
func TestArchivesDeterministic(t *testing.T) {
	var archives [2][]byte
	for i := range archives {
		path := filepath.Join(t.TempDir(), "image.tar")
		if err := WriteOCIArchive(path, testSpec(t), nil); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		archives[i] = data
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two archives of the same image differ")
	}
}

// TestWrongLayerLeavesNoArchive: a layer whose file has grown since is noticed,
// and no archive is left.
func TestWrongLayerLeavesNoArchive(t *testing.T) {
	spec := testSpec(t)
	file, err := spec.Layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	path := file.(*os.File).Name()
	_ = file.Close()
	if err := os.Truncate(path, spec.Layers[0].size+512); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := WriteOCIArchive(filepath.Join(dir, "image.tar"), spec, nil); err == nil {
		t.Error("no error for a layer that is longer than recorded")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}
