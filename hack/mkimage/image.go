// Package mkimage makes container images without a registry, a daemon or a
// Dockerfile: layers from files, written as archives that `ctr images import`
// and `docker load` read. The same input always gives the same image digest.
package mkimage

import (
	"archive/tar"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// searchPath is the PATH of every image.
const searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// DefaultArch is the architecture of an image that states none.
const DefaultArch = "amd64"

// Spec says what an image is made of.
type Spec struct {
	// Name is the full reference, such as "example.org/program:v1".
	Name string
	// Arch is the architecture of the programs in it, as Go calls it; empty is [DefaultArch].
	Arch string
	// Entrypoint and Cmd are as in the OCI image configuration.
	Entrypoint []string
	Cmd        []string
	// User is "UID:GID"; empty is root.
	User string
	// Layers from the lowest to the highest.
	Layers []*Layer
}

// platform is that of the image: an engine with several to choose from goes by it.
func (s Spec) platform() v1.Platform {
	return v1.Platform{OS: "linux", Architecture: cmp.Or(s.Arch, DefaultArch)}
}

// Image builds the image in memory; layers are read when it is written.
func Image(spec Spec) (v1.Image, error) {
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	img, err := mutate.ConfigFile(img, &v1.ConfigFile{
		Architecture: spec.platform().Architecture,
		OS:           spec.platform().OS,
		Config:       v1.Config{Entrypoint: spec.Entrypoint, Cmd: spec.Cmd, User: spec.User, Env: []string{searchPath}},
		RootFS:       v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return nil, err
	}
	for _, layer := range spec.Layers {
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			return nil, err
		}
	}
	return img, nil
}

// WriteDockerArchive writes what `docker save` would: complete, for any engine.
func WriteDockerArchive(path string, spec Spec) error {
	img, err := Image(spec)
	if err != nil {
		return err
	}
	tag, err := name.NewTag(spec.Name, name.StrictValidation)
	if err != nil {
		return err
	}
	return writeFile(path, func(w io.Writer) error { return tarball.Write(tag, img, w) })
}

// WriteOCIArchive writes an OCI layout. Layers for which omit returns true are
// described but not included: the engine that imports the archive must have
// them already. nil omits nothing.
func WriteOCIArchive(path string, spec Spec, omit func(v1.Hash) bool) error {
	img, err := Image(spec)
	if err != nil {
		return err
	}
	return writeFile(path, func(w io.Writer) error { return writeLayout(w, spec, img, omit) })
}

func writeLayout(w io.Writer, spec Spec, img v1.Image, omit func(v1.Hash) bool) error {
	out := tar.NewWriter(w)
	if err := addBytes(out, "oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	index, err := layoutIndex(spec, img)
	if err != nil {
		return err
	}
	if err := addBytes(out, "index.json", index); err != nil {
		return err
	}
	if err := addImageBlobs(out, img); err != nil {
		return err
	}
	written := map[v1.Hash]bool{}
	for _, layer := range spec.Layers {
		if written[layer.digest] || (omit != nil && omit(layer.digest)) {
			continue
		}
		written[layer.digest] = true
		if err := addLayer(out, layer); err != nil {
			return err
		}
	}
	return out.Close()
}

// layoutIndex names the image the way containerd's importer looks for it.
func layoutIndex(spec Spec, img v1.Image) ([]byte, error) {
	platform := spec.platform()
	digest, err := img.Digest()
	if err != nil {
		return nil, err
	}
	size, err := img.Size()
	if err != nil {
		return nil, err
	}
	return json.Marshal(v1.IndexManifest{
		SchemaVersion: 2,
		MediaType:     types.OCIImageIndex,
		Manifests: []v1.Descriptor{{
			MediaType:   types.OCIManifestSchema1,
			Size:        size,
			Digest:      digest,
			Platform:    &platform,
			Annotations: map[string]string{"io.containerd.image.name": spec.Name},
		}},
	})
}

func addImageBlobs(out *tar.Writer, img v1.Image) error {
	digest, err := img.Digest()
	if err != nil {
		return err
	}
	raw, err := img.RawManifest()
	if err != nil {
		return err
	}
	if err := addBytes(out, blobPath(digest), raw); err != nil {
		return err
	}
	if digest, err = img.ConfigName(); err != nil {
		return err
	}
	if raw, err = img.RawConfigFile(); err != nil {
		return err
	}
	return addBytes(out, blobPath(digest), raw)
}

func addLayer(out *tar.Writer, layer *Layer) error {
	in, err := layer.open()
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	if err := addHeader(out, blobPath(layer.digest), layer.size); err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return fmt.Errorf("layer %s: %w", layer.digest, err)
	}
	return nil
}

func blobPath(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

func addBytes(out *tar.Writer, path string, data []byte) error {
	if err := addHeader(out, path, int64(len(data))); err != nil {
		return err
	}
	_, err := out.Write(data)
	return err
}

func addHeader(out *tar.Writer, path string, size int64) error {
	return out.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: path, Mode: 0o644, Size: size, ModTime: layerTime(),
	})
}

// writeFile writes a file so that it is there whole or not at all.
func writeFile(path string, write func(io.Writer) error) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".image-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	if err := write(tmp); err != nil {
		return errors.Join(err, tmp.Close())
	}
	if err := tmp.Chmod(0o644); err != nil {
		return errors.Join(err, tmp.Close())
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
