//go:build !linux

package proc

import "syscall"

// attributes are the usual ones: the child ends by Close.
func attributes() *syscall.SysProcAttr { return nil }
