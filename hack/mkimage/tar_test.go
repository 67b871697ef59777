package mkimage

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// member is a tar member in a short form.
type member struct {
	kind byte
	name string
	// data is the content of a file, the target of a link.
	data string
}

func writeTar(t *testing.T, when time.Time, members []member) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "in.tar"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	w := tar.NewWriter(f)
	for _, m := range members {
		h := &tar.Header{
			Typeflag: m.kind, Name: m.name, Mode: 0o4755, Uid: 7, Gid: 8, Uname: "somebody", ModTime: when,
			PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x02", "comment": "x"},
		}
		if m.kind == tar.TypeReg {
			h.Size = int64(len(m.data))
		} else {
			h.Linkname = m.data
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if m.kind != tar.TypeReg {
			continue
		}
		if _, err := io.WriteString(w, m.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	return f
}

func readTar(t *testing.T, data []byte) ([]member, []*tar.Header) {
	t.Helper()
	var members []member
	var headers []*tar.Header
	r := tar.NewReader(bytes.NewReader(data))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return members, headers
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		m := member{h.Typeflag, h.Name, string(content)}
		if h.Typeflag != tar.TypeReg {
			m.data = h.Linkname
		}
		members, headers = append(members, m), append(headers, h)
	}
}

func TestNormalizeTar(t *testing.T) {
	cases := map[string]struct {
		in      []member
		skip    func(string) bool
		want    []member
		wantErr string
	}{
		"sorted, names cleaned, root dropped": {
			in: []member{{'5', "./", ""}, {'0', "./usr/b", "B"}, {'5', "./usr/", ""}, {'0', "./usr/a", "A"}},
			want: []member{
				{'5', "usr/", ""}, {'0', "usr/a", "A"}, {'0', "usr/b", "B"},
			},
		},
		"skipped": {
			in:   []member{{'0', "./var/log/x", "log"}, {'0', "./etc/x", "conf"}},
			skip: func(name string) bool { return strings.HasPrefix(name, "var/log/") },
			want: []member{{'0', "etc/x", "conf"}},
		},
		"symbolic link kept as it is": {
			in:   []member{{'2', "./bin", "../usr/bin"}},
			want: []member{{'2', "bin", "../usr/bin"}},
		},
		"hard link after its target": {
			in:   []member{{'0', "./a", "data"}, {'1', "./b", "./a"}},
			want: []member{{'0', "a", "data"}, {'1', "b", "a"}},
		},
		"hard links before their target": {
			in:   []member{{'0', "./z", "data"}, {'1', "./b", "./z"}, {'1', "./c", "./z"}},
			want: []member{{'0', "b", "data"}, {'1', "c", "b"}, {'1', "z", "b"}},
		},
		"hard link to what is skipped": {
			in:      []member{{'0', "./a", "data"}, {'1', "./b", "./a"}},
			skip:    func(name string) bool { return name == "a" },
			wantErr: "b is a link to a",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			err := NormalizeTar(writeTar(t, time.Now(), tc.in), &out, tc.skip)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("got %v, want an error with %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got, _ := readTar(t, out.Bytes()); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestNormalizeTarHeader(t *testing.T) {
	var out bytes.Buffer
	if err := NormalizeTar(writeTar(t, time.Now(), []member{{'0', "./a", "A"}}), &out, nil); err != nil {
		t.Fatal(err)
	}
	_, headers := readTar(t, out.Bytes())
	h := headers[0]
	if h.Mode != 0o4755 || h.Uid != 7 || h.Gid != 8 || h.Uname != "" || !h.ModTime.Equal(layerTime()) {
		t.Errorf("mode %o owner %d:%d (%q) time %v", h.Mode, h.Uid, h.Gid, h.Uname, h.ModTime)
	}
	if got := h.PAXRecords["SCHILY.xattr.security.capability"]; got != "\x01\x00\x02" {
		t.Errorf("capability %q is not what it was", got)
	}
	if _, ok := h.PAXRecords["comment"]; ok {
		t.Error("a record that is no extended attribute was kept")
	}
}

// TestNormalizeTarDeterministic: neither order nor time of the input matters.
func TestNormalizeTarDeterministic(t *testing.T) {
	members := []member{{'0', "./z", "data"}, {'1', "./b", "./z"}, {'5', "./dir/", ""}, {'0', "./dir/f", "x"}}
	reversed := []member{{'0', "./b", "data"}, {'0', "./dir/f", "x"}, {'5', "./dir/", ""}, {'1', "./z", "./b"}}
	var first, second bytes.Buffer
	if err := NormalizeTar(writeTar(t, time.Now(), members), &first, nil); err != nil {
		t.Fatal(err)
	}
	if err := NormalizeTar(writeTar(t, time.Unix(5, 0), reversed), &second, nil); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		a, _ := readTar(t, first.Bytes())
		b, _ := readTar(t, second.Bytes())
		t.Errorf("the same tree gives\n%q and\n%q", a, b)
	}
}
