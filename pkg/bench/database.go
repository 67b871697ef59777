package bench

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// ProfilePostgres is the profile that is not fio's: PostgreSQL with pgbench, on a volume with a
// filesystem. A run has it alone.
const ProfilePostgres = "postgres"

// MinDatabaseSize is the smallest volume, in bytes, that a database of some use fits on with its log.
// MinDatabaseMemory is what PostgreSQL and the filesystem need in any case, with some connections.
const (
	MinDatabaseSize   = 512 << 20
	MinDatabaseMemory = 128 << 20
)

const (
	// databaseShare of the volume are the tables and their indexes; the write-ahead log, temporary
	// files and the filesystem have the rest. walShare of it is what the log grows to between
	// checkpoints (max_wal_size, which is soft).
	databaseShare, walShare = 0.4, 0.1
	// minWAL is the least that PostgreSQL keeps of four segments.
	minWAL = 64 << 20
	// scaleBytes is what 100,000 accounts of pgbench take with their index.
	scaleBytes = 15 << 20
	// memoryShare of the volume is the pod's memory, page cache included: a third of the tables.
	memoryShare = 1.0 / 8
	// bufferShare of the memory are PostgreSQL's own buffers (shared_buffers).
	bufferShare = 0.2
	// spareConnections are for what is not pgbench's load.
	spareConnections = 10
	// defaultClients are as many as there are requests under way by default.
	defaultClients = 8
	// stopSeconds is how long a database may take to write what is left of its buffers.
	stopSeconds = 120
)

const (
	// runPath has what the database leaves outside of the volume: its socket and its log.
	runPath    = "/nearflash-bench-run"
	runVolume  = "run"
	dataPath   = mountPath + "/pgdata"
	serverName = "postgres"
	readyFile  = runPath + "/ready"
)

// Database is a database that is measured in the place of fio's profiles.
type Database struct {
	// Clients are connections of pgbench, each with one transaction at a time.
	Clients int
	// Scale is pgbench's: so many times 100,000 accounts.
	Scale int
	// Memory is the limit of the pod, its part of the node's page cache included. Without one, a node
	// with much memory answers all reads by itself.
	Memory resource.Quantity
	// WALBytes is what the write-ahead log grows to, softly.
	WALBytes int64
}

// PlanDatabase fits a database into volumes of a size in bytes. Clients and memory are chosen if they
// are 0.
func PlanDatabase(size int64, clients int, memory int64) *Database {
	if clients == 0 {
		clients = defaultClients
	}
	if memory == 0 {
		memory = max(MinDatabaseMemory, int64(memoryShare*float64(size)))
	}
	return &Database{
		Clients: clients, Scale: max(1, int(databaseShare*float64(size)/scaleBytes)), Memory: *resource.NewQuantity(memory, resource.BinarySI),
		WALBytes: max(minWAL, int64(walShare*float64(size))),
	}
}

// asServer runs what PostgreSQL refuses to do as root, and finds its programs where Debian has them.
const asServer = `PATH="$PATH$(printf ':%s' /usr/lib/postgresql/*/bin)"
server() { su -s /bin/sh postgres -c "export PATH='$PATH'; $1"; }
`

// serve is the first process of the pod: it makes a database unless the volume has one, starts it, and
// ends it as soon as it is told to, with its clients. A moment more has their last words come out.
func (d *Database) serve() string {
	options := fmt.Sprintf("-c listen_addresses= -c unix_socket_directories=%s -c max_connections=%d -c shared_buffers=%dMB -c max_wal_size=%dMB -c min_wal_size=32MB",
		runPath, d.Clients+spareConnections, int64(bufferShare*float64(d.Memory.Value()))>>20, d.WALBytes>>20)
	return `set -eu
` + asServer + fmt.Sprintf(`if ! [ -e %[1]s/PG_VERSION ]; then
  mkdir -m 700 -p %[1]s
  chown postgres %[1]s
  server "initdb -D %[1]s -U postgres -A trust -E UTF8 --locale=C >/dev/null"
fi
trap 'server "pg_ctl -D %[1]s -m fast -t %[4]d -w stop"; sleep 1; exit 0' TERM INT
server "pg_ctl -D %[1]s -t 600 -w -l %[2]s/log -o '%[3]s' start >/dev/null" || { cat %[2]s/log; exit 1; }
touch %[5]s
while :; do sleep 3600 & wait $!; done`, dataPath, runPath, options, stopSeconds, readyFile)
}

// databasePod changes the pod of a subject to one that has a database.
func (p *Plan) databasePod(pod *corev1.Pod) {
	c, grace := &pod.Spec.Containers[0], int64(stopSeconds+10)
	pod.Spec.TerminationGracePeriodSeconds = &grace
	c.Name, c.Command = serverName, []string{"sh", "-c", p.Database.serve()}
	// What is said in vain would be lost with the pod.
	c.TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	c.SecurityContext.Capabilities.Add = []corev1.Capability{"CHOWN", "DAC_OVERRIDE", "SETGID", "SETUID"}
	c.VolumeDevices = nil
	c.VolumeMounts = []corev1.VolumeMount{{Name: volumeName, MountPath: mountPath}, {Name: runVolume, MountPath: runPath}}
	c.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: p.Database.Memory}
	c.Resources.Requests = c.Resources.Limits
	c.ReadinessProbe = &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", "[ -e " + readyFile + " ]"}}},
		PeriodSeconds: 1, TimeoutSeconds: 10,
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: runVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
}

// prepare fills the database.
func (d *Database) prepare() string {
	return asServer + fmt.Sprintf(`pgbench -h %[1]s -U postgres -i -q -s %[2]d postgres >&2 && psql -h %[1]s -U postgres -q -c checkpoint postgres >&2`, runPath, d.Scale)
}

// load runs pgbench for some seconds, and prints a line for each transaction. pgbench writes its log to
// a file whose name ends with its process: that is made a link to where the lines are to go, which is a
// pipe of the shell's, because not every runtime gives a command one.
func (d *Database) load(seconds int) string {
	return asServer + fmt.Sprintf(`echo begin
{ sh -c 'ln -s /proc/self/fd/1 %[1]s/transactions.$$; exec pgbench -h %[1]s -U postgres -n -M prepared -c %[2]d -j 1 -T %[3]d -l --log-prefix=%[1]s/transactions postgres'
  echo "end $?"; } | cat`, runPath, d.Clients, seconds)
}
