// Package scheduling makes the scheduler prefer nodes on which a pod's volumes
// are cached, and nodes with room for their caches. It is a mutating admission
// webhook for pods: it adds preferred node affinity, so that the scheduler of the
// cluster does the rest. Nothing here ever requires anything: a pod that the
// webhook does not see, or knows nothing about, is scheduled as if nearflash had
// no opinion (states.md, I6).
//
// An admission reads informers alone. What they do not know yet is not waited for.
package scheduling
