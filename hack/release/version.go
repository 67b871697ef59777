package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/semver"
)

// identify finds out version, commit and time.
func (r *release) identify(ctx context.Context) error {
	if commit, err := r.git(ctx, "rev-parse", "--short=12", "HEAD"); err == nil {
		r.commit = commit
	}
	if r.version == "" {
		described, err := r.git(ctx, "describe", "--tags", "--match", "v[0-9]*", "--long", "--dirty")
		if err != nil {
			// No tag yet, or no git.
			described = ""
		}
		if r.version, err = versionOf(described, r.commit); err != nil {
			return err
		}
	}
	if !validVersion(r.version) {
		return fmt.Errorf("version %q: want a full semantic version with a v, such as v0.2.0 or v0.2.0-rc.1", r.version)
	}
	r.made = time.Unix(0, 0).UTC()
	if seconds, err := r.git(ctx, "log", "-1", "--format=%ct"); err == nil {
		n, err := strconv.ParseInt(seconds, 10, 64)
		if err != nil {
			return fmt.Errorf("time of the commit: %w", err)
		}
		r.made = time.Unix(n, 0).UTC()
	}
	return nil
}

// validVersion wants MAJOR.MINOR.PATCH and no build metadata: a tag of an image cannot
// have a plus sign.
func validVersion(version string) bool {
	return semver.IsValid(version) && semver.Canonical(version) == version && semver.Build(version) == ""
}

var describePattern = regexp.MustCompile(`^(v[0-9]+\.[0-9]+\.)([0-9]+)(-[0-9A-Za-z.-]+)?-([0-9]+)-g([0-9a-f]+)(-dirty)?$`)

// versionOf turns what `git describe --long` says into a version. A commit after a tag
// becomes a pre-release of the next patch, since a version must sort after the tag.
func versionOf(described, commit string) (string, error) {
	if described == "" {
		if commit == "" {
			return "v0.0.0-dev", nil
		}
		return "v0.0.0-dev." + commit, nil
	}
	m := describePattern.FindStringSubmatch(described)
	if m == nil {
		return "", fmt.Errorf("git describe says %q: want a tag vMAJOR.MINOR.PATCH", described)
	}
	if m[4] == "0" && m[6] == "" {
		return m[1] + m[2] + m[3], nil
	}
	suffix := "dev." + m[4] + ".g" + m[5]
	if m[6] != "" {
		suffix += ".dirty"
	}
	if m[3] != "" {
		return m[1] + m[2] + m[3] + "." + suffix, nil
	}
	patch, err := strconv.Atoi(m[2])
	if err != nil {
		return "", err
	}
	return m[1] + strconv.Itoa(patch+1) + "-" + suffix, nil
}

func (r *release) git(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "git", append([]string{"-C", r.root}, args...)...).Output()
	return strings.TrimSpace(string(out)), err
}
