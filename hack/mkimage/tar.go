package mkimage

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"sort"
	"strings"
	"time"
)

// layerTime is the modification time of everything in a layer: a fixed one, so
// that the same content always has the same digest.
func layerTime() time.Time { return time.Unix(0, 0) }

// tarEntry is one member of an archive and where its data lies.
type tarEntry struct {
	header *tar.Header
	offset int64
}

// NormalizeTar rewrites a root file system's archive as an image layer: members
// sorted by name, one fixed time, no user names, and nothing for which skip
// returns true. The same tree always gives the same bytes. skip gets clean
// names without a leading slash; nil skips nothing.
//
// Of hard links the first in the new order carries the data, whichever did
// before.
func NormalizeTar(src *os.File, dst io.Writer, skip func(name string) bool) error {
	entries, err := indexTar(src, skip)
	if err != nil {
		return fmt.Errorf("read %s: %w", src.Name(), err)
	}
	sort.SliceStable(entries, func(i, j int) bool { return entries[i].header.Name < entries[j].header.Name })
	if err := reorderLinks(entries); err != nil {
		return err
	}
	w := tar.NewWriter(dst)
	for _, e := range entries {
		if err := w.WriteHeader(e.header); err != nil {
			return fmt.Errorf("write %s: %w", e.header.Name, err)
		}
		if e.header.Typeflag != tar.TypeReg {
			continue
		}
		if _, err := io.Copy(w, io.NewSectionReader(src, e.offset, e.header.Size)); err != nil {
			return fmt.Errorf("write %s: %w", e.header.Name, err)
		}
	}
	return w.Close()
}

func indexTar(src *os.File, skip func(string) bool) ([]tarEntry, error) {
	var entries []tarEntry
	r := tar.NewReader(src)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		if err != nil {
			return nil, err
		}
		name := cleanName(h.Name)
		if name == "" || (skip != nil && skip(name)) {
			continue
		}
		if h.Typeflag == tar.TypeGNUSparse {
			return nil, fmt.Errorf("%s: sparse members are not supported", name)
		}
		// The tar reader does not read ahead, so here the data begins.
		offset, err := src.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, err
		}
		entries = append(entries, tarEntry{header: layerHeader(h, name), offset: offset})
	}
}

// cleanName turns "./usr/bin/" into "usr/bin" and the root itself into "".
func cleanName(name string) string {
	return strings.TrimPrefix(path.Clean("/"+name), "/")
}

// layerHeader keeps what matters in a container: type, owner, mode, size, link,
// device numbers and extended attributes.
func layerHeader(h *tar.Header, name string) *tar.Header {
	out := &tar.Header{
		Typeflag: h.Typeflag, Name: name, Mode: h.Mode, Uid: h.Uid, Gid: h.Gid,
		ModTime: layerTime(), Devmajor: h.Devmajor, Devminor: h.Devminor, PAXRecords: xattrs(h),
	}
	switch h.Typeflag {
	case tar.TypeReg:
		out.Size = h.Size
	case tar.TypeDir:
		out.Name += "/"
	case tar.TypeLink:
		out.Linkname = cleanName(h.Linkname)
	case tar.TypeSymlink:
		out.Linkname = h.Linkname
	}
	return out
}

func xattrs(h *tar.Header) map[string]string {
	var records map[string]string
	for key, value := range h.PAXRecords {
		if strings.HasPrefix(key, "SCHILY.xattr.") {
			if records == nil {
				records = map[string]string{}
			}
			records[key] = value
		}
	}
	return records
}

// reorderLinks makes every hard link point to a member that comes before it.
func reorderLinks(entries []tarEntry) error {
	byName := make(map[string]int, len(entries))
	for i, e := range entries {
		byName[e.header.Name] = i
	}
	for i := range entries {
		link := entries[i].header
		if link.Typeflag != tar.TypeLink {
			continue
		}
		target, ok := byName[link.Linkname]
		if !ok {
			return fmt.Errorf("%s is a link to %s, which is not in the archive", link.Name, link.Linkname)
		}
		if target < i {
			continue
		}
		// Swap the roles, and let the other links to the old target follow.
		old := entries[target].header
		oldName, newName := old.Name, link.Name
		entries[i], entries[target] = entries[target], entries[i]
		entries[i].header.Name, entries[target].header.Name = newName, oldName
		entries[target].header.Linkname = newName
		for k := range entries {
			h := entries[k].header
			if h.Typeflag == tar.TypeLink && h.Linkname == oldName {
				h.Linkname = newName
			}
		}
	}
	return nil
}
