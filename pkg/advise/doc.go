// Package advise says which cache a volume should have, and why, from what nodes have seen of its
// reads. It only decides: what is known comes as Facts.
//
// What is not known is said to be so. A cache is advised against only where enough was seen that
// speaks against it.
package advise
