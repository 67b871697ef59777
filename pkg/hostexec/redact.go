package hostexec

import (
	"regexp"
	"strings"
)

const redacted = "***stripped***"

// secretName matches option and setting names whose value is a secret:
// --password, node.session.auth.password, CHAP_SECRET and the like.
var secretName = regexp.MustCompile(`(?i)(password|passwd|passphrase|secret|token)`)

// redactArgs returns a copy of args without values of secret settings, in the
// three shapes host tools use: name=value, --name value, and iscsiadm's
// "-n name -v value".
func redactArgs(args []string) []string {
	if args == nil {
		return nil
	}
	out := make([]string, len(args))
	secretSetting, redactNext := false, false
	for i, arg := range args {
		name, _, hasValue := strings.Cut(arg, "=")
		switch {
		case redactNext:
			out[i], redactNext = redacted, false
			continue
		case secretSetting && (arg == "-v" || arg == "--value"):
			redactNext, secretSetting = true, false
		case secretSetting && name == "--value" && hasValue:
			out[i], secretSetting = name+"="+redacted, false
			continue
		case hasValue && secretName.MatchString(name):
			out[i] = name + "=" + redacted
			continue
		case hasValue && name == "--name" && secretName.MatchString(arg):
			secretSetting = true
		case secretName.MatchString(arg):
			redactNext = strings.HasPrefix(arg, "-")
			secretSetting = !redactNext
		}
		out[i] = arg
	}
	return out
}

func redactedLine(name string, args []string) string {
	return strings.Join(append([]string{name}, redactArgs(args)...), " ")
}
