package hostexec

import _ "os/exec"
