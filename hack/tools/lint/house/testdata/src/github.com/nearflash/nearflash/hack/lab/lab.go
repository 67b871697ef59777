package lab

import (
	_ "os/exec"

	_ "github.com/google/licensecheck"
)
