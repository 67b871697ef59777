package driver

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/nearflash/nearflash/pkg/volume"
)

// tokenPrefix marks a starting token. The rest is the last ID of the page
// before, so that a list goes on correctly when volumes come and go in between.
const tokenPrefix = "after:"

// ListVolumes implements csi.ControllerServer.
func (c *Controller) ListVolumes(ctx context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	after, err := parseToken(req.GetStartingToken())
	if err != nil {
		return nil, statusFor(err)
	}
	if req.GetMaxEntries() < 0 {
		return nil, statusFor(fmt.Errorf("%w: max_entries %d is negative", volume.ErrInvalid, req.GetMaxEntries()))
	}
	all, err := c.volumes.List(ctx)
	if err != nil {
		return nil, statusFor(err)
	}
	page, token := paginate(all, string(after), int(req.GetMaxEntries()), func(v volume.Volume) string { return string(v.ID) })
	resp := &csi.ListVolumesResponse{NextToken: token}
	for _, v := range page {
		resp.Entries = append(resp.Entries, &csi.ListVolumesResponse_Entry{
			Volume: &csi.Volume{VolumeId: string(v.ID), CapacityBytes: v.Spec.CapacityBytes},
		})
	}
	return resp, nil
}

func parseToken(token string) (after volume.ID, err error) {
	if token == "" {
		return "", nil
	}
	rest, ok := strings.CutPrefix(token, tokenPrefix)
	if !ok {
		return "", fmt.Errorf("%w %q", errToken, token)
	}
	if after, err = volume.ParseID(rest); err != nil {
		return "", fmt.Errorf("%w %q", errToken, token)
	}
	return after, nil
}

// paginate returns at most limit entries behind after, all if limit is 0, and
// the token of the next page. all is sorted by name.
func paginate[E any](all []E, after string, limit int, name func(E) string) (page []E, token string) {
	start, found := slices.BinarySearchFunc(all, after, func(e E, after string) int { return strings.Compare(name(e), after) })
	if found {
		start++
	}
	page = all[start:]
	if limit == 0 || len(page) <= limit {
		return page, ""
	}
	page = page[:limit]
	return page, tokenPrefix + name(page[limit-1])
}
