// Package cachestream sends the chunks of a node's cache to the plugin of another
// node (states.md, The warm move, A prewarmed node): hottest first, over TLS 1.3 (streampb/stream.proto).
// It is not gRPC, which copies each byte four times and hands it from one goroutine to another twice: a
// stream had half of the rate by that.
//
// Both sides prove who they are. Each node has a key that does not leave it; the hash of its public
// half is in the status of its own CachePool, which no other node may write, and both sides of a
// connection take no other key. The client also sends a token of its pod's service account that is
// good for nothing else (Audience); the API server says of which node the pod is, whose key the
// client must have, and Caches say whether that node may have the cache.
//
// What the other side sends is not believed: sizes are bounded before anything is allocated,
// and order, lengths and checksums are verified.
package cachestream
