package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/package-url/packageurl-go"
	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdx/v2/v2_3"
	"github.com/spdx/tools-golang/spdxlib"
)

func TestDebianPackages(t *testing.T) {
	const status = "Package: lvm2\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2:2.03.31-2+b1\nDescription: tools\n more: text\n\n" +
		"Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n\nPackage: kmod\nStatus: install ok installed\nArchitecture: amd64\nVersion: 34\n"
	got, err := debianPackages(strings.NewReader(status))
	want := []component{
		{"lvm2", "2:2.03.31-2+b1", "pkg:deb/debian/lvm2@2:2.03.31-2%2Bb1?arch=amd64&distro=forky"},
		{"kmod", "34", "pkg:deb/debian/kmod@34?arch=amd64&distro=forky"},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if got, err := debianPackages(strings.NewReader("Status: install ok installed\nVersion: 1\n")); err == nil {
		t.Errorf("a package without a name passes as %v", got)
	}
}

// TestGoModule: a package URL has Go's module paths in lower case, and no plus sign.
func TestGoModule(t *testing.T) {
	got, err := goModule("github.com/Masterminds/diskv/v3", "v3.0.1+incompatible")
	want := component{"github.com/Masterminds/diskv/v3", "v3.0.1+incompatible", "pkg:golang/github.com/masterminds/diskv/v3@v3.0.1%2Bincompatible"}
	if err != nil || got != want {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

// here is the platform of this test's own program.
var here = platform{runtime.GOOS, runtime.GOARCH}

// testImage writes an image, which says that it is of an architecture, with a list of packages
// and this test's own program.
func testImage(t *testing.T, arch string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	var layer bytes.Buffer
	out := tar.NewWriter(&layer)
	for name, text := range map[string][]byte{
		"var/lib/dpkg/status": []byte("Package: kmod\nStatus: install ok installed\nArchitecture: amd64\nVersion: 34\n"),
		"program":             program,
	} {
		if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Write(text); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	base, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: here.os, Architecture: arch, RootFS: v1.RootFS{Type: "layers"}})
	if err != nil {
		t.Fatal(err)
	}
	image, err := mutate.AppendLayers(base, l)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "program.tar")
	if err := tarball.WriteToFile(path, nil, image); err != nil {
		t.Fatal(err)
	}
	return path
}

// readBill reads a bill as others do, and wants what SPDX 2.3 wants of it.
func readBill(t *testing.T, text []byte) *v2_3.Document {
	t.Helper()
	var doc v2_3.Document
	if err := json.ReadInto(bytes.NewReader(text), &doc); err != nil {
		t.Fatal(err)
	}
	if err := spdxlib.ValidateDocument(&doc); err != nil {
		t.Error(err)
	}
	if doc.SPDXVersion != "SPDX-2.3" || doc.DataLicense != "CC0-1.0" || doc.SPDXIdentifier != "DOCUMENT" || doc.DocumentName == "" ||
		!regexp.MustCompile(`^https://[^#]+/[0-9a-f]{32}$`).MatchString(doc.DocumentNamespace) {
		t.Errorf("the head of the document is %+v", doc)
	}
	if doc.CreationInfo.Created != "1970-01-01T00:16:40Z" || len(doc.CreationInfo.Creators) != 1 {
		t.Errorf("made %+v", doc.CreationInfo)
	}
	ids := map[common.ElementID]bool{doc.SPDXIdentifier: true}
	for _, p := range doc.Packages {
		if ids[p.PackageSPDXIdentifier] || !regexp.MustCompile(`^[a-zA-Z0-9.-]+$`).MatchString(string(p.PackageSPDXIdentifier)) {
			t.Errorf("identifier %q is there twice, or is none", p.PackageSPDXIdentifier)
		}
		ids[p.PackageSPDXIdentifier] = true
		// Left out means true, and then the files would have to be listed.
		if p.PackageName == "" || p.PackageVersion == "" || p.PackageDownloadLocation != "NOASSERTION" || !p.IsFilesAnalyzedTagPresent || p.FilesAnalyzed {
			t.Errorf("package %+v", p)
		}
		if p.PackageLicenseConcluded != "NOASSERTION" || p.PackageLicenseDeclared != "NOASSERTION" && !slices.Contains(licenceKnown, p.PackageLicenseDeclared) {
			t.Errorf("%s: licences %q, %q", p.PackageName, p.PackageLicenseConcluded, p.PackageLicenseDeclared)
		}
		for _, ref := range p.PackageExternalReferences {
			purl, err := packageurl.FromString(ref.Locator)
			if err != nil || purl.ToString() != ref.Locator || purl.Version != p.PackageVersion || ref.Category != "PACKAGE-MANAGER" || ref.RefType != "purl" {
				t.Errorf("%s %s has the reference %+v, %v", p.PackageName, p.PackageVersion, ref, err)
			}
		}
	}
	contained := map[common.ElementID]bool{doc.SPDXIdentifier: true}
	for _, rel := range doc.Relationships {
		contained[rel.RefB.ElementRefID] = true
	}
	for id := range ids {
		if !contained[id] {
			t.Errorf("%s is part of nothing", id)
		}
	}
	return &doc
}

// TestWrongPlatform: neither an image nor a program is released for a platform that it is
// not of.
func TestWrongPlatform(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	other := platform{here.os, "riscv64"}
	var b bill
	if err := b.addProgram("program", other, self); !errors.Is(err, errPlatform) {
		t.Errorf("a program of another platform: %v", err)
	}
	if err := b.addImage("program", here, testImage(t, other.arch)); !errors.Is(err, errPlatform) {
		t.Errorf("an image that says another platform: %v", err)
	}
	if err := b.addImage("program", other, testImage(t, other.arch)); !errors.Is(err, errPlatform) {
		t.Errorf("an image with a program of another platform: %v", err)
	}
	if len(b.parts) != 0 {
		t.Errorf("the bill has %v", b.parts)
	}
}

// TestBill makes the bill of an image and of a program, and the checksums, and reads
// them as others do.
func TestBill(t *testing.T) {
	r := release{root: root, out: t.TempDir(), version: "v1.2.3", made: time.Unix(1000, 0)}
	if err := r.bill.addImage("program", here, testImage(t, here.arch)); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.bill.addProgram("program_v1.2.3_linux_amd64", here, self); err != nil {
		t.Fatal(err)
	}
	if err := r.bill.addImage("other", here, testImage(t, here.arch)); err == nil {
		t.Error("an image without its program passes")
	}
	text := writtenBill(t, &r)
	doc := readBill(t, text)
	licences := map[string][]string{}
	for _, p := range doc.Packages {
		licences[p.PackageName] = append(licences[p.PackageName], p.PackageLicenseDeclared)
	}
	for name, want := range map[string]string{
		"kmod": "NOASSERTION", "stdlib": "BSD-3-Clause", "github.com/google/go-containerregistry": "Apache-2.0", "program (image, " + here.os + "/" + here.arch + ")": "NOASSERTION",
		"program_v1.2.3_linux_amd64": declared(root),
	} {
		if !slices.Equal(licences[name], []string{want}) {
			t.Errorf("%s is there with the licences %q, want it once with %s", name, licences[name], want)
		}
	}
	if again := writtenBill(t, &r); !bytes.Equal(text, again) {
		t.Error("the same release gives two bills")
	}
	if err := r.checksums(t.Context()); err != nil {
		t.Fatal(err)
	}
	check := exec.Command("sha256sum", "--check", "--strict", sumsFile)
	check.Dir = r.out
	if out, err := check.CombinedOutput(); err != nil || string(out) != "nearflash_v1.2.3.spdx.json: OK\n" {
		t.Errorf("sha256sum: %v: %s", err, out)
	}
}

func writtenBill(t *testing.T, r *release) []byte {
	t.Helper()
	if err := r.writeBill(t.Context()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(r.out, "nearflash_"+r.version+".spdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestBillOfLookalikes: what an identifier cannot tell apart are two packages all the
// same, and another content has another namespace.
func TestBillOfLookalikes(t *testing.T) {
	r := release{root: root, out: t.TempDir(), version: "v1.2.3", made: time.Unix(1000, 0)}
	var namespaces []string
	for _, name := range []string{"libstdc++6", "libstdc-6"} {
		c, err := debianPackage(name, "1", "amd64")
		if err != nil {
			t.Fatal(err)
		}
		r.bill.parts = append(r.bill.parts, part{name: "of " + name, kind: "CONTAINER", contains: []component{c}})
		namespaces = append(namespaces, readBill(t, writtenBill(t, &r)).DocumentNamespace)
	}
	if namespaces[0] == namespaces[1] {
		t.Errorf("two bills have the namespace %s", namespaces[0])
	}
	if got := len(readBill(t, writtenBill(t, &r)).Packages); got != 4 {
		t.Errorf("%d packages, want 4", got)
	}
}
