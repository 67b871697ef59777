// Package other holds no API.
package other

type Anything struct {
	Flag  bool
	Ratio float64
}
