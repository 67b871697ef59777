package netns

import (
	"errors"
	"fmt"
	"sort"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/hack/lab/internal/plan"
)

// APIName names the control plane as one end of a cut.
const APIName = "api"

// cutTable is the bridge table that holds all cuts.
const cutTable = "nearflash-lab"

// ErrCut is returned for ends between which nothing can be cut.
var ErrCut = errors.New("cannot cut")

// Cut is one direction in which nothing passes any more.
type Cut struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// ParseCut checks the two ends and returns the directions to cut: one, or both.
// An end is the name of a guest, or [APIName].
func ParseCut(a, b string, oneWay bool) ([]Cut, error) {
	if a == b {
		return nil, fmt.Errorf("%w: both ends are %s", ErrCut, a)
	}
	for _, end := range []string{a, b} {
		if end == APIName {
			continue
		}
		if _, err := plan.FindNode(end); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrCut, err)
		}
	}
	cuts := []Cut{{From: a, To: b}}
	if !oneWay {
		cuts = append(cuts, Cut{From: b, To: a})
	}
	return cuts, nil
}

// Merge adds cuts to a list, each direction once, in a stable order.
func Merge(have, more []Cut) []Cut {
	set := map[Cut]bool{}
	for _, c := range append(append([]Cut{}, have...), more...) {
		set[c] = true
	}
	out := make([]Cut, 0, len(set))
	for c := range set {
		out = append(out, c)
	}
	sort.Slice(out, func(i, j int) bool {
		if out[i].From != out[j].From {
			return out[i].From < out[j].From
		}
		return out[i].To < out[j].To
	})
	return out
}

// Apply makes exactly these cuts hold; an empty list heals the network. Between
// two guests everything is dropped on the bridge, whatever it carries. Between a
// guest and the control plane everything is dropped but ARP and the agent's
// port, so that the guest can still be looked into.
func (n NS) Apply(cuts []Cut) error {
	return n.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
		table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyBridge, Name: cutTable})
		c.DelTable(table) // added first, so that there is always one to delete
		if len(cuts) > 0 {
			if err := addCuts(c, cuts); err != nil {
				return err
			}
		}
		if err := c.Flush(); err != nil {
			return fmt.Errorf("nftables of the bridge family: %w", err)
		}
		return nil
	})
}

func addCuts(c *nftables.Conn, cuts []Cut) error {
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyBridge, Name: cutTable})
	chain := func(name string, hook *nftables.ChainHook) *nftables.Chain {
		return c.AddChain(&nftables.Chain{
			Name: name, Table: table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityFilter,
		})
	}
	forward := chain("forward", nftables.ChainHookForward)
	input := chain("input", nftables.ChainHookInput)
	output := chain("output", nftables.ChainHookOutput)
	for _, cut := range cuts {
		var rule *nftables.Rule
		switch {
		case cut.To == APIName:
			tap, err := tapOf(cut.From)
			if err != nil {
				return err
			}
			rule = &nftables.Rule{Chain: input, Exprs: append(matchIf(expr.MetaKeyIIFNAME, tap), dropButAgent(tcpSourcePort)...)}
		case cut.From == APIName:
			tap, err := tapOf(cut.To)
			if err != nil {
				return err
			}
			rule = &nftables.Rule{Chain: output, Exprs: append(matchIf(expr.MetaKeyOIFNAME, tap), dropButAgent(tcpDestPort)...)}
		default:
			from, err := tapOf(cut.From)
			if err != nil {
				return err
			}
			to, err := tapOf(cut.To)
			if err != nil {
				return err
			}
			rule = &nftables.Rule{Chain: forward, Exprs: append(matchIf(expr.MetaKeyIIFNAME, from), append(matchIf(expr.MetaKeyOIFNAME, to), drop())...)}
		}
		rule.Table = table
		c.AddRule(rule)
	}
	return nil
}

func tapOf(node string) (string, error) {
	n, err := plan.FindNode(node)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrCut, err)
	}
	return n.Tap, nil
}

// Offsets of the ports in a TCP header.
const (
	tcpSourcePort = 0
	tcpDestPort   = 2
)

func drop() expr.Any { return &expr.Verdict{Kind: expr.VerdictDrop} }

func matchIf(key expr.MetaKey, name string) []expr.Any {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: padded},
	}
}

// dropButAgent drops IPv4 packets whose TCP port at the offset is not the
// agent's. The port of another protocol is looked at in the same place, which
// can only spare a packet that nothing here sends.
func dropButAgent(offset uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(unix.ETH_P_IP)},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.BigEndian.PutUint16(plan.AgentPort)},
		drop(),
	}
}
