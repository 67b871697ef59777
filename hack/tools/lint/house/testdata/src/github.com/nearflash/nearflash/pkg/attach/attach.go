package attach

import (
	_ "os/exec" // want `package pkg/attach may not import os/exec: commands are run by pkg/hostexec alone`

	_ "google.golang.org/grpc/codes" // want `package pkg/attach may not import google.golang.org/grpc/codes`
	_ "k8s.io/klog"
)
