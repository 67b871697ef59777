// Package names breaks the rules of apinames.
package names

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Names are wrong.
type Names struct {
	// none has no tag.
	None string // want `Names.None: no json tag`
	// Upper is what users do not write.
	Upper string `json:"Upper"` // want `Names.Upper: the json name "Upper" is not lowerCamelCase`
	// snake_case is another language's.
	Snake string `json:"snake_case"` // want `Names.Snake: the json name "snake_case"`
	// Comment is not what users write.
	Comment string `json:"comment"` // want `Names.Comment: its comment does not begin with "comment"`
	Silent  string `json:"silent"`  // want `Names.Silent: its comment does not begin with "silent"`
	// commentary begins with the name only as a part of a word.
	Part string `json:"comment"` // want `Names.Part: its comment does not begin`
	// phase is vague.
	Phase string `json:"phase"` // want `Names.Phase: a phase hides what is known`
	// bootPhase is vague too.
	BootPhase string `json:"bootPhase"` // want `Names.BootPhase: a phase hides`
	// lastTimestamp is a time.
	LastTimestamp metav1.Time `json:"lastTimestamp"` // want `Names.LastTimestamp: a point in time is called`
	// nodeReference is a reference.
	NodeReference string `json:"nodeReference"` // want `Names.NodeReference: a reference is called`
	// good is good.
	Good string `json:"good"`
}
