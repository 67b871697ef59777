package charttest

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// secondServer are values with one storage server more.
func secondServer(more ...string) []string {
	return append([]string{"--set", "targets[0].name=second", "--set", "targets[0].address=192.0.2.8:9443", "--set", "targets[0].tls.existingSecret=y"}, more...)
}

// listed is what the controller reads of a storage server.
type listed struct {
	Name       string `json:"name"`
	Address    string `json:"address"`
	ServerName string `json:"serverName"`
	CA         string `json:"ca"`
	Cert       string `json:"cert"`
	Key        string `json:"key"`
}

// TestTargets: the list is where the controller is told, it has each server, and every file that it
// names is mounted, from the Secret of that server.
func TestTargets(t *testing.T) {
	objects := mustTemplate(t, valuesArgs("targets")...)
	config := convert[corev1.ConfigMap](t, find(objects, "ConfigMap", "nearflash-targets"))
	var got []listed
	if err := yaml.UnmarshalStrict([]byte(config.Data["targets.yaml"]), &got); err != nil {
		t.Fatal(err)
	}
	of := func(name, address, serverName string) listed {
		dir := path.Join("/etc/nearflash/target-tls", name)
		return listed{name, address, serverName, dir + "/ca.crt", dir + "/tls.crt", dir + "/tls.key"}
	}
	want := []listed{of("archive", "[2001:db8::20]:9443", ""), of("rack-2", "storage-2.example.com:9443", "storage")}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("targets.yaml (-want +rendered):\n%s", diff)
	}
	pod := convert[appsv1.Deployment](t, find(objects, "Deployment", "nearflash-controller")).Spec.Template.Spec
	files := filesOf(t, pod)
	if !slices.Contains(pod.Containers[0].Args, "--targets=/etc/nearflash/targets/targets.yaml") || files["/etc/nearflash/targets"] != "ConfigMap nearflash-targets" {
		t.Errorf("the controller is started with %v, and has %v", pod.Containers[0].Args, files)
	}
	for i, secret := range []string{"nearflash-target-archive", "nearflash-target-client-rack-2"} {
		for _, file := range []string{got[i].CA, got[i].Cert, got[i].Key} {
			if want := "Secret " + secret + " " + path.Base(file); files[file] != want {
				t.Errorf("%s is of %q, want %q", file, files[file], want)
			}
		}
		made := find(objects, "Secret", secret)
		if inline := got[i].Name == "rack-2"; inline != (made != nil) {
			t.Errorf("Secret %s is rendered: %v", secret, made != nil)
		}
	}
}

// filesOf is what is mounted where, of ConfigMaps and of projected Secrets, in the first container.
func filesOf(t *testing.T, pod corev1.PodSpec) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, mount := range pod.Containers[0].VolumeMounts {
		i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })
		if i < 0 {
			t.Fatalf("mount %s is of no volume", mount.Name)
		}
		volume := pod.Volumes[i]
		if volume.ConfigMap != nil {
			files[mount.MountPath] = "ConfigMap " + volume.ConfigMap.Name
		}
		if volume.Projected == nil {
			continue
		}
		for _, source := range volume.Projected.Sources {
			for _, item := range source.Secret.Items {
				files[path.Join(mount.MountPath, item.Path)] = "Secret " + source.Secret.Name + " " + item.Key
			}
		}
	}
	return files
}

// TestTargetsRollOut: a controller that runs has read the list at its start, and is replaced when
// that changes.
func TestTargetsRollOut(t *testing.T) {
	sum := func(args ...string) string {
		objects := mustTemplate(t, args...)
		return convert[appsv1.Deployment](t, find(objects, "Deployment", "nearflash-controller")).Spec.Template.Annotations["checksum/targets"]
	}
	before, after := sum(secondServer()...), sum(secondServer("--set", "targets[0].address=192.0.2.9:9443")...)
	if before == "" || before == after {
		t.Errorf("the pods have %q before the address of a server changes, and %q then", before, after)
	}
	if none := sum(); none != "" {
		t.Errorf("without servers the pods have %q", none)
	}
}

// TestOnlyNamedTargets: servers with names alone are a storage server as the default one is: the
// controller makes accounts, and reaches them.
func TestOnlyNamedTargets(t *testing.T) {
	objects := mustTemplate(t, secondServer("--set", "networkPolicy.enabled=true", "--set", "targets[1].name=third", "--set", "targets[1].address=[fd00::10]:9444", "--set", "targets[1].tls.existingSecret=z")...)
	args := convert[appsv1.Deployment](t, find(objects, "Deployment", "nearflash-controller")).Spec.Template.Spec.Containers[0].Args
	if !slices.Contains(args, "--chap-secret=nearflash-chap") || strings.Contains(strings.Join(args, " "), "--target-") {
		t.Errorf("arguments: %v", args)
	}
	if find(objects, "ValidatingAdmissionPolicy", "nearflash-controller-secrets") == nil {
		t.Error("no policy limits the Secrets that the controller makes")
	}
	const want = "UDP 53, TCP 53; TCP 443, TCP 6443; TCP 9443 to 192.0.2.8/32; TCP 9444 to fd00::10/128"
	if got := egress(networkPolicies(t, objects)["nearflash-controller"]); got != want {
		t.Errorf("egress: %s, want %s", got, want)
	}
}

// TestBadTargets wants helm to refuse, with its reason, what no controller would start with, and
// classes whose volumes nobody would make.
func TestBadTargets(t *testing.T) {
	first := []string{"--set", "target.address=192.0.2.7:9443", "--set", "target.tls.existingSecret=x"}
	class := func(parameters ...string) []string {
		args := []string{"--set", "storageClasses[0].name=c", "--set", "storageClasses[0].parameters.cacheMode=writethrough"}
		for _, p := range parameters {
			args = append(args, "--set", "storageClasses[0].parameters."+p)
		}
		return args
	}
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"the same name":         {secondServer("--set", "targets[1].name=second", "--set", "targets[1].address=b:1", "--set", "targets[1].tls.existingSecret=z"), "two entries have the name second"},
		"the same address":      {secondServer("--set", "targets[1].name=third", "--set", "targets[1].address=192.0.2.8:9443", "--set", "targets[1].tls.existingSecret=z"), "third has the address 192.0.2.8:9443, which another storage server has"},
		"the default's address": {secondServer("--set", "target.address=Storage:9443", "--set", "target.tls.existingSecret=x", "--set", "targets[0].address=storage:9443"), "second has the address storage:9443, which another storage server has"},
		"no certificate":        {[]string{"--set", "targets[0].name=second", "--set", "targets[0].address=b:1"}, "give second tls.existingSecret, or all of"},
		"half of them":          {secondServer("--set", "targets[0].tls.existingSecret=", "--set-string", "targets[0].tls.ca=-----BEGIN CERTIFICATE-----"), "give second tls.existingSecret, or all of"},
		"no name":               {[]string{"--set", "targets[0].address=b:1"}, "'/targets/0': missing property 'name'"},
		"no address":            {[]string{"--set", "targets[0].name=second"}, "'/targets/0': missing property 'address'"},
		"an empty address":      {secondServer("--set", "targets[0].address="), "'/targets/0/address'"},
		"a name with a dot":     {secondServer("--set", "targets[0].name=rack.2"), "'/targets/0/name'"},
		"a long name":           {secondServer("--set", "targets[0].name="+strings.Repeat("a", 64)), "'/targets/0/name'"},
		"a key that is none":    {secondServer("--set", "targets[0].tls.key=x"), "'/targets/0/tls/key'"},
		"an unknown key":        {secondServer("--set", "targets[0].zone=x"), "additional properties 'zone' not allowed"},
		"class of no entry":     {secondServer(class("target=third")...), "class c has target third, which is no entry of targets; accepted: second"},
		"class of no entries":   {append(first, class("target=third")...), "accepted: none, as targets is empty"},
		"class without target":  {secondServer(class()...), "class c has no target, and target.address is empty: set parameters.target to one of second"},
		"target of backend csi": {secondServer(class("backend=csi", "originStorageClass=pd", "target=second")...), "class c has target second and backend csi"},
		"nodes without iSCSI":   {secondServer("--set", "node.iscsi=false", "--set", "origins.enabled=true"), "take target.address and targets away"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := template(t.Context(), tc.args...)
			if err == nil {
				t.Fatalf("helm accepts %q", tc.args)
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error does not contain %q:\n%v", tc.want, err)
			}
		})
	}
}
