// Package bench measures volumes on the user's own cluster, for `kubectl nearflash bench`.
//
// A [Plan] says what is measured: subjects (a volume of each class or mode), and profiles (what fio
// does to them). A [Runner] makes a claim and a pod for one subject after the other, fills the volume,
// reads it until the cache is warm, measures, and deletes everything. What it learns is a [Report],
// which is printed as a table, as JSON, or as one page of HTML.
//
// Figures come from two sides. fio in the pod says what the pod gets. The node's counters say what
// answered it: their difference over a run is the hit rate, and how long the SSD and the origin took.
// [Judge] decides by both which limit a row has hit; it says that it does not know where they do not
// tell. Only Runner talks to a cluster.
//
// Everything that is made has the label [Label] with the identity of the run, and is found and deleted
// by it ([Cleaner]), also what a run has left that was killed.
package bench
