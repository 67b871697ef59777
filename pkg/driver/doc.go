// Package driver is the CSI face of nearflash: identity, controller and node
// service. Each call parses its request, takes the lock of its volume, calls
// the domain (pkg/volume) and builds its response. It is the only package that
// knows gRPC codes, and it calls nothing on the host.
//
// It follows the CSI specification 1.13.
package driver
