package mkimage

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Layer is an uncompressed layer. Its digest and its DiffID are the same, which
// lets an archive leave it out when the other side is known to have it.
type Layer struct {
	digest v1.Hash
	size   int64
	open   func() (io.ReadCloser, error)
}

var _ v1.Layer = (*Layer)(nil)

// FileLayer is a layer that lies in a file. digest is the file's SHA-256 in hex,
// known to the caller: a layer of hundreds of megabytes is not hashed again for
// each image made of it.
func FileLayer(path, digest string) (*Layer, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	hash, err := v1.NewHash("sha256:" + digest)
	if err != nil {
		return nil, fmt.Errorf("layer %s: %w", path, err)
	}
	open := func() (io.ReadCloser, error) { return os.Open(path) }
	return &Layer{digest: hash, size: info.Size(), open: open}, nil
}

// LinkLayer is a layer of symbolic links and of directories that everybody may write
// to: links maps the path in the image to what it points to.
func LinkLayer(links map[string]string, dirs ...string) (*Layer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, dir := range dirs {
		header := &tar.Header{Typeflag: tar.TypeDir, Name: cleanName(dir) + "/", Mode: 0o1777, ModTime: layerTime()}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(links)) {
		header := &tar.Header{
			Typeflag: tar.TypeSymlink, Name: cleanName(name), Linkname: links[name], Mode: 0o777, ModTime: layerTime(),
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
	}
	return memoryLayer(w, &buf)
}

// ProgramLayer is a layer with files on the top of the file system, all
// executable and owned by root. files maps the path in the image to the path on
// the host.
func ProgramLayer(files map[string]string) (*Layer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		data, err := os.ReadFile(files[name])
		if err != nil {
			return nil, err
		}
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: cleanName(name), Mode: 0o755, Size: int64(len(data)), ModTime: layerTime(),
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
	}
	return memoryLayer(w, &buf)
}

// memoryLayer ends a layer that has been written into a buffer.
func memoryLayer(w *tar.Writer, buf *bytes.Buffer) (*Layer, error) {
	if err := w.Close(); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(buf.Bytes())
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil }
	hash := v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
	return &Layer{digest: hash, size: int64(buf.Len()), open: open}, nil
}

// Digest implements v1.Layer.
func (l *Layer) Digest() (v1.Hash, error) { return l.digest, nil }

// DiffID implements v1.Layer.
func (l *Layer) DiffID() (v1.Hash, error) { return l.digest, nil }

// Compressed implements v1.Layer; nothing is compressed.
func (l *Layer) Compressed() (io.ReadCloser, error) { return l.open() }

// Uncompressed implements v1.Layer.
func (l *Layer) Uncompressed() (io.ReadCloser, error) { return l.open() }

// Size implements v1.Layer, in bytes.
func (l *Layer) Size() (int64, error) { return l.size, nil }

// MediaType implements v1.Layer.
func (l *Layer) MediaType() (types.MediaType, error) { return types.OCIUncompressedLayer, nil }
