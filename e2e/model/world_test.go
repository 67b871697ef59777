package model

// start is a volume that nobody has had yet.
func start(mode Mode, left Budget) World {
	w := World{Mode: mode, Left: left}
	w.Clusters[0] = Cluster{Exists: true, Record: Record{UID: 1}, Epochs: Epochs{Current: 1}, Drawn: true, Ready: true}
	w.Server.Epoch = 1
	return w
}

func (w World) static() World       { w.Static = true; return w }
func (w World) consenting() World   { w.Consent = true; return w }
func (w World) without(f Fix) World { w.Without |= f; return w }

// running is the world with a pod on a.
func (w World) running() World { return behind(w, events(), attached) }
