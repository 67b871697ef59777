// Package cachestream sends the chunks of a node's cache to the plugin of another
// node (states.md, The warm move, A prewarmed node): hottest first, over gRPC with TLS 1.3.
//
// Both sides prove who they are. The server has a key that is made at each start and never
// leaves its memory; the hash of its public half is in the status of its own CachePool, which
// no other node may write, and the client takes no other key. The client sends a token of its
// pod's service account that is good for nothing else (Audience); the API server says of which
// node the pod is, and Caches whether that node may have the cache.
//
// What the other side sends is not believed: sizes are bounded before anything is allocated,
// and order, lengths and checksums are verified.
package cachestream
