// Package moves carries warm moves between two nodes as CacheMigration objects:
// Destination is the node that fills a cache, Source the node that exports its
// retained cache. "The warm move" in docs/design/states.md says what they agree on.
//
// The secret with which the destination logs in to the source is in no object.
// Each side makes an X25519 key pair for one object alone and publishes the public
// half in it; both derive the same secret from the agreement (HKDF with SHA-256),
// bound to the object's UID and both public halves. Who reads the API server learns
// nothing; who may write CacheMigrations could be a destination itself, which the
// source node's look at the volume's record is there for.
package moves
