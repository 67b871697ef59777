package volume

import (
	_ "github.com/google/licensecheck"              // want `package pkg/volume may not import github.com/google/licensecheck: what makes a release`
	_ "github.com/nearflash/nearflash/pkg/hostexec" // want `package pkg/volume may not import github.com/nearflash/nearflash/pkg/hostexec: the CSI layer`
	_ "k8s.io/klog"                                 // want `package pkg/volume may not import k8s.io/klog: the domain`
)
