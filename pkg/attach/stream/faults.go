package stream

import "github.com/nearflash/nearflash/pkg/faultpoint"

// Fault points: the places between two steps where tests end the process.
var (
	faultStreamSynced   = faultpoint.New("stream.synced")
	faultStreamServes   = faultpoint.New("stream.serves")
	faultStreamMerged   = faultpoint.New("stream.merged")
	faultStreamSwapped  = faultpoint.New("stream.swapped")
	faultStreamSwept    = faultpoint.New("stream.swept")
	faultStreamRemoved  = faultpoint.New("stream.removed")
	faultStreamReported = faultpoint.New("stream.reported")
)

// bugUntracked is a defect for tests: the one map names chunks that were written since the stream
// began.
var bugUntracked = faultpoint.NewBug("stream-untracked")
