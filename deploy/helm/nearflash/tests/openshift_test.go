package charttest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// constraints are the SecurityContextConstraints of OpenShift, as far as the chart has them.
type constraints struct {
	Metadata                                                              struct{ Name string }
	AllowPrivilegedContainer, AllowPrivilegeEscalation                    bool
	AllowHostDirVolumePlugin, AllowHostNetwork, AllowHostPorts            bool
	AllowHostPID, AllowHostIPC, ReadOnlyRootFilesystem                    bool
	AllowedCapabilities, DefaultAddCapabilities, RequiredDropCapabilities []string
	RunAsUser                                                             struct {
		Type string
		UID  int64
	}
	SeccompProfiles, Volumes, Users []string
}

// TestSecurityContextConstraints: they let the pods of the accounts they name do what those
// pods ask for, and nothing else.
func TestSecurityContextConstraints(t *testing.T) {
	base := []string{"--set", "openshift.securityContextConstraints=true"}
	for name, args := range map[string][]string{
		"everything":   {"--set", "target.address=s:9443", "--set", "target.tls.existingSecret=x", "--set", "metrics.certSecret=certificates"},
		"host network": {"--set", "target.address=s:9443", "--set", "target.tls.existingSecret=x", "--set", "metrics.certSecret=certificates", "--set", "controller.hostNetwork=true"},
	} {
		t.Run(name, func(t *testing.T) {
			objects := mustTemplate(t, append(slices.Clone(base), args...)...)
			all := allConstraints(t, objects)
			if len(all) != 2 {
				t.Fatalf("%d constraints, want those of node plugin and controller", len(all))
			}
			for _, c := range all {
				want := constraints{}
				for _, pod := range podsIn(t, objects) {
					account := "system:serviceaccount:" + namespace + ":" + pod.spec.ServiceAccountName
					if slices.Contains(c.Users, account) {
						want.need(pod)
						want.Users = append(want.Users, account)
					}
				}
				if got := c.sorted(); !cmp.Equal(want.sorted(), got) {
					t.Errorf("%s (-needed +given):\n%s", c.Metadata.Name, cmp.Diff(want.sorted(), got))
				}
			}
		})
	}
	for _, object := range mustTemplate(t) {
		if object.GetKind() == "SecurityContextConstraints" {
			t.Errorf("%s is rendered without being asked for", object.GetName())
		}
	}
}

func allConstraints(t *testing.T, objects []*unstructured.Unstructured) []constraints {
	t.Helper()
	var out []constraints
	for _, object := range objects {
		if object.GetKind() != "SecurityContextConstraints" {
			continue
		}
		var c constraints
		text, err := object.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &c); err != nil {
			t.Fatal(err)
		}
		out = append(out, c)
	}
	return out
}

// need adds what a pod asks for.
func (c *constraints) need(pod podOf) {
	c.AllowHostNetwork = c.AllowHostNetwork || pod.spec.HostNetwork
	c.AllowHostPID = c.AllowHostPID || pod.spec.HostPID
	c.AllowHostIPC = c.AllowHostIPC || pod.spec.HostIPC
	c.AllowHostPorts = c.AllowHostPorts || pod.spec.HostNetwork
	c.Volumes = append(c.Volumes, "projected") // the token for the API server
	for _, v := range pod.spec.Volumes {
		c.Volumes = append(c.Volumes, volumeKind(v))
	}
	c.AllowHostDirVolumePlugin = slices.Contains(c.Volumes, "hostPath")
	c.ReadOnlyRootFilesystem = true
	for _, container := range pod.spec.Containers {
		s := container.SecurityContext
		if s.Privileged != nil && *s.Privileged {
			c.AllowPrivilegedContainer, c.AllowPrivilegeEscalation, c.ReadOnlyRootFilesystem = true, true, false
			c.AllowedCapabilities, c.SeccompProfiles = []string{"*"}, []string{"unconfined"}
			c.RunAsUser.Type = "RunAsAny"
			continue
		}
		c.RunAsUser.Type, c.RunAsUser.UID = "MustRunAs", *pod.spec.SecurityContext.RunAsUser
		c.SeccompProfiles, c.RequiredDropCapabilities = []string{"runtime/default"}, []string{"ALL"}
	}
}

// volumeKind is the name of the field of a volume that says what it is.
func volumeKind(v corev1.Volume) string {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&v)
	if err != nil {
		panic(err)
	}
	for kind := range fields {
		if kind != "name" {
			return kind
		}
	}
	return ""
}

// sorted is a form that can be compared.
func (c constraints) sorted() string {
	c.Metadata.Name = ""
	for _, list := range []*[]string{&c.Volumes, &c.Users, &c.AllowedCapabilities, &c.DefaultAddCapabilities, &c.RequiredDropCapabilities, &c.SeccompProfiles} {
		sorted := slices.Sorted(slices.Values(*list))
		*list = slices.Compact(sorted)
	}
	return strings.ReplaceAll(fmt.Sprintf("%+v", c), " ", "\n")
}
