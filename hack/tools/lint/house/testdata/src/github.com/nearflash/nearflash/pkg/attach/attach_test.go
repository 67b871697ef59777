package attach

import (
	_ "os/exec"

	_ "google.golang.org/grpc/codes"
)
