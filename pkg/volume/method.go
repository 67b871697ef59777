package volume

// The words of users for the methods of a move by which another node's cache is read.
const (
	// WordAuto leaves the choice to the node.
	WordAuto   = "auto"
	WordClone  = "clone"
	WordStream = "stream"
)

// MethodOf reads the word of a user; that for the node's choice, and none, are "".
// known is false for what is no such word.
func MethodOf(word string) (m MoveMethod, known bool) {
	switch word {
	case "", WordAuto:
		return "", true
	case WordClone:
		return MethodClone, true
	case WordStream:
		return MethodStream, true
	}
	return "", false
}

// Word is the inverse of MethodOf, with none for the node's choice.
func (m MoveMethod) Word() string {
	switch m {
	case MethodClone:
		return WordClone
	case MethodStream:
		return WordStream
	case MethodHotSet, MethodPreload:
	}
	return ""
}
