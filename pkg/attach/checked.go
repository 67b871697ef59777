package attach

import (
	"context"
	"fmt"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/integrity"
	"github.com/nearflash/nearflash/pkg/pool"
)

// integrityProblem says why a pool that asks for checksums cannot have them here, or "" (states.md,
// Checksums of what the SSD holds).
func (a *Attacher) integrityProblem(ctx context.Context, v pool.View) string {
	if v.LogicalBlock > integrity.SectorBytes {
		return fmt.Sprintf("the pool of node %s asks for integrity, and its SSDs have logical blocks of %d bytes: checksums are for SSDs of at most %d; format the namespace with smaller ones, or take the demand away", a.Node, v.LogicalBlock, integrity.SectorBytes)
	}
	if a.IntegrityProblem == nil {
		return ""
	}
	return a.IntegrityProblem(ctx)
}

// integrityReason is the word for it of api/v1alpha1.
func integrityReason(v pool.View) string {
	if v.LogicalBlock > integrity.SectorBytes {
		return v1alpha1.ReasonBlockSizeTooLarge
	}
	return v1alpha1.ReasonKernelTargetMissing
}
