package scheduling

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// MaxNodes bounds the nodes that one pod is given, so that neither the pod nor
// the scheduler's work grows with the cluster.
const MaxNodes = 32

// Cache is that of one volume of a pod.
type Cache struct {
	// Bytes is its size; 0 if that is not known.
	Bytes int64
	// Mirror is true of one that is to have two copies, or is not to be.
	Mirror bool
	// Owner is the node that has the volume now, or that alone may attach it next
	// because it may hold dirty blocks (states.md, I2). Empty if there is none.
	Owner string
	// RetainedOn are the nodes that keep a clean cache of the volume's current
	// generation.
	RetainedOn []string
}

// Pool is the cache space of one node.
type Pool struct {
	Node string
	// Ready is false while the pool cannot hold a cache.
	Ready bool
	// Mirror is true of one that keeps two copies of every cache, and Pairs of one that can keep two of
	// those that ask.
	Mirror, Pairs bool
	// Free bytes are occupied by nothing, RetainedCache bytes by caches of volumes that
	// have left the node.
	Free, RetainedCache int64
}

// Preference is a weight from 1 to 100 for some nodes, ordered by name.
type Preference struct {
	Weight int
	Nodes  []string
}

// candidate is a node that a pod may prefer.
type candidate struct {
	node       string
	warm, free int
	// space is what decides between nodes of the same weights.
	space int64
}

// Prefer says which nodes a pod with these caches should prefer: of those that are usable for
// it, those with the largest part of them first, then those with the most room. It returns
// nothing for a pod without caches.
func Prefer(caches []Cache, pools []Pool, w Weights, usable func(node string) bool) []Preference {
	if len(caches) == 0 {
		return nil
	}
	ready := map[string]bool{}
	for _, p := range pools {
		ready[p.Node] = p.Ready
	}
	held, total := holdings(caches, ready)
	byNode := map[string]candidate{}
	for node, bytes := range held {
		byNode[node] = candidate{node: node, warm: part(w.Warm, bytes, total)}
	}
	mirror := slices.ContainsFunc(caches, func(c Cache) bool { return c.Mirror })
	for _, p := range pools {
		c := byNode[p.Node]
		c.node, c.space = p.Node, p.Free
		if p.Mirror || p.Pairs || !mirror {
			c.free = room(p, p.need(caches, ready), w.Free)
		}
		byNode[p.Node] = c
	}
	nodes := slices.DeleteFunc(slices.Collect(maps.Values(byNode)), func(c candidate) bool { return c.warm == 0 && c.free == 0 || !usable(c.node) })
	slices.SortFunc(nodes, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.warm, a.warm), cmp.Compare(b.free, a.free), cmp.Compare(b.space, a.space), cmp.Compare(a.node, b.node))
	})
	nodes = nodes[:min(len(nodes), MaxNodes)]
	return slices.Concat(
		grouped(nodes, func(c candidate) int { return c.warm }),
		grouped(nodes, func(c candidate) int { return c.free }),
	)
}

// holdings returns how many bytes of the caches each node holds, and how many
// there are. A cache of unknown size counts as one byte.
func holdings(caches []Cache, ready map[string]bool) (held map[string]int64, total int64) {
	held = map[string]int64{}
	for _, c := range caches {
		size := max(c.Bytes, 1)
		if total > math.MaxInt64-size { // exbibytes of cache: the weights are wrong then, and no more
			size = 0
		}
		total += size
		for _, node := range c.holders(ready) {
			held[node] += size
		}
	}
	return held, total
}

// holders are the nodes that have the cache, each once. A pool that is not ready cannot give its
// retained cache back. The owner is preferred all the same, for no other node may have the volume.
func (c Cache) holders(ready map[string]bool) []string {
	holders := slices.DeleteFunc(slices.Clone(c.RetainedOn), func(node string) bool { return !ready[node] })
	if c.Owner != "" {
		holders = append(holders, c.Owner)
	}
	slices.Sort(holders)
	return slices.Compact(holders)
}

// need is how many bytes of a pool the caches take that its node does not hold, with all copies.
func (p Pool) need(caches []Cache, ready map[string]bool) (sum int64) {
	for _, c := range caches {
		size := max(c.Bytes, 1)
		if p.Mirror || c.Mirror {
			size = 2 * min(size, math.MaxInt64/2)
		}
		if !slices.Contains(c.holders(ready), p.Node) {
			sum += min(size, math.MaxInt64-sum)
		}
	}
	return sum
}

// part is the share of a weight, at least 1 unless the weight is 0.
func part(weight int, bytes, total int64) int {
	if weight == 0 {
		return 0
	}
	return max(1, int(math.Round(float64(weight)*float64(bytes)/float64(total))))
}

// room is the weight of a pool that the bytes are to be put in.
func room(p Pool, need int64, weight int) int {
	switch {
	case !p.Ready || weight == 0:
		return 0
	case p.Free >= need:
		return weight
	case p.Free+p.RetainedCache >= need:
		return max(1, weight/2)
	default:
		return 0
	}
}

// grouped gathers the nodes of the same weight, largest weight first.
func grouped(nodes []candidate, weight func(candidate) int) []Preference {
	groups := map[int][]string{}
	for _, c := range nodes {
		if n := weight(c); n > 0 {
			groups[n] = append(groups[n], c.node)
		}
	}
	var out []Preference
	for n, names := range groups {
		slices.Sort(names)
		out = append(out, Preference{Weight: n, Nodes: names})
	}
	slices.SortFunc(out, func(a, b Preference) int { return cmp.Compare(b.Weight, a.Weight) })
	return out
}
