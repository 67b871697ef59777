package cachemap

import "github.com/nearflash/nearflash/pkg/devmapper"

// Shown returns the table of what others may see of a cache's data device: its mapped
// blocks, and zeroes in all other places, because those hold whatever the SSD was used
// for before, possibly another volume's data. Device is the data device's "major:minor",
// dataSectors its length, and start the sector at which the table begins, for one that
// continues another.
func (m Map) Shown(device string, start, dataSectors uint64) devmapper.Table {
	return shown(device, start, dataSectors, m.Unmapped(dataSectors))
}

// ShownFull is Shown of a cache of which every block is mapped.
func ShownFull(device string, start, dataSectors, chunkSectors uint64) devmapper.Table {
	whole := dataSectors / chunkSectors * chunkSectors
	var tail []Range
	if whole < dataSectors {
		tail = []Range{{Start: whole, Length: dataSectors - whole}}
	}
	return shown(device, start, dataSectors, tail)
}

func shown(device string, start, dataSectors uint64, hidden []Range) devmapper.Table {
	var t devmapper.Table
	end := uint64(0)
	show := func(to uint64) {
		if to > end {
			t = append(t, devmapper.Line{Start: start + end, Length: to - end, Target: devmapper.LinearTarget{Device: device, Offset: end}})
		}
	}
	for _, r := range hidden {
		show(r.Start)
		t = append(t, devmapper.Line{Start: start + r.Start, Length: r.Length, Target: devmapper.ZeroTarget{}})
		end = r.Start + r.Length
	}
	show(dataSectors)
	return t
}
