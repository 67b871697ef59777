// Package artifact installs and builds what the lab and the tests run: a control
// plane, CSI sidecars, a guest kernel, root file systems for guests, and container
// images. Go programs come from the module proxy, all else from a Debian mirror.
//
// Every artifact is a directory NAME-HASH of the cache; the hash is over all that
// decides its content, so a changed recipe has a new directory and the artifacts of
// several branches lie side by side. A directory is filled under a temporary name
// and renamed: it is there whole or not at all. A lock for each artifact lets one
// process build it while others wait, and what a killed builder leaves is swept by
// the next run. An artifact that a newer one of the same name has replaced is
// removed when nobody has asked for it for 30 days.
//
// A manifest in each directory lists files with size, mode, time and SHA-256. The
// hash is computed when the artifact is built and compared when the time of a file
// is not the recorded one, or always if [Options.CheckContent] says so.
//
// The images of the driver itself are made of the checkout, in its _output.
package artifact
