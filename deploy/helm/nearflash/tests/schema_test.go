package charttest

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/driver"
)

// TestBadValues gives each case one wrong value and wants helm to name its place.
func TestBadValues(t *testing.T) {
	target := []string{"--set", "target.address=storage:9443", "--set", "target.tls.existingSecret=x"}
	class := append([]string{"--set", "storageClasses[0].name=c", "--set", "storageClasses[0].parameters.backend=iscsi"}, target...)
	on := []string{"--set", "origins.enabled=true"}
	other := []string{
		"--set", "storageClasses[0].name=c", "--set", "storageClasses[0].parameters.backend=csi", "--set", "storageClasses[0].parameters.originStorageClass=pd",
	}
	tests := map[string]struct {
		args []string
		want string
	}{
		"unknown key":                    {[]string{"--set", "nodes.x=1"}, "additional properties 'nodes' not allowed"},
		"unknown nested key":             {[]string{"--set", "node.pool.device=/dev/sdb"}, "'/node/pool': additional properties 'device' not allowed"},
		"pool of all nodes":              {[]string{"--set-json", `node.pools=[{"nodeSelector":{},"devices":[]}]`}, "'/node/pools/0/nodeSelector'"},
		"pool without devices":           {[]string{"--set-json", `node.pools=[{"nodeSelector":{"a":"b"}}]`}, "'/node/pools/0': missing property 'devices'"},
		"device to evacuate":             {[]string{"--set-json", `node.pool.evacuate=["nvme0n1"]`}, "'/node/pool/evacuate/0'"},
		"pool's device to evacuate":      {[]string{"--set-json", `node.pools=[{"nodeSelector":{"a":"b"},"devices":[],"evacuate":["nvme0n1"]}]`}, "'/node/pools/0/evacuate/0'"},
		"pool's device":                  {[]string{"--set-json", `node.pools=[{"nodeSelector":{"a":"b"},"devices":["nvme0n1"]}]`}, "'/node/pools/0/devices/0'"},
		"unknown sidecar":                {[]string{"--set", "images.registrar=a:b"}, "'/images': additional properties 'registrar' not allowed"},
		"image without tag":              {[]string{"--set", "images.node=nearflash-node"}, "'/images/node'"},
		"image with blanks":              {[]string{"--set", "images.node=a b:c"}, "'/images/node'"},
		"no architecture":                {[]string{"--set-json", "images.architectures=[]"}, "'/images/architectures'"},
		"unknown architecture":           {[]string{"--set-json", `images.architectures=["x86_64"]`}, "'/images/architectures/0'"},
		"pull policy":                    {[]string{"--set", "images.pullPolicy=Sometimes"}, "'/images/pullPolicy'"},
		"log level":                      {[]string{"--set", "logLevel=11"}, "'/logLevel'"},
		"log level as text":              {[]string{"--set-string", "logLevel=2"}, "'/logLevel'"},
		"target without port":            {[]string{"--set", "target.address=storage"}, "'/target/address'"},
		"target as URL":                  {[]string{"--set", "target.address=https://storage:9443"}, "'/target/address'"},
		"target without certificate":     {[]string{"--set", "target.address=storage:9443"}, "target.tls.existingSecret"},
		"certificate that is a path":     {[]string{"--set", "target.tls.ca=/etc/ca.crt"}, "'/target/tls/ca'"},
		"key that is a certificate":      {[]string{"--set", "target.tls.key=-----BEGIN CERTIFICATE-----"}, "'/target/tls/key'"},
		"short CHAP password":            {[]string{"--set", "chap.password=elevenchars"}, "'/chap/password'"},
		"CHAP password LIO ignores":      {[]string{"--set", "chap.password=NULLNULLNULL"}, "'/chap/password'"},
		"CHAP user with a blank":         {[]string{"--set", "chap.username=a b"}, "'/chap/username'"},
		"CHAP user empty":                {[]string{"--set", "chap.username="}, "'/chap/username'"},
		"policy of the host's network":   {[]string{"--set", "networkPolicy.enabled=true", "--set", "controller.hostNetwork=true"}, "switch controller.hostNetwork off, or networkPolicy.enabled"},
		"policy without the API server":  {[]string{"--set-json", "networkPolicy.apiServerPorts=[]"}, "'/networkPolicy/apiServerPorts'"},
		"policy of an unknown peer":      {[]string{"--set", "networkPolicy.metricsFrom[0].podsSelector.a=b"}, "additional properties 'podsSelector' not allowed"},
		"policy of no peer":              {[]string{"--set-json", "networkPolicy.metricsFrom=[{}]"}, "'/networkPolicy/metricsFrom/0'"},
		"class without target":           {[]string{"--set", "storageClasses[0].name=c", "--set", "storageClasses[0].parameters.backend=iscsi"}, "set target.address"},
		"class without parameters":       {append([]string{"--set", "storageClasses[0].name=c"}, target...), "'/storageClasses/0': missing property 'parameters'"},
		"class with unknown key":         {append([]string{"--set", "storageClasses[0].provisioner=x"}, class...), "additional properties 'provisioner' not allowed"},
		"class name":                     {append([]string{"--set", "storageClasses[0].name=Fast"}, class[2:]...), "'/storageClasses/0/name'"},
		"class parameter not text":       {append([]string{"--set", "storageClasses[0].parameters.cacheSize=10"}, class...), "'/storageClasses/0/parameters/cacheSize'"},
		"class with the chart's keys":    {append([]string{"--set", `storageClasses[0].parameters.csi\.storage\.k8s\.io/node-stage-secret-name=x`}, class...), "'/storageClasses/0/parameters'"},
		"class parameter unknown":        {append([]string{"--set", "storageClasses[0].parameters.cacheMod=none"}, class...), "additional properties 'cacheMod' not allowed"},
		"class mode":                     {append([]string{"--set", "storageClasses[0].parameters.cacheMode=fast"}, class...), "'/storageClasses/0/parameters/cacheMode'"},
		"unsafe class, less consent":     {append([]string{"--set", "storageClasses[0].parameters.cacheMode=writeback-unsafe", "--set", "storageClasses[0].parameters.acceptDirtyLoss=node-loss"}, class...), "'/storageClasses/0/parameters/acceptDirtyLoss'"},
		"unsafe class without consent":   {append([]string{"--set", "storageClasses[0].parameters.cacheMode=writeback-unsafe"}, class...), "missing property 'acceptDirtyLoss'"},
		"unsafe attributes, no consent":  {[]string{"--set", "volumeAttributesClasses[0].name=c", "--set", "volumeAttributesClasses[0].parameters.cacheMode=writeback-unsafe"}, "missing property 'acceptDirtyLoss'"},
		"class without consent":          {append([]string{"--set", "storageClasses[0].parameters.cacheMode=writeback"}, class...), "missing property 'acceptDirtyLoss'"},
		"class size":                     {append([]string{"--set", "storageClasses[0].parameters.cacheSize=ten"}, class...), "'/storageClasses/0/parameters/cacheSize'"},
		"class chunk":                    {append([]string{"--set", "storageClasses[0].parameters.chunkSize=big"}, class...), "'/storageClasses/0/parameters/chunkSize'"},
		"class dirty limit":              {append([]string{"--set", "storageClasses[0].parameters.maxDirtyAge=5d"}, class...), "'/storageClasses/0/parameters/maxDirtyAge'"},
		"class filesystem":               {append([]string{"--set", "storageClasses[0].parameters.fsType=btrfs"}, class...), "'/storageClasses/0/parameters/fsType'"},
		"class provisioning":             {append([]string{"--set", "storageClasses[0].parameters.provisioning=fat"}, class...), "'/storageClasses/0/parameters/provisioning'"},
		"class backend":                  {append(slices.Clone(class), "--set", "storageClasses[0].parameters.backend=nfs"), "'/storageClasses/0/parameters/backend'"},
		"origins without enabled":        {[]string{"--set", "origins.on=true"}, "'/origins': additional properties 'on' not allowed"},
		"origins where the driver is":    {[]string{"--set", "origins.enabled=true", "--set", "origins.namespace=" + namespace}, "origins.namespace is the namespace of the release"},
		"namespace with a dot":           {[]string{"--set", "origins.namespace=a.b"}, "'/origins/namespace'"},
		"class of an origin, off":        {other, "class c has backend csi: set origins.enabled"},
		"class of no origin":             {append(slices.Clone(on), "--set", "storageClasses[0].name=c", "--set", "storageClasses[0].parameters.backend=csi"), "missing property 'originStorageClass'"},
		"class of a LUN with an origin":  {append(slices.Clone(class), "--set", "storageClasses[0].parameters.originStorageClass=pd"), "'/storageClasses/0/parameters/originStorageClass'"},
		"class of an origin, allocated":  {append(slices.Concat(on, other), "--set", "storageClasses[0].parameters.provisioning=thin"), "'/storageClasses/0/parameters/provisioning'"},
		"secret without a namespace":     {append(slices.Concat(on, other), "--set", "storageClasses[0].nodeStageSecret.name=x"), "missing property 'namespace'"},
		"topology without values":        {append(slices.Concat(on, other), "--set", "storageClasses[0].allowedTopologies[0].matchLabelExpressions[0].key=x"), "missing property 'values'"},
		"topology of the provisioner's":  {append(slices.Concat(on, other), "--set", "storageClasses[0].allowedTopologies[0].matchLabelExpressions[0].key=zone", "--set", "storageClasses[0].allowedTopologies[0].matchLabelExpressions[0].values={a}"), "only topology.nearflash.io/node can be there"},
		"reclaim policy":                 {append([]string{"--set", "storageClasses[0].reclaimPolicy=Recycle"}, class...), "'/storageClasses/0/reclaimPolicy'"},
		"binding mode":                   {append([]string{"--set", "storageClasses[0].volumeBindingMode=Late"}, class...), "'/storageClasses/0/volumeBindingMode'"},
		"mount options in one string":    {append([]string{"--set", `storageClasses[0].mountOptions[0]=noatime\,nodiratime`}, class...), "'/storageClasses/0/mountOptions/0'"},
		"attributes without parameters":  {[]string{"--set", "volumeAttributesClasses[0].name=c"}, "'/volumeAttributesClasses/0': missing property 'parameters'"},
		"attributes that change nothing": {[]string{"--set", "volumeAttributesClasses[0].name=c", "--set-json", "volumeAttributesClasses[0].parameters={}"}, "'/volumeAttributesClasses/0/parameters'"},
		"attribute that stays":           {[]string{"--set", "volumeAttributesClasses[0].name=c", "--set", "volumeAttributesClasses[0].parameters.fsType=xfs"}, "additional properties 'fsType' not allowed"},
		"attribute mode":                 {[]string{"--set", "volumeAttributesClasses[0].name=c", "--set", "volumeAttributesClasses[0].parameters.cacheMode=fast"}, "'/volumeAttributesClasses/0/parameters/cacheMode'"},
		"attribute size":                 {[]string{"--set", "volumeAttributesClasses[0].name=c", "--set", "volumeAttributesClasses[0].parameters.cacheSize=0%"}, "'/volumeAttributesClasses/0/parameters/cacheSize'"},
		"attributes without consent":     {[]string{"--set", "volumeAttributesClasses[0].name=c", "--set", "volumeAttributesClasses[0].parameters.cacheMode=writeback"}, "missing property 'acceptDirtyLoss'"},
		"device outside /dev":            {[]string{"--set", "node.pool.devices[0]=/tmp/ssd.img"}, "'/node/pool/devices/0'"},
		"device that climbs":             {[]string{"--set", "node.pool.devices[0]=/dev/../etc/passwd"}, "'/node/pool/devices/0'"},
		"devices as one string":          {[]string{"--set", "node.pool.devices=/dev/sdb"}, "'/node/pool/devices'"},
		"device twice":                   {[]string{"--set", "node.pool.devices={/dev/sdb,/dev/sdb}"}, "'/node/pool/devices'"},
		"redundancy":                     {[]string{"--set", "node.pool.redundancy=raid5"}, "'/node/pool/redundancy'"},
		"checksums of a mirror":          {[]string{"--set", "node.pool.redundancy=mirror,node.pool.integrity=true"}, "'/node/pool': 'not' failed"},
		"relative kubelet directory":     {[]string{"--set", "node.kubeletDir=var/lib/kubelet"}, "'/node/kubeletDir'"},
		"kubelet directory with a /":     {[]string{"--set", "node.kubeletDir=/var/lib/kubelet/"}, "'/node/kubeletDir'"},
		"no state directory":             {[]string{"--set", "node.stateDir="}, "'/node/stateDir'"},
		"privileged port":                {[]string{"--set", "node.healthPort=80"}, "'/node/healthPort'"},
		"sending at a privileged port":   {[]string{"--set", "node.warmStart.streamPort=860"}, "'/node/warmStart/streamPort'"},
		"exporting at a privileged port": {[]string{"--set", "node.warmStart.port=860"}, "'/node/warmStart/port'"},
		"bandwidth as a quantity":        {[]string{"--set", "node.warmStart.bandwidth=64Mi"}, "'/node/warmStart/bandwidth'"},
		"another method":                 {[]string{"--set", "node.warmStart.method=copy"}, "'/node/warmStart/method'"},
		"negative bandwidth":             {[]string{"--set", "node.warmStart.nodeBandwidth=-1"}, "'/node/warmStart/nodeBandwidth'"},
		"unknown part of warm start":     {[]string{"--set", "node.warmStart.deadline=1h"}, "'/node/warmStart': additional properties 'deadline' not allowed"},
		"retained cache TTL in days":     {[]string{"--set", "node.retainedCacheTTL=3d"}, "'/node/retainedCacheTTL'"},
		"attribute warm start":           {[]string{"--set", "volumeAttributesClasses[0].name=c", "--set", "volumeAttributesClasses[0].parameters.warmStart=disk"}, "'/volumeAttributesClasses/0/parameters/warmStart'"},
		"attribute method":               {[]string{"--set", "volumeAttributesClasses[0].name=c", "--set", "volumeAttributesClasses[0].parameters.warmStartMethod=copy"}, "'/volumeAttributesClasses/0/parameters/warmStartMethod'"},
		"class preload":                  {[]string{"--set", "storageClasses[0].name=c", "--set", "storageClasses[0].parameters.preload=some"}, "'/storageClasses/0/parameters/preload'"},
		"attribute preload":              {[]string{"--set", "volumeAttributesClasses[0].name=c", "--set", "volumeAttributesClasses[0].parameters.preload=some"}, "'/volumeAttributesClasses/0/parameters/preload'"},
		"class method":                   {[]string{"--set", "storageClasses[0].name=c", "--set", "storageClasses[0].parameters.warmStartMethod=copy"}, "'/storageClasses/0/parameters/warmStartMethod'"},
		"attribute bandwidth":            {[]string{"--set", "volumeAttributesClasses[0].name=c", "--set", "volumeAttributesClasses[0].parameters.warmStartBandwidth=fast"}, "'/volumeAttributesClasses/0/parameters/warmStartBandwidth'"},
		"attribute deadline":             {[]string{"--set", "volumeAttributesClasses[0].name=c", "--set", "volumeAttributesClasses[0].parameters.warmStartDeadline=1d"}, "'/volumeAttributesClasses/0/parameters/warmStartDeadline'"},
		"unknown target":                 {[]string{"--set", "node.withoutTargets={klone}"}, "'/node/withoutTargets/0'"},
		"target twice":                   {[]string{"--set", "node.withoutTargets={clone,clone}"}, "'/node/withoutTargets'"},
		"negative volume limit":          {[]string{"--set", "node.maxVolumes=-1"}, "'/node/maxVolumes'"},
		"share above the pool":           {[]string{"--set", "node.namespaceSharePercent=101"}, "'/node/namespaceSharePercent'"},
		"no kind of volume":              {[]string{"--set", "node.iscsi=false"}, "node.iscsi: false leaves no kind of volume"},
		"a storage server of no use":     {[]string{"--set", "node.iscsi=false,origins.enabled=true,target.address=192.0.2.1:9443,target.tls.existingSecret=x"}, "keeps nodes from volumes of the storage server"},
		"share as text":                  {[]string{"--set-string", "node.namespaceSharePercent=25%"}, "'/node/namespaceSharePercent'"},
		"a value of an earlier version":  {[]string{"--set", "target.optional=true"}, "'optional'"},
		"update strategy":                {[]string{"--set", "node.updateStrategy.type=Recreate"}, "'/node/updateStrategy/type'"},
		"nothing may be unavailable":     {[]string{"--set", "node.updateStrategy.maxUnavailable=0"}, "'/node/updateStrategy/maxUnavailable'"},
		"privileged webhook port":        {[]string{"--set", "scheduling.port=443"}, "'/scheduling/port'"},
		"weight above the scheduler's":   {[]string{"--set", "scheduling.weights.warm=101"}, "'/scheduling/weights/warm'"},
		"negative weight":                {[]string{"--set", "scheduling.weights.free=-1"}, "'/scheduling/weights/free'"},
		"unknown weight":                 {[]string{"--set", "scheduling.weights.cold=1"}, "'/scheduling/weights': additional properties 'cold' not allowed"},
		"negative replicas":              {[]string{"--set", "controller.replicas=-1"}, "'/controller/replicas'"},
		"timeout without a unit":         {[]string{"--set-string", "controller.sidecars.timeout=60"}, "'/controller/sidecars/timeout'"},
		"memory quantity":                {[]string{"--set", "node.resources.limits.memory=512MB"}, "'/node/resources/limits/memory'"},
		"unknown resource":               {[]string{"--set", "node.resources.limits.gpu=1"}, "'/node/resources/limits'"},
		"toleration effect":              {[]string{"--set", "node.tolerations[0].effect=Never"}, "'/node/tolerations/0/effect'"},
		"unknown affinity":               {[]string{"--set", "node.affinity.anti.x=1"}, "'/node/affinity'"},
		"label value":                    {[]string{"--set", "node.podLabels.tier=a b"}, "'/node/podLabels/tier'"},
		"metrics for nobody":             {[]string{"--set", "metrics.insecure=true"}, "'/metrics': additional properties 'insecure' not allowed"},
		"scrape without a unit":          {[]string{"--set", "metrics.podMonitor.interval=30"}, "'/metrics/podMonitor/interval'"},
		"unknown threshold":              {[]string{"--set", "metrics.alerts.thresholds.wear=1"}, "'/metrics/alerts/thresholds'"},
		"threshold in percent":           {[]string{"--set", "metrics.alerts.thresholds.wearRatio=80"}, "'/metrics/alerts/thresholds/wearRatio'"},
		"runbook with a fragment":        {[]string{"--set", "metrics.alerts.runbookURL=https://example.com/x#y"}, "'/metrics/alerts/runbookURL'"},
		"budget that blocks drains":      {[]string{"--set", "controller.podDisruptionBudget.maxUnavailable=0"}, "'/controller/podDisruptionBudget/maxUnavailable'"},
		"budget with a minimum":          {[]string{"--set", "controller.podDisruptionBudget.minAvailable=1"}, "'/controller/podDisruptionBudget': additional properties 'minAvailable' not allowed"},
		"spread over nothing":            {[]string{"--set", "controller.topologySpreadConstraints[0].maxSkew=1"}, "'/controller/topologySpreadConstraints/0'"},
		"spread with a selector":         {[]string{"--set-json", `controller.topologySpreadConstraints=[{"topologyKey":"a","maxSkew":1,"whenUnsatisfiable":"DoNotSchedule","labelSelector":{}}]`}, "'/controller/topologySpreadConstraints/0': additional properties 'labelSelector' not allowed"},
		"spread that may be broken":      {[]string{"--set-json", `controller.topologySpreadConstraints=[{"topologyKey":"a","maxSkew":1,"whenUnsatisfiable":"Maybe"}]`}, "'/controller/topologySpreadConstraints/0/whenUnsatisfiable'"},
		"old Kubernetes":                 {[]string{"--kube-version", "1.33.0"}, "incompatible with Kubernetes"},
	}
	for name, tc := range tests {
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

// TestSchemaKnowsTheDriver wants the parameters of classes in the schema to be those
// that the driver accepts: no fewer, which would refuse what works, and no more.
func TestSchemaKnowsTheDriver(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chartDir, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	type node struct {
		Properties map[string]json.RawMessage
		Items      struct{ Properties map[string]json.RawMessage }
	}
	unmarshal := func(text []byte) node {
		var n node
		if err := json.Unmarshal(text, &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	root := unmarshal(text)
	for list, want := range map[string][]string{"storageClasses": driver.ClassParameters(), "volumeAttributesClasses": driver.MutableParameters()} {
		parameters := unmarshal(unmarshal(root.Properties[list]).Items.Properties["parameters"])
		got := slices.Sorted(maps.Keys(parameters.Properties))
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("parameters of %s (-driver +schema):\n%s", list, diff)
		}
	}
}

// TestSchemaIsClosed wants every object of the schema to refuse unknown keys and
// every value to be described. Affinity and peers of NetworkPolicies are checked by the API server.
func TestSchemaIsClosed(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chartDir, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	for _, problem := range openParts("", schema) {
		if !strings.HasPrefix(problem, "/$defs/affinity/properties/") && !strings.HasPrefix(problem, "/properties/networkPolicy/properties/metricsFrom/items/properties/") {
			t.Error(problem)
		}
	}
	for _, problem := range undescribed("", schema) {
		t.Error(problem)
	}
}

// openParts lists the objects below a schema node that accept unknown keys.
func openParts(path string, node any) []string {
	var problems []string
	switch node := node.(type) {
	case map[string]any:
		if node["type"] == "object" && node["additionalProperties"] != false {
			problems = append(problems, path+": additionalProperties is not false")
		}
		for key, child := range node {
			problems = append(problems, openParts(path+"/"+key, child)...)
		}
	case []any:
		for i, child := range node {
			problems = append(problems, openParts(fmt.Sprintf("%s/%d", path, i), child)...)
		}
	}
	return problems
}

// undescribed lists the values below an object schema that have no description.
func undescribed(path string, node map[string]any) []string {
	var problems []string
	if items, ok := node["items"].(map[string]any); ok {
		problems = append(problems, undescribed(path+"[]", items)...)
	}
	properties, _ := node["properties"].(map[string]any)
	for key, child := range properties {
		child, ok := child.(map[string]any)
		if !ok {
			problems = append(problems, path+"."+key+": not a schema")
			continue
		}
		if text, _ := child["description"].(string); text == "" {
			problems = append(problems, path+"."+key+": no description")
		}
		problems = append(problems, undescribed(path+"."+key, child)...)
	}
	return problems
}
