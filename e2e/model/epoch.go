package model

import "github.com/nearflash/nearflash/pkg/backend/epoch"

// Epochs are what a cluster has recorded: an epoch.Record. Their names are numbers here.
type Epochs struct{ Current, Pending, Takeover uint8 }

var epochNames = [11]string{"", "e1", "e2", "e3", "e4", "e5", "e6", "e7", "e8", "e9", "e10"}

func (e Epochs) record() epoch.Record {
	r := epoch.Record{Current: epochNames[e.Current], Pending: epochNames[e.Pending]}
	if e.Takeover != 0 {
		r.Takeover = &epoch.Takeover{Epoch: epochNames[e.Takeover]}
	}
	return r
}

func (e Epochs) knows(n uint8) bool { return n != 0 && (n == e.Current || n == e.Pending) }

// epochSlots are all places of the world that know an epoch.
func (w *World) epochSlots() [10]*uint8 {
	a, b, c := &w.Clusters[0].Epochs, &w.Clusters[1].Epochs, &w.BackupEpochs
	return [...]*uint8{&w.Server.Epoch, &a.Current, &a.Pending, &a.Takeover, &b.Current, &b.Pending, &b.Takeover, &c.Current, &c.Pending, &c.Takeover}
}

// normalEpochs gives epochs the lowest names: they are random.
func (w *World) normalEpochs() {
	var names [len(epochNames)]uint8
	next := uint8(1)
	for _, s := range w.epochSlots() {
		if *s != 0 && names[*s] == 0 {
			names[*s] = next
			next++
		}
		*s = names[*s]
	}
}

// swapEpoch is the next step of a controller to an epoch of its own.
func swapEpoch(cluster int) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		c := &w.Clusters[cluster]
		if !c.Exists || c.Ready || w.Without&OneCluster != 0 {
			return "", false
		}
		switch epoch.Decide(epochNames[w.Server.Epoch], c.Epochs.record(), c.Drawn) {
		case epoch.StepDraw:
			for _, s := range w.epochSlots() {
				c.Epochs.Pending = max(c.Epochs.Pending, *s)
			}
			c.Epochs.Pending++
			c.Drawn = true
		case epoch.StepSwap:
			w.Server.Epoch = c.Epochs.Pending
		case epoch.StepConfirm:
			c.Epochs = Epochs{Current: w.Server.Epoch}
		case epoch.StepDone:
			c.Ready = true
		default:
			return "", false
		}
		return "", true
	}
}

// swapAnew is what a controller does every few minutes, and each new one at first.
func swapAnew(w *World) (string, bool) {
	c := &w.Clusters[0]
	if !c.Ready || w.Without&OneCluster != 0 || !spend(&w.Left.Swings) {
		return "", false
	}
	c.Ready, c.Drawn = false, false
	return "", true
}

// takeover is an administrator's word that the server is the first cluster's.
func takeover(w *World) (string, bool) {
	c := &w.Clusters[0]
	if s := w.Server.Epoch; w.Without&OneCluster != 0 || s == 0 || c.Epochs.knows(s) || c.Epochs.Takeover == s {
		return "", false
	}
	c.Epochs.Takeover = w.Server.Epoch
	return "", true
}

// may reports whether the server takes an order of a controller.
func (a actor) may() bool {
	return a.w.Without&OneCluster != 0 || a.c.Ready && (a.w.Server.Epoch == 0 || a.c.Epochs.knows(a.w.Server.Epoch))
}

// copied is the second cluster: it has what the first one's etcd had when it was backed
// up. A copy that is younger than the last swap may be the one that the server takes
// ("What remains").
func copied(w *World) (string, bool) {
	now := w.Clusters[0].Epochs.Current
	young := w.Without&OneCluster == 0 && (w.BackupEpochs.knows(now) || w.Server.Epoch != now)
	if w.Clusters[1].Exists || w.Backup.UID == 0 || young || !spend(&w.Left.Copies) {
		return "", false
	}
	w.Clusters[1] = Cluster{Exists: true, Record: w.Backup, Epochs: w.BackupEpochs, Ready: w.Without&OneCluster != 0}
	return "", true
}
