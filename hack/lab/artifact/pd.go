package artifact

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	pdProgramName = "pd-csi-driver"
	pdModule      = "hack/tools/pd"
)

// pdProgram is Google's driver with the lab's cloud below it. It is a program of this
// checkout, of a module of its own: it needs most of that cloud's client library.
func pdProgram() goProgram {
	return goProgram{
		name: pdProgramName, pkg: ".", dir: pdModule, module: "sigs.k8s.io/gcp-compute-persistent-disk-csi-driver",
		stamp: func(v string) []string { return []string{"main.version=" + v} },
	}
}

// planPD plans the driver and the sidecars that go with it. There is no image: the
// nodes run the program over the host tools that they have. Unpacking it there would
// take each half a minute.
func (b *builder) planPD(p *plan) error {
	if err := b.planSidecars(p); err != nil {
		return err
	}
	r, err := b.programs("pd", []goProgram{pdProgram()})
	if err != nil {
		return err
	}
	sources, err := b.sources(pdModule)
	if err != nil {
		return err
	}
	r.inputs = append(r.inputs, sources...)
	p.pd = newTask(r)
	p.addTask(&p.goLane, p.pd, b.store)
	return nil
}

// sources are the contents of a package's files, but for tests.
func (b *builder) sources(dir string) ([]string, error) {
	paths, err := filepath.Glob(filepath.Join(b.checkout, dir, "*.go"))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, path := range slices.Sorted(slices.Values(paths)) {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		out = append(out, string(data))
	}
	return out, nil
}
