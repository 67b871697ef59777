package artifact

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
)

const manifestName = "manifest.json"

// errNoManifest tells an artifact that was never built from a damaged one.
var errNoManifest = errors.New("no manifest")

// manifest lists every file of an artifact.
type manifest struct {
	Files []manifestFile `json:"files"`
}

// manifestFile is one regular file. Size and time are what is compared on every
// use; the hash is compared when the time differs.
type manifestFile struct {
	Path    string      `json:"path"`
	Size    int64       `json:"size"`
	Mode    fs.FileMode `json:"mode"`
	ModTime int64       `json:"modTimeNs"`
	SHA256  string      `json:"sha256"`
}

// writeManifest hashes all files below dir and writes the list beside them.
func writeManifest(dir string) error {
	var m manifest
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, err := describeFile(dir, path)
		if err != nil {
			return err
		}
		m.Files = append(m.Files, f)
		return nil
	})
	if err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	if len(m.Files) == 0 {
		return errors.New("write manifest: the build left no files")
	}
	return saveManifest(dir, m)
}

func describeFile(dir, path string) (manifestFile, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return manifestFile{}, err
	}
	if !info.Mode().IsRegular() {
		return manifestFile{}, fmt.Errorf("%s is not a regular file", path)
	}
	sum, err := hashFile(path)
	if err != nil {
		return manifestFile{}, err
	}
	rel, err := filepath.Rel(dir, path)
	if err != nil {
		return manifestFile{}, err
	}
	return manifestFile{
		Path: rel, Size: info.Size(), Mode: info.Mode(), ModTime: info.ModTime().UnixNano(), SHA256: sum,
	}, nil
}

// saveManifest replaces the manifest in one step.
func saveManifest(dir string, m manifest) error {
	sort.Slice(m.Files, func(i, j int) bool { return m.Files[i].Path < m.Files[j].Path })
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, ".manifest-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	if _, err := tmp.Write(data); err != nil {
		return errors.Join(err, tmp.Close())
	}
	if err := tmp.Chmod(0o644); err != nil {
		return errors.Join(err, tmp.Close())
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), filepath.Join(dir, manifestName))
}

// verifyDir checks an artifact against its manifest. Files are gigabytes, so the
// content is read only when the time is not the recorded one: that finds absent,
// truncated, replaced and edited files at the price of one stat each. It does not
// find what leaves size and time as they were, such as a decaying disk; with
// content set every file is read. A file that was only touched is hashed once
// and its new time recorded.
func verifyDir(dir string, content bool) error {
	data, err := os.ReadFile(filepath.Join(dir, manifestName))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", dir, errNoManifest)
	}
	if err != nil {
		return err
	}
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return fmt.Errorf("manifest of %s: %w", dir, err)
	}
	touched := false
	for i := range m.Files {
		changed, err := verifyFile(dir, &m.Files[i], content)
		if err != nil {
			return err
		}
		touched = touched || changed
	}
	if touched {
		// Losing this update costs another hash next time, nothing else.
		_ = saveManifest(dir, m)
	}
	return nil
}

// verifyFile checks one file and says whether its recorded time was updated.
func verifyFile(dir string, want *manifestFile, content bool) (touched bool, err error) {
	path := filepath.Join(dir, want.Path)
	info, err := os.Lstat(path)
	if err != nil {
		return false, err
	}
	if info.Size() != want.Size || info.Mode() != want.Mode {
		return false, fmt.Errorf("%s: size %d mode %v, recorded %d %v",
			path, info.Size(), info.Mode(), want.Size, want.Mode)
	}
	sameTime := info.ModTime().UnixNano() == want.ModTime
	if sameTime && !content {
		return false, nil
	}
	sum, err := hashFile(path)
	if err != nil {
		return false, err
	}
	if sum != want.SHA256 {
		return false, fmt.Errorf("%s: sha256 %s, recorded %s", path, sum, want.SHA256)
	}
	want.ModTime = info.ModTime().UnixNano()
	return !sameTime, nil
}

func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
