// Package reservation speaks SCSI persistent reservations (SPC-4, 5.13 and 6.15 to 6.16)
// to the paths of a LUN: they fence a static volume, whose server knows nothing
// of generations (states.md, The fence of a static volume).
//
// A reservation is one of the LUN, a registration one of a path: of the nexus of an
// initiator port and a target port. Everything here acts on a path, which is a SCSI disk.
// Through a device above, a cache, a reservation would reach the SSD.
//
// Reading keys by ioctl is younger than the kernels that are supported, so that every
// command goes through SG_IO.
package reservation

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// Errors of a LUN; test with errors.Is.
var (
	// ErrUnsupported: the LUN has no persistent reservations, or none of the type.
	ErrUnsupported = errors.New("the LUN has no SCSI persistent reservations")
	// ErrConflict: the LUN refused a command because of another's reservation, or because
	// the path is not registered with the key.
	ErrConflict = errors.New("SCSI reservation conflict")
	// ErrPath: the path does not answer, or not yet.
	ErrPath = errors.New("the path does not answer")
	// ErrMalformed: the LUN's answer makes no sense.
	ErrMalformed = errors.New("malformed answer")
)

// Key is a reservation key. Zero is none.
//
//	bits 63..48  mark: "nf"
//	bits 47..24  the first three bytes of the SHA-256 of the record's UID
//	bits 23..0   generation
//
// So a key tells a later owner of the same record from an earlier one, and a node of
// nearflash from somebody else's host. 24 bits suffice for either part: a LUN has the
// keys of one volume, and a generation is one change of owner.
type Key uint64

const (
	keyMark       = 0x6e66
	markShift     = 48
	uidShift      = 24
	generationMax = 1<<uidShift - 1
)

// KeyOf is the key of one ownership.
func KeyOf(uid string, generation int64) Key {
	sum := sha256.Sum256([]byte(uid))
	part := uint64(sum[0])<<16 | uint64(sum[1])<<8 | uint64(sum[2])
	return Key(keyMark<<markShift | part<<uidShift | uint64(generation)&generationMax)
}

// Ours reports whether the key is one of nearflash's nodes.
func (k Key) Ours() bool { return k>>markShift == keyMark }

// SameVolume reports whether both keys are of one record.
func (k Key) SameVolume(o Key) bool { return k.Ours() && k>>uidShift == o>>uidShift }

// Later reports whether k is of a later owner of the record that o is of.
func (k Key) Later(o Key) bool { return k.SameVolume(o) && k.Generation() > o.Generation() }

// Generation is that of a key of nearflash's.
func (k Key) Generation() int64 { return int64(k & generationMax) }

// String is the form of sg_persist(8).
func (k Key) String() string { return fmt.Sprintf("0x%016x", uint64(k)) }

// Type is a type of persistent reservation.
type Type uint8

// WriteExclusiveRegistrantsOnly: who is registered may write, everybody may read. The one
// that is used: a LUN whose node has several paths has one holder, and its other paths
// are registrants. It stays when a path is lost.
const WriteExclusiveRegistrantsOnly Type = 5

// Held is a LUN's reservation.
type Held struct {
	// Key is the holder's; 0 for a type in which every registrant is one.
	Key  Key
	Type Type
}

// LUN is one path to a logical unit. A unit attention, which every change by another
// path or host leaves behind, is no error: the command is repeated.
// Errors of each method: ErrPath, ErrUnsupported.
type LUN interface {
	// Supported fails with ErrUnsupported if the LUN cannot be reserved, and with
	// ErrConflict if it has a reservation of SCSI-2. Errors: ErrMalformed.
	Supported(ctx context.Context) error
	// Keys returns one key for each registration, of all paths and hosts. Errors:
	// ErrMalformed.
	Keys(ctx context.Context) ([]Key, error)
	// Reservation returns the reservation. Errors: ErrMalformed.
	Reservation(ctx context.Context) (h Held, found bool, err error)
	// Register registers the path with a key, whatever it was registered with; with 0
	// the registration ends, and with the holder's its reservation. Registrations and
	// reservation survive a loss of the LUN's power if it can do that. Errors:
	// ErrConflict if it has a reservation of SCSI-2.
	Register(ctx context.Context, key Key) error
	// Reserve makes the path, which is registered with key, the holder. It is success if
	// it is already. Errors: ErrConflict, or another if the path is not registered.
	Reserve(ctx context.Context, key Key) error
	// Preempt ends every other registration of the key victim and aborts what its paths
	// have under way. If victim held the reservation, the path, which is registered with
	// key, holds it on return; use TakeOver for that. Errors: ErrConflict, also if nobody is
	// registered with victim.
	Preempt(ctx context.Context, key, victim Key) error
	// TakeOver is Preempt of the key that holds the reservation. It waits until no other
	// program of this node has a command under way on the path: Linux's own target aborts
	// all that came under the holder's key, reads by the path itself too, and the thread that
	// waits for those is the one that would end them: the target never answers again.
	// Errors: ErrPath also if the path does not get quiet.
	TakeOver(ctx context.Context, key, holder Key) error
	// Honoured reports whether the LUN takes the path for a registrant, and changes
	// nothing. The path is registered with key and does not hold the reservation. Some
	// targets forget that an initiator has several paths.
	Honoured(ctx context.Context, key Key) (bool, error)
}

// Commands of SPC-4.
const (
	opReserveIn  = 0x5e
	opReserveOut = 0x5f

	inKeys         = 0x00
	inReservation  = 0x01
	inCapabilities = 0x02

	outReserve         = 0x01
	outRelease         = 0x02
	outPreemptAbort    = 0x05
	outRegisterIgnore  = 0x06
	outParameterLength = 24
)

// cdbIn is PERSISTENT RESERVE IN.
func cdbIn(action byte, length int) []byte {
	cdb := make([]byte, 10)
	cdb[0], cdb[1] = opReserveIn, action
	binary.BigEndian.PutUint16(cdb[7:], uint16(length))
	return cdb
}

// cdbOut is PERSISTENT RESERVE OUT with the scope of a LUN, and its parameters.
func cdbOut(action byte, t Type, key, other Key, persist bool) (cdb, parameters []byte) {
	cdb = make([]byte, 10)
	cdb[0], cdb[1], cdb[2] = opReserveOut, action, byte(t)
	binary.BigEndian.PutUint32(cdb[5:], outParameterLength)
	parameters = make([]byte, outParameterLength)
	binary.BigEndian.PutUint64(parameters, uint64(key))
	binary.BigEndian.PutUint64(parameters[8:], uint64(other))
	if persist {
		parameters[20] = 1
	}
	return cdb, parameters
}

// parseKeys reads the parameters of READ KEYS: generation, length, keys. length is that of
// all keys, also of those for which there was no room; need is the length of an answer
// that has all.
func parseKeys(b []byte) (keys []Key, need int, err error) {
	const head, size = 8, 8
	if len(b) < head {
		return nil, 0, fmt.Errorf("%w: READ KEYS has %d bytes, at least %d are expected", ErrMalformed, len(b), head)
	}
	length := binary.BigEndian.Uint32(b[4:])
	if length%size != 0 || length > maxAnswer-head {
		return nil, 0, fmt.Errorf("%w: READ KEYS has %d bytes of keys", ErrMalformed, length)
	}
	need = head + int(length)
	for at := head; at+size <= min(need, len(b)); at += size {
		keys = append(keys, Key(binary.BigEndian.Uint64(b[at:])))
	}
	return keys, need, nil
}

// parseReservation reads the parameters of READ RESERVATION.
func parseReservation(b []byte) (h Held, found bool, err error) {
	const head, size = 8, 16
	if len(b) < head {
		return Held{}, false, fmt.Errorf("%w: READ RESERVATION has %d bytes, at least %d are expected", ErrMalformed, len(b), head)
	}
	switch length := binary.BigEndian.Uint32(b[4:]); {
	case length == 0:
		return Held{}, false, nil
	case length != size || len(b) < head+size:
		return Held{}, false, fmt.Errorf("%w: READ RESERVATION has %d bytes, and says %d of a reservation", ErrMalformed, len(b), length)
	}
	return Held{Key: Key(binary.BigEndian.Uint64(b[8:])), Type: Type(b[21] & 0x0f)}, true, nil
}

// parseCapabilities reads the parameters of REPORT CAPABILITIES. A LUN need not say which
// types it has.
func parseCapabilities(b []byte) (supported bool, err error) {
	const size = 8
	if len(b) < size || binary.BigEndian.Uint16(b) < size {
		return false, fmt.Errorf("%w: REPORT CAPABILITIES has %d bytes, %d are expected", ErrMalformed, len(b), size)
	}
	const typeMaskValid = 1 << 7
	return b[3]&typeMaskValid == 0 || b[4]&(1<<WriteExclusiveRegistrantsOnly) != 0, nil
}

// SCSI statuses (SAM-5, 5.3.1).
const (
	statusGood      = 0x00
	statusCheck     = 0x02
	statusBusy      = 0x08
	statusConflict  = 0x18
	statusQueueFull = 0x28
	statusTaskAbort = 0x40
)

// sense is what a CHECK CONDITION says.
type sense struct{ key, code, qualifier byte }

// parseSense reads sense data of either format (SPC-4, 4.5); zero if there are none.
func parseSense(b []byte) sense {
	if len(b) == 0 {
		return sense{}
	}
	switch b[0] & 0x7f {
	case 0x70, 0x71:
		if len(b) >= 14 {
			return sense{b[2] & 0x0f, b[12], b[13]}
		}
	case 0x72, 0x73:
		if len(b) >= 4 {
			return sense{b[1] & 0x0f, b[2], b[3]}
		}
	}
	return sense{}
}

// Sense keys and codes.
const (
	senseNotReady       = 0x02
	senseIllegalRequest = 0x05
	senseUnitAttention  = 0x06

	codeOpcode          = 0x20
	codeInvalidInCDB    = 0x24
	codeLUNMissing      = 0x25
	codeParameter       = 0x26
	qualifierBadRelease = 0x04 // of codeParameter: invalid release of a persistent reservation
)

// outcome is what one try of a command came to.
type outcome struct {
	err error
	// again is true if the same command may succeed at once.
	again bool
	// sense is that of a CHECK CONDITION.
	sense sense
}

// judge makes an error of a status.
func judge(status byte, s sense) outcome {
	switch {
	case status == statusGood:
		return outcome{}
	case status == statusConflict:
		return outcome{err: ErrConflict}
	case status == statusBusy, status == statusQueueFull, status == statusTaskAbort:
		return outcome{err: fmt.Errorf("%w: SCSI status 0x%02x", ErrPath, status), again: true}
	case status != statusCheck:
		return outcome{err: fmt.Errorf("%w: SCSI status 0x%02x", ErrPath, status)}
	}
	text := fmt.Sprintf("sense key 0x%x, code 0x%02x/0x%02x", s.key, s.code, s.qualifier)
	switch {
	case s.key == senseUnitAttention:
		return outcome{err: fmt.Errorf("%w: %s", ErrPath, text), again: true, sense: s}
	case s.key == senseIllegalRequest && (s.code == codeOpcode || s.code == codeInvalidInCDB):
		return outcome{err: fmt.Errorf("%w: %s", ErrUnsupported, text), sense: s}
	case s.key == senseIllegalRequest && s.code == codeParameter:
		return outcome{err: fmt.Errorf("%w: %s", ErrMalformed, text), sense: s}
	}
	return outcome{err: fmt.Errorf("%w: %s", ErrPath, text), sense: s}
}
