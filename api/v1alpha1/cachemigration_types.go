package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ExportState says whether a node exports a retained cache to another one. Lent is the word of
// versions before for Exported, which only they write: [ExportState.Now].
//
// +kubebuilder:validation:Enum=Preparing;Exported;Lent;Refused;Released
type ExportState string

const (
	// ExportStatePreparing means that the source node has seen the request and needs time.
	ExportStatePreparing ExportState = "Preparing"
	// ExportStateExported means that the source node exports its retained cache.
	ExportStateExported ExportState = "Exported"
	// ExportStateRefused means that the source node has nothing that it could serve.
	ExportStateRefused ExportState = "Refused"
	// ExportStateReleased means that the source node does not serve any more.
	ExportStateReleased ExportState = "Released"
)

// exportStateLent is the word of versions before for Exported.
const exportStateLent ExportState = "Lent"

// Now is the state in the words of this version: a move may have been begun by one before, and
// goes on.
func (s ExportState) Now() ExportState {
	if s == exportStateLent {
		return ExportStateExported
	}
	return s
}

// ServedFrom says where a hydration reads.
//
// +kubebuilder:validation:Enum=Peer;Origin
type ServedFrom string

const (
	// ServedFromPeer is the cache of the source node.
	ServedFromPeer ServedFrom = "Peer"
	// ServedFromOrigin is the remote volume itself.
	ServedFromOrigin ServedFrom = "Origin"
)

// MigrationOutcome is how a migration ended.
//
// +kubebuilder:validation:Enum=Completed;Ended;Failed
type MigrationOutcome string

const (
	// MigrationCompleted means that everything has been copied.
	MigrationCompleted MigrationOutcome = "Completed"
	// MigrationEnded means that the volume left the node, or its cache was taken
	// away, before that.
	MigrationEnded MigrationOutcome = "Ended"
	// MigrationFailed means that the cache was started cold, or from the hot set.
	MigrationFailed MigrationOutcome = "Failed"
)

// MigrationPurpose says why a cache is copied.
//
// +kubebuilder:validation:Enum=Move;Prewarm;Read
type MigrationPurpose string

const (
	// MigrationMove follows a volume to its new owner.
	MigrationMove MigrationPurpose = "Move"
	// MigrationPrewarm copies the cache of an attached volume before it moves.
	MigrationPrewarm MigrationPurpose = "Prewarm"
	// MigrationRead fills the cache of one of the nodes that read a volume.
	MigrationRead MigrationPurpose = "Read"
)

// MigrationMethod is how the cache of the destination node is filled.
//
// +kubebuilder:validation:Enum=Clone;Stream;HotSet;Preload
type MigrationMethod string

const (
	// MigrationClone reads through the cache of the source node from the first I/O on.
	MigrationClone MigrationMethod = "Clone"
	// MigrationStream has the source node send its cache, while the volume runs on its
	// origin.
	MigrationStream MigrationMethod = "Stream"
	// MigrationHotSet reads from the origin the blocks that were hottest.
	MigrationHotSet MigrationMethod = "HotSet"
	// MigrationPreload reads from the origin all blocks that the cache has room for.
	MigrationPreload MigrationMethod = "Preload"
)

// Condition types and reasons of a CacheMigration.
const (
	// ConditionCompleted is True when everything has been copied, False when it
	// will not be, and Unknown until then.
	ConditionCompleted = "Completed"

	ReasonMigrationRunning   = "Running"
	ReasonMigrationCompleted = "Completed"
	ReasonMigrationEnded     = "Ended"
	ReasonMigrationFailed    = "Failed"
)

// CacheMigrationSpec is what the destination node asks for. It cannot be changed.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="the spec of a CacheMigration cannot be changed"
// +kubebuilder:validation:XValidation:rule="has(self.sourceNode) == has(self.sourceGeneration)",message="sourceNode and sourceGeneration go together"
// +kubebuilder:validation:XValidation:rule="has(self.destinationPublicKey) == (has(self.sourceNode) && !(has(self.method) && self.method == 'Stream'))",message="sourceNode and destinationPublicKey go together, and method Stream has no key"
// +kubebuilder:validation:XValidation:rule="!has(self.method) || has(self.sourceNode) == !(self.method in ['HotSet', 'Preload'])",message="methods Clone and Stream need a sourceNode, and HotSet and Preload have none"
// +kubebuilder:validation:XValidation:rule="!has(self.sourceNode) || self.sourceNode != self.destinationNode",message="sourceNode and destinationNode must differ"
// +kubebuilder:validation:XValidation:rule="!has(self.sourceGeneration) || self.sourceGeneration < self.generation || self.purpose in ['Prewarm', 'Read']",message="sourceGeneration must be below generation"
// +kubebuilder:validation:XValidation:rule="self.purpose != 'Prewarm' || (has(self.sourceGeneration) && self.sourceGeneration == self.generation)",message="purpose Prewarm needs a sourceNode, and sourceGeneration must be generation"
// +kubebuilder:validation:XValidation:rule="self.purpose != 'Read' || !has(self.sourceGeneration) || self.sourceGeneration == self.generation",message="purpose Read needs a sourceGeneration that is generation"
// +kubebuilder:validation:XValidation:rule="(self.purpose == 'Prewarm') == has(self.prewarmRequest)",message="purpose Prewarm and prewarmRequest go together"
type CacheMigrationSpec struct {
	// volumeName is the CachedVolume.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	VolumeName string `json:"volumeName,omitempty"`

	// volumeUID is the UID of the CachedVolume.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	VolumeUID string `json:"volumeUID,omitempty"`

	// purpose is Move for a volume's new owner, Prewarm for a node that may own it later, and
	// Read for one of the nodes that read it.
	// +optional
	// +default="Move"
	Purpose MigrationPurpose `json:"purpose,omitempty"`

	// prewarmRequest is the request of the CachedVolume that a Prewarm carries out.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	PrewarmRequest string `json:"prewarmRequest,omitempty"`

	// method is how the cache is filled; absent is Clone if there is a sourceNode, else
	// HotSet.
	// +optional
	Method MigrationMethod `json:"method,omitempty"`

	// methodReason says why it is filled by this method.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	MethodReason string `json:"methodReason,omitempty"`

	// generation is the ownership generation of the destination node; of a Prewarm, that
	// of the source node.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=9007199254740991
	Generation int64 `json:"generation,omitempty"`

	// sourceNode is the node that is asked for its retained cache; absent if the cache is
	// filled from the origin.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	SourceNode string `json:"sourceNode,omitempty"`

	// sourceGeneration is the ownership generation that filled the retained cache.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=9007199254740991
	SourceGeneration int64 `json:"sourceGeneration,omitempty"`

	// destinationNode is the node whose cache is filled.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	DestinationNode string `json:"destinationNode,omitempty"`

	// bandwidthBytesPerSecond bounds the copy in the background, in bytes per
	// second; 0 or absent is no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	BandwidthBytesPerSecond *int64 `json:"bandwidthBytesPerSecond,omitempty"`

	// deadline is when the source node stops serving; absent if there is none.
	// +optional
	Deadline metav1.Time `json:"deadline,omitempty,omitzero"`

	// destinationPublicKey is the destination's half of the X25519 key agreement
	// from which both nodes derive the secret of this migration, in base64. Method Stream
	// has none.
	// +optional
	// +kubebuilder:validation:MinLength=44
	// +kubebuilder:validation:MaxLength=44
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9+/]{43}=$`
	DestinationPublicKey string `json:"destinationPublicKey,omitempty"`
}

// ExportedModes are the modes in which an exported cache has been.
// +kubebuilder:validation:Enum=WritethroughOnly;AlsoWriteback
type ExportedModes string

const (
	// ExportedWritethroughOnly: nothing that was written is on its SSD alone.
	ExportedWritethroughOnly ExportedModes = "WritethroughOnly"
	// ExportedAlsoWriteback: the SSD may have the only copy of what the storage server has lost since.
	ExportedAlsoWriteback ExportedModes = "AlsoWriteback"
)

// MigrationSource is what the source node says. Nobody else writes it.
type MigrationSource struct {
	// state says whether the source node serves.
	// +required
	State ExportState `json:"state,omitempty"`

	// message says why it does not.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`

	// publicKey is the source's half of the X25519 key agreement, in base64. Method Stream
	// has neither this nor portals, iqn and metaBytes.
	// +optional
	// +kubebuilder:validation:MinLength=44
	// +kubebuilder:validation:MaxLength=44
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9+/]{43}=$`
	PublicKey string `json:"publicKey,omitempty"`

	// portals lists where the retained cache is served, as "address:port". Its logical
	// unit has the number 0.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=261
	Portals []string `json:"portals,omitempty"`

	// iqn is the iSCSI qualified name under which the retained cache is served.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=223
	IQN string `json:"iqn,omitempty"`

	// chunkSizeBytes is the size of a block of the exported cache in bytes.
	// +optional
	// +kubebuilder:validation:Minimum=32768
	// +kubebuilder:validation:Maximum=1073741824
	// +kubebuilder:validation:MultipleOf=32768
	ChunkSizeBytes int64 `json:"chunkSizeBytes,omitempty"`

	// metaBytes is the size of the exported cache's metadata in bytes.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=9007199254740991
	MetaBytes int64 `json:"metaBytes,omitempty"`

	// dataBytes is the size of the exported cache's data in bytes.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=9007199254740991
	DataBytes int64 `json:"dataBytes,omitempty"`

	// unitID is what the storage server's LUN that the exported cache belongs to says of its
	// own identity. Whoever has another LUN at the volume's address does not use the
	// cache. Empty is not known.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	UnitID string `json:"unitID,omitempty"`

	// modes says in which modes the exported cache has been since it was made. A scrub of the copy replaces
	// what differs if that is WritethroughOnly. Empty is not known.
	// +optional
	Modes ExportedModes `json:"modes,omitempty"`

	// tracking names the record of writes that was begun for a Prewarm. A Move whose
	// source still has such a record repeats it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Tracking string `json:"tracking,omitempty"`

	// trackedAreaBytes is the length of the parts of the cache in which writes are told
	// apart, in bytes.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=9007199254740991
	TrackedAreaBytes int64 `json:"trackedAreaBytes,omitempty"`

	// changedAreas has one bit for each of these parts, the first in the lowest bit of
	// the first byte, in base64: whether it was written to after the record began. Only
	// a Move has it.
	// +optional
	// +kubebuilder:validation:MinLength=4
	// +kubebuilder:validation:MaxLength=1368
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9+/]+=*$`
	ChangedAreas string `json:"changedAreas,omitempty"`
}

// MigrationProgress is how far the destination node is.
type MigrationProgress struct {
	// totalBytes is what there is to copy, in bytes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	TotalBytes *int64 `json:"totalBytes,omitempty"`

	// hydratedBytes is what has been copied, in bytes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	HydratedBytes *int64 `json:"hydratedBytes,omitempty"`

	// bytesPerSecond is the rate of the copy.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	BytesPerSecond *int64 `json:"bytesPerSecond,omitempty"`

	// copied is hydratedBytes and totalBytes, rounded, for people: "512Mi of 1Gi".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	Copied string `json:"copied,omitempty"`

	// rate is bytesPerSecond, rounded, for people: "60Mi/s".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16
	Rate string `json:"rate,omitempty"`

	// estimatedCompletionTime is when the copy ends if it goes on at this rate.
	// +optional
	EstimatedCompletionTime metav1.Time `json:"estimatedCompletionTime,omitempty,omitzero"`

	// servedFrom says where the copy reads at the moment.
	// +optional
	ServedFrom ServedFrom `json:"servedFrom,omitempty"`
}

// CacheMigrationStatus is what both nodes say of a migration.
type CacheMigrationStatus struct {
	// source is what the source node says.
	// +optional
	Source MigrationSource `json:"source,omitempty,omitzero"`

	// progress is how far the destination node is.
	// +optional
	Progress MigrationProgress `json:"progress,omitempty,omitzero"`

	// outcome is how the migration ended; absent while it goes on.
	// +optional
	Outcome MigrationOutcome `json:"outcome,omitempty"`

	// outcomeMessage says more about it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	OutcomeMessage string `json:"outcomeMessage,omitempty"`

	// startTime is when the copy began.
	// +optional
	StartTime metav1.Time `json:"startTime,omitempty,omitzero"`

	// completionTime is when the migration ended, with whatever outcome.
	// +optional
	CompletionTime metav1.Time `json:"completionTime,omitempty,omitzero"`

	// conditions report whether everything has been copied.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// CacheMigration is one warm start: the cache of a volume on a new node is filled
// from the cache of the node before it, or from the origin. Its name is that of the
// volume, a hyphen, and the generation of the new owner; that of a Prewarm has the
// suffix -prewarm, that of a Read -read- and ten digits that stand for the node.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=cmig,categories=nearflash
// +kubebuilder:selectablefield:JSONPath=`.spec.sourceNode`
// +kubebuilder:selectablefield:JSONPath=`.spec.destinationNode`
// +kubebuilder:printcolumn:name="Volume",type=string,JSONPath=`.spec.volumeName`
// +kubebuilder:printcolumn:name="From",type=string,JSONPath=`.spec.sourceNode`
// +kubebuilder:printcolumn:name="To",type=string,JSONPath=`.spec.destinationNode`
// +kubebuilder:printcolumn:name="Method",type=string,JSONPath=`.spec.method`
// +kubebuilder:printcolumn:name="Copied",type=string,JSONPath=`.status.progress.copied`
// +kubebuilder:printcolumn:name="Rate",type=string,JSONPath=`.status.progress.rate`
// +kubebuilder:printcolumn:name="Served From",type=string,JSONPath=`.status.progress.servedFrom`
// +kubebuilder:printcolumn:name="Outcome",type=string,JSONPath=`.status.outcome`
// +kubebuilder:printcolumn:name="Gen",type=integer,priority=1,JSONPath=`.spec.generation`
// +kubebuilder:printcolumn:name="Export",type=string,priority=1,JSONPath=`.status.source.state`
// +kubebuilder:printcolumn:name="Why",type=string,priority=1,JSONPath=`.spec.methodReason`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.outcomeMessage`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.startsWith(self.spec.volumeName + '-') && self.metadata.name.endsWith('-prewarm') == (self.spec.purpose == 'Prewarm') && self.metadata.name.matches('-read-[0-9a-f]{10}$') == (self.spec.purpose == 'Read') && int(self.metadata.name.substring(size(self.spec.volumeName) + 1, size(self.metadata.name) - (self.spec.purpose == 'Prewarm' ? 8 : self.spec.purpose == 'Read' ? 16 : 0))) == self.spec.generation",message="the name of a CacheMigration is volumeName, a hyphen, and generation, and of a Prewarm the suffix -prewarm, of a Read -read- and the digits of the node"
type CacheMigration struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// spec is what the destination node asks for.
	// +required
	Spec CacheMigrationSpec `json:"spec,omitzero"`

	// status is what both nodes say.
	// +optional
	Status CacheMigrationStatus `json:"status,omitempty,omitzero"`
}

// CacheMigrationList is a list of CacheMigrations.
//
// +kubebuilder:object:root=true
type CacheMigrationList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the migrations.
	// +required
	Items []CacheMigration `json:"items"`
}
