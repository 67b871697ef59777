package preflight

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/openiscsi"
)

// ISCSI checks what a volume of an iSCSI server needs, cached or not.
func (n Node) ISCSI(ctx context.Context) error {
	place, err := n.OpenISCSI.Open()
	if err != nil {
		return errors.Join(n.iscsiTransport(), fmt.Errorf("open-iscsi of the host: %w", err))
	}
	defer place.Close()
	_, nameErr := n.initiatorName(place)
	said, toolErr := n.iscsiadm(ctx, place)
	return errors.Join(nameErr, n.iscsiTransport(), toolErr, n.iscsid(ctx, place, said))
}

// ErrInitiatorName means that the node has no iSCSI initiator name.
var ErrInitiatorName = errors.New("the node has no iSCSI initiator name")

// initiatorForm is what RFC 3720 (3.2.6) has in common with the names that targets take in fact.
var initiatorForm = regexp.MustCompile(`^(?i:iqn|eui|naa)\.[A-Za-z0-9._:-]{1,219}$`)

// InitiatorName reads the initiator's name. Errors: ErrInitiatorName.
func (n Node) InitiatorName() (string, error) {
	place, err := n.OpenISCSI.Open()
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrInitiatorName, err)
	}
	defer place.Close()
	return n.initiatorName(place)
}

func (n Node) initiatorName(place *openiscsi.Place) (string, error) {
	remedy := "remedy: install open-iscsi on the node, which makes a name that no other node has, or let nearflash bring it (node.iscsid.run: own)"
	if n.OwnISCSID {
		remedy = "remedy: take the file away, and delete the plugin's pod, which makes one"
	}
	b, err := os.ReadFile(place.Path(n.InitiatorNameFile))
	if path := (*os.PathError)(nil); errors.As(err, &path) {
		err = fmt.Errorf("%s: %w", n.InitiatorNameFile, path.Err) // as the host names it
	}
	if err != nil {
		return "", fmt.Errorf("%w: %w; %s", ErrInitiatorName, err, remedy)
	}
	for line := range strings.Lines(string(b)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "InitiatorName="); ok && strings.TrimSpace(name) != "" {
			name = strings.TrimSpace(name)
			if !initiatorForm.MatchString(name) {
				return "", fmt.Errorf("%w: %q in %s is no such name; accepted are at most 223 letters, digits and . : - _, beginning with iqn., eui. or naa.; "+
					"remedy: write one into it that no other node has", ErrInitiatorName, name, n.InitiatorNameFile)
			}
			return name, nil
		}
	}
	return "", fmt.Errorf("%w: %s has no line InitiatorName=; %s", ErrInitiatorName, n.InitiatorNameFile, remedy)
}

func (n Node) iscsiTransport() error {
	if _, err := os.Stat(filepath.Join(n.Sysfs, "class/iscsi_transport/tcp")); err != nil {
		return fmt.Errorf("the kernel has no iSCSI over TCP: %w; remedy: load the module iscsi_tcp on the node", err)
	}
	return nil
}

// versionTimeout is how long a program may take to say its version.
const versionTimeout = 10 * time.Second

// iscsiadm returns what iscsiadm says of its version: the one of the image, which is asked once, or
// the host's.
func (n Node) iscsiadm(ctx context.Context, place *openiscsi.Place) (said string, err error) {
	ask := func(programs *Programs, remedy string) (string, error) {
		return programs.say("iscsiadm", func() (string, error) {
			ctx, cancel := context.WithTimeout(ctx, versionTimeout)
			defer cancel()
			res, err := n.Run.Run(ctx, place.In(hostexec.Query("iscsiadm", "--version")))
			if err != nil {
				return "", fmt.Errorf("iscsiadm cannot be used: %w; remedy: %s", err, remedy)
			}
			return string(res.Stdout), nil
		})
	}
	if n.OpenISCSI != nil {
		return ask(nil, "install open-iscsi on the node, or use the image's (node.iscsid.run: host, or own where the node has no iscsid)")
	}
	return ask(n.Programs, "use the driver's own image, it has it")
}

// iscsid asks the daemon as that iscsiadm does. One of another version may take no order, or
// another one than was given, and is known by that it does not take a question.
func (n Node) iscsid(ctx context.Context, place *openiscsi.Place, said string) error {
	version, text, known := openiscsi.ParseVersion(said)
	size := 0
	if known {
		size = openiscsi.RequestSize(version)
	}
	err := n.Iscsid.Ask(ctx, size)
	own := "see why the pod of the DaemonSet with the label app.kubernetes.io/component=iscsid does not run on this node"
	switch {
	case err == nil:
		return nil
	case errors.Is(err, openiscsi.ErrNoDaemon) && n.OwnISCSID:
		return fmt.Errorf("iscsid does not run on the node: %w; remedy: %s", err, own)
	case errors.Is(err, openiscsi.ErrNoDaemon):
		return fmt.Errorf("iscsid does not run on the node: %w; remedy: systemctl enable --now iscsid, or let nearflash bring one (node.iscsid.run: own)", err)
	case errors.Is(err, openiscsi.ErrRequestSize):
		return fmt.Errorf("%w: iscsiadm is %s, iscsid is %s; remedy: %s", err, text, n.iscsidVersion(ctx), n.mismatchRemedy())
	case n.OwnISCSID:
		return fmt.Errorf("%w; remedy: delete the pod of the DaemonSet with the label app.kubernetes.io/component=iscsid on this node", err)
	}
	return fmt.Errorf("%w; remedy: see what it does (journalctl --unit iscsid), and start it again (systemctl restart iscsid): sessions stay meanwhile", err)
}

func (n Node) mismatchRemedy() string {
	switch {
	case n.OwnISCSID:
		return "stop the iscsid of the host (systemctl disable --now iscsid.socket iscsid); if there is none, delete the pod of the DaemonSet with the label app.kubernetes.io/component=iscsid on this node"
	case n.OpenISCSI != nil:
		return "start iscsid again (systemctl restart iscsid): sessions stay meanwhile"
	}
	return "use the node's own iscsiadm (node.iscsid.run: nsenter), or have nearflash bring the daemon too (node.iscsid.run: own)"
}

// iscsidVersion is for people: what the program of the iscsid that runs says of itself.
func (n Node) iscsidVersion(ctx context.Context) string {
	const unknown = "of an unknown version"
	host := n.OpenISCSI
	if host == nil {
		host = n.HostISCSI
	}
	place, err := host.Open()
	if err != nil {
		return unknown
	}
	defer place.Close()
	program, replaced := place.Daemon()
	if program == "" {
		return unknown
	}
	if replaced {
		return "of an unknown version, as its program was replaced since it began"
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	res, err := n.Run.Run(ctx, place.In(hostexec.Query(program, "--version")))
	if err != nil {
		return unknown
	}
	if _, text, _ := openiscsi.ParseVersion(string(res.Stdout)); text != "" {
		return text
	}
	return unknown
}
