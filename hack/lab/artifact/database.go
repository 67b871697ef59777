package artifact

import (
	"context"
	"path/filepath"

	"github.com/nearflash/nearflash/hack/mkimage"
)

const (
	// databaseImage has PostgreSQL and pgbench. It is not on the nodes of a lab: who measures a
	// database loads it.
	databaseImage   = imageRegistry + "database:1"
	databaseArchive = "database.tar"
	// databaseRevision goes up when the form of the image changes.
	databaseRevision = "database 1"
)

// databaseTree is Debian's own PostgreSQL. Its package makes an empty database, which has no use here,
// and calls everything through scripts of Perl, which those who name its folder do not need.
func databaseTree() tree {
	return tree{
		variant: "essential", packages: []string{"coreutils", "postgresql", "util-linux"},
		drop: []string{
			"var/lib/postgresql/", "usr/share/zoneinfo/posix/", "usr/share/zoneinfo/right/", "usr/share/perl", "usr/lib/x86_64-linux-gnu/perl",
			"usr/bin/perl", "usr/lib/systemd/", "usr/lib/x86_64-linux-gnu/systemd/", "usr/lib/x86_64-linux-gnu/gconv/",
			"usr/share/lintian/", "usr/share/terminfo/", "var/lib/dpkg/",
		},
	}
}

// planDatabase plans the image of a database, once.
func (b *builder) planDatabase(p *plan) {
	p.database = newTask(b.databaseRecipe())
	p.addTask(&p.debianLane, p.database, b.store)
}

func (b *builder) databaseRecipe() recipe {
	r := b.layerRecipe("database", databaseTree())
	layer := r.build
	r.inputs = append(r.inputs, databaseRevision, databaseImage)
	r.build = func(ctx context.Context, dir, final string) error {
		if err := layer(ctx, dir, final); err != nil {
			return err
		}
		spec, err := debianImage(databaseImage, dir)
		if err != nil {
			return err
		}
		if err := mkimage.WriteDockerArchive(filepath.Join(dir, databaseArchive), spec); err != nil {
			return err
		}
		return removeWork(dir, layerFile, digestFile)
	}
	return r
}
