package lio

import "syscall"

func rmdir(path string) error {
	return syscall.Rmdir(path)
}
