// Package adopt puts a cache in front of a claim that exists, under the same name, and takes
// it away again: "Adoption" in docs/design/states.md. The data stay where they are; what
// changes is which objects of Kubernetes lead to them.
//
//	before    claim -> PersistentVolume (filesystem) -> volume of the other driver
//	after     claim -> PersistentVolume of nearflash -> PersistentVolume (Block) -> the same volume
//
// What a claim is bound to and what a PersistentVolume is of cannot be changed, so both are
// made again. A ConfigMap, the journal, has the originals from before the first change until
// the claim is released. Each round gathers what the API server says, decides the next step by
// a pure function, and takes it: killed anywhere, the same command goes on.
//
// No object is taken for deleted by us because it is not there: the order to delete a
// PersistentVolume is in the journal before it is carried out.
package adopt
