// Package artifact installs and builds what the lab runs.
package artifact
