package targetpb

// EpochKey is the metadata key of a call's epoch.
const EpochKey = "nearflash-epoch"
