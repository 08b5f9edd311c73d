//go:build !linux

package cluster

import "net"

// brief does nothing where it was not measured.
func brief(c net.Conn) net.Conn { return c }
