package lab

import _ "os/exec"
