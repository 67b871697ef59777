package volume

// Publication is what a node needs to attach a published volume.
type Publication struct {
	Fence  Fence
	Source Source
	// LoginKey is the controller's public half, of which the node derives the account that the
	// storage server admits it with; "" if that is the one of a Secret.
	LoginKey string
}

// PublishRequest asks a node to show a staged volume to a pod.
type PublishRequest struct {
	ID           ID
	StagingPath  string
	TargetPath   string
	Block        bool
	FSType       string
	MountOptions []string
	ReadOnly     bool
	// Pod is the zero value if Kubernetes does not say which it is.
	Pod Pod
}

// ExpandRequest asks a node to see the new size of a staged volume.
type ExpandRequest struct {
	ID ID
	// Path is the staging or a target path.
	Path  string
	Block bool
	// Size is what the origin is to have at least, in bytes, 0 if the caller does not say it.
	Size int64
	// Credentials are those of this request, nil if it has none.
	Credentials *Credentials
}

// Pod names a pod.
type Pod struct {
	Namespace, Name, UID string
}

// Stats is the use of a volume as its pod sees it.
type Stats struct {
	// TotalBytes, UsedBytes and AvailableBytes describe the filesystem; a
	// block volume has only TotalBytes.
	TotalBytes, UsedBytes, AvailableBytes    int64
	TotalInodes, UsedInodes, AvailableInodes int64
	Block                                    bool
	// Abnormal and Message are the CSI volume condition.
	Abnormal bool
	Message  string
}
