package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdx/v2/v2_3"
)

const (
	spdxRoot    = common.ElementID("DOCUMENT")
	noAssertion = "NOASSERTION"
)

var notInID = regexp.MustCompile(`[^a-zA-Z0-9.-]+`)

// spdxID is unique for what: two names may differ in what an identifier cannot have.
func spdxID(kind, name, what string) common.ElementID {
	sum := sha256.Sum256([]byte(what))
	return common.ElementID(kind + "-" + notInID.ReplaceAllString(name, "-") + "-" + hex.EncodeToString(sum[:6]))
}

// spdx writes the bill down. Every component is there once, whatever contains it.
func (r *release) spdx(from sources) *v2_3.Document {
	doc := &v2_3.Document{
		SPDXVersion: v2_3.Version, DataLicense: v2_3.DataLicense, SPDXIdentifier: spdxRoot, DocumentName: "nearflash-" + r.version,
		CreationInfo: &v2_3.CreationInfo{
			Created: r.made.UTC().Format(time.RFC3339), Creators: []common.Creator{{CreatorType: "Tool", Creator: "nearflash-release-" + r.version}},
		},
	}
	add := func(id common.ElementID, name, version, purpose, licence string) *v2_3.Package {
		p := &v2_3.Package{
			PackageSPDXIdentifier: id, PackageName: name, PackageVersion: version, PrimaryPackagePurpose: purpose, PackageDownloadLocation: noAssertion,
			PackageLicenseDeclared: licence, PackageLicenseConcluded: noAssertion,
		}
		doc.Packages = append(doc.Packages, p)
		return p
	}
	relate := func(a common.ElementID, how string, b common.ElementID) {
		doc.Relationships = append(doc.Relationships, &v2_3.Relationship{
			RefA: common.DocElementID{ElementRefID: a}, Relationship: how, RefB: common.DocElementID{ElementRefID: b},
		})
	}
	known := map[string]bool{}
	for _, p := range r.bill.parts {
		id := spdxID("Part", p.name, p.name)
		add(id, p.name, r.version, p.kind, from.ofPart(p))
		relate(spdxRoot, common.TypeRelationshipDescribe, id)
		for _, c := range p.contains {
			below := spdxID("Package", c.name, c.purl)
			relate(id, common.TypeRelationshipContains, below)
			if known[c.purl] {
				continue
			}
			known[c.purl] = true
			add(below, c.name, c.version, "LIBRARY", from.of(c)).PackageExternalReferences = []*v2_3.PackageExternalReference{
				{Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: c.purl},
			}
		}
	}
	return doc
}

// writeBill writes the bill of materials. The same content always gives the same file.
func (r *release) writeBill(ctx context.Context) error {
	from, err := findSources(ctx, r.root)
	if err != nil {
		return err
	}
	doc := r.spdx(from)
	var text bytes.Buffer
	if err := json.Write(doc, &text); err != nil {
		return err
	}
	sum := sha256.Sum256(text.Bytes())
	doc.DocumentNamespace = fmt.Sprintf("https://github.com/nearflash/nearflash/sbom/%s/%x", r.version, sum[:16])
	text.Reset()
	if err := json.Write(doc, &text, json.Indent("  "), json.EscapeHTML(false)); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, "nearflash_"+r.version+".spdx.json"), text.Bytes(), 0o644)
}
