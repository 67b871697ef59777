package sshd

import "strings"

// Act is what a command means.
type Act int

// What commands mean.
const (
	// Shell: it is run by a shell of the node.
	Shell Act = iota
	// Stop, Start and Show are systemctl's, which the nodes do not have: their agent runs the
	// kubelet.
	Stop
	Start
	Show
)

// States of a service, as systemctl shows them.
const (
	Active   = "active"
	Inactive = "inactive"
)

// Meaning says what a command of the tests means, and of which service.
func Meaning(command string) (Act, string) {
	words := strings.Fields(command)
	if len(words) < 3 || words[0] != "systemctl" {
		return Shell, ""
	}
	verb, service, rest := words[1], words[2], strings.Join(words[3:], " ")
	switch {
	case verb == "stop" && rest == "":
		return Stop, service
	case verb == "start" && rest == "":
		return Start, service
	case verb == "show" && rest == "--property ActiveState --value":
		return Show, service
	}
	return Shell, ""
}
