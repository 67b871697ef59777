package attach

import (
	_ "os/exec"

	_ "github.com/nearflash/nearflash/hack/images" // want `package pkg/attach may not import github.com/nearflash/nearflash/hack/images: hack is a module of its own`
	_ "google.golang.org/grpc/codes"
)
