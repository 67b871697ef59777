package target

import "context"

// RestoreVolume is what Repair does for one volume.
func RestoreVolume(ctx context.Context, s *Service, name string) error {
	return s.restoreVolume(ctx, name)
}
