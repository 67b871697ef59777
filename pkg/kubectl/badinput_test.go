package kubectl_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// strays are claims that lead to no volume of nearflash.
func strays() []client.Object {
	claim := func(name, pv string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: pv},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
		}
	}
	pv := func(name, driver string, attributes map[string]string) *corev1.PersistentVolume {
		p := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if driver != "" {
			p.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: name, VolumeAttributes: attributes}
		}
		return p
	}
	return append(bound("shop", "owner", "pv-owned"),
		claim("restored", "pv-owned"), claim("pending", ""), claim("dangling", "pv-none"), claim("foreign", "pv-foreign"), claim("local", "pv-local"), claim("orphan", "pv-orphan"), claim("fresh", "pv-fresh"), claim("over", "pv-over"),
		pv("pv-foreign", "ebs.csi.aws.com", nil), pv("pv-local", "", nil), pv("pv-orphan", driver, nil), pv("pv-fresh", driver, map[string]string{"iqn": "iqn.x"}), pv("pv-over", driver, map[string]string{"originPersistentVolume": "x"}),
	)
}

// What is wrong is said in one line, with what to do.
func TestBadInput(t *testing.T) {
	for args, want := range map[string]string{
		"flsh":                           "there is no command \"flsh\" (did you mean flush?): `kubectl nearflash --help` lists them",
		"list --colour":                  "unknown flag: --colour: see `kubectl nearflash list --help`",
		"list -o xml":                    "-o xml is not known: accepted are json, yaml, kyaml, name, go-template, go-template-file, template, templatefile, jsonpath, jsonpath-as-json, jsonpath-file, wide",
		"list -A data":                   "-A shows all volumes, data only some: leave one of them out",
		"list a/b/c":                     "\"a/b/c\" does not name a volume: write the name of a claim, pv/NAME or cvol/NAME",
		"list pod/x":                     "\"pod/x\" does not name a volume: write the name of a claim, pv/NAME or cvol/NAME",
		"list missing":                   "there is no claim missing in namespace default: name its namespace with -n; `kubectl nearflash list -A` shows all volumes",
		"list pending":                   "claim pending is not bound (Pending): `kubectl describe pvc -n default pending` says what it waits for",
		"list restored":                  "claim restored names PersistentVolume pv-owned, which belongs to claim shop/owner",
		"list dangling":                  "there is no PersistentVolume pv-none: `kubectl get pv` lists them; a claim bound to it has lost its data",
		"list foreign":                   "PersistentVolume pv-foreign is of the CSI driver ebs.csi.aws.com, not of nearflash: name a claim whose StorageClass has the provisioner csi.nearflash.io",
		"list local":                     "PersistentVolume pv-local is of no CSI driver, not of nearflash: name a claim whose StorageClass has the provisioner csi.nearflash.io",
		"list orphan":                    "CachedVolume pv-orphan of PersistentVolume pv-orphan is missing: run `kubectl nearflash doctor`; restore the object from a backup of the cluster",
		"list fresh":                     "PersistentVolume pv-fresh has no CachedVolume pv-fresh yet: it is made when a pod first uses the volume",
		"list over":                      "PersistentVolume pv-over has no CachedVolume pv-over yet: it is made when a pod first uses the volume",
		"list cvol/none":                 "there is no CachedVolume none: `kubectl nearflash list -A` shows all volumes",
		"top --sort-by size":             "--sort-by size is not known: accepted are hit, iops, dirty, used, p99",
		"top -w --interval 10ms":         "--interval 10ms is too short: give at least 1s",
		"top -w -o json":                 "--watch prints tables: leave out --watch, or -o",
		"describe":                       "describe takes 1 argument(s), got 0: write `kubectl nearflash describe PVC`",
		"describe data -o wide":          "-o wide is not known: accepted are",
		"describe pv/":                   "\"pv/\" does not name a volume: write the name of a claim, pv/NAME or cvol/NAME",
		"flush":                          "flush takes 1 argument(s), got 0: write `kubectl nearflash flush PVC`",
		"flush data --timeout -1s":       "--timeout -1s is negative: give a duration such as 10m, or 0 to wait for ever",
		"flush missing":                  "there is no claim missing in namespace default: name its namespace with -n; `kubectl nearflash list -A` shows all volumes",
		"preload":                        "preload takes 1 argument(s), got 0: write `kubectl nearflash preload PVC`",
		"preload data --path a/../..":    "--path a/../.. has ..: give a path from the root of the volume",
		"preload data --bandwidth fast":  "--bandwidth fast: accepted is a quantity of bytes in a second, such as 100Mi, and at least 1Mi",
		"preload data --bandwidth 1k":    "--bandwidth 1k: accepted is a quantity of bytes in a second, such as 100Mi, and at least 1Mi",
		"preload data --cancel --path a": "--cancel ends what was asked for, whatever it was: leave --path and --bandwidth out",
		"preload data --timeout -1s":     "--timeout -1s is negative: give a duration such as 10m, or 0 to wait for ever",
		"mode data":                      "mode takes 2 argument(s), got 1: write `kubectl nearflash mode PVC none|writethrough|writeback|writeback-unsafe`",
		"mode data writearound":          "mode writearound is not known: accepted are none, writethrough, writeback, writeback-unsafe",
		"mode data writeback --accept-dirty-loss yes":     "--accept-dirty-loss yes is not known: accepted are node-loss, power-loss",
		"mode data writeback --without-fence yes":         "--without-fence yes is not known: accepted is AcceptTwoWriters",
		"mode data none --without-fence AcceptTwoWriters": "--without-fence AcceptTwoWriters is for mode writeback, and the mode is none",
		"resize data":                       "resize takes 2 argument(s), got 1: write `kubectl nearflash resize PVC SIZE`",
		"resize data 10Gib":                 "SIZE: \"10Gib\" is not a whole number of bytes; accepted are quantities such as 10Gi, 1.5Gi or 500M",
		"resize data 101%":                  "SIZE: \"101%\" is not a percentage; accepted are 1% to 100%",
		"resize data 0":                     "SIZE: a cache of \"0\" bytes: use cacheMode none for no cache",
		"drop":                              "drop takes 1 argument(s), got 0: write `kubectl nearflash drop PVC`",
		"drop data":                         "drop gives up the warm cache and there is nobody to ask: add --yes",
		"abandon":                           "abandon takes 1 argument(s), got 0: write `kubectl nearflash abandon VOLUME`",
		"abandon a b":                       "abandon takes 1 argument(s), got 2: write `kubectl nearflash abandon VOLUME`",
		"pools node/a":                      "\"node/a\" does not name a node: `kubectl get nodes` lists them",
		"doctor -o name":                    "-o name is not known: accepted are json, yaml",
		"doctor data":                       "doctor takes no arguments: leave out data; `kubectl nearflash describe data` looks at one volume",
		"version x":                         "version takes no arguments: leave out x",
		"version -o wide":                   "-o wide is not known: accepted are json, yaml",
		"completion":                        "completion takes the name of a shell: one of bash, zsh, fish, powershell",
		"completion tcsh":                   "there is no completion for tcsh: accepted are bash, zsh, fish, powershell",
		"list --kubeconfig=/none --context": "flag needs an argument: --context: see `kubectl nearflash list --help`",
	} {
		t.Run(args, func(t *testing.T) {
			code, out, errOut := newRig(t, strays()...).run(strings.Fields(args)...)
			if !strings.HasPrefix(errOut, "error: "+want) || strings.Count(errOut, "\n") != 1 || !strings.HasSuffix(errOut, "\n") {
				t.Errorf("errors are %q, want one line: %q", errOut, want)
			}
			if code != 1 || out != "" {
				t.Errorf("exit status %d, output %q", code, out)
			}
		})
	}
}

// Failures that every request may have come with a remedy too.
func TestFailures(t *testing.T) {
	resource := schema.GroupResource{Group: v1alpha1.GroupName, Resource: "cachedvolumes"}
	for tc, c := range map[string]struct {
		err  error
		want string
	}{
		"forbidden": {
			err:  apierrors.NewForbidden(resource, "", errors.New("not yours")),
			want: "error: list CachedVolumes: cachedvolumes.nearflash.io is forbidden: not yours: ask for the permissions in docs/reference/kubectl.md, or use another context\n",
		},
		"unreachable": {
			err:  &url.Error{Op: "Get", URL: "https://192.0.2.1", Err: errors.New("no route\nto host")},
			want: "error: list CachedVolumes: Get \"https://192.0.2.1\": no route to host: see whether `kubectl cluster-info` reaches the cluster, or choose another with --context\n",
		},
		"interrupted": {
			err:  context.Canceled,
			want: "error: list CachedVolumes: context canceled: interrupted; what was asked for stays asked for\n",
		},
	} {
		t.Run(tc, func(t *testing.T) {
			r := newRig(t)
			r.client = interceptor.NewClient(r.client.(client.WithWatch), interceptor.Funcs{
				List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return c.err },
			})
			code, _, errOut := r.run("list", "-A")
			expect(t, "errors", errOut, c.want)
			if code != 1 {
				t.Errorf("exit status %d", code)
			}
		})
	}
}
