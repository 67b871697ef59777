// Package extents tells where on its device the data of files are (FIEMAP,
// Documentation/filesystems/fiemap.rst). Files, and their names, are those of a pod: no symbolic link is
// followed, no other filesystem entered, and nothing opened that is not a regular file or a directory.
package extents
