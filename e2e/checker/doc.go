// Package checker decides from the history of a volume whether what is read from
// it is allowed.
//
// A small program beside the data (Serve) writes blocks that say what they are:
// volume, block, number of the write, checksum. What to write is decided here, and
// what was issued, acknowledged and flushed is noted here (History), outside of the
// machine that is going to fail, and a write is noted before it is asked for. After
// a disaster every block is read and judged. What each kind of disaster may take is
// the model of docs/explanation/guarantees.md; it is a pure function (judge).
package checker
