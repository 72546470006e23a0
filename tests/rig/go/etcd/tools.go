//go:build tools

// Package etcd pins the store of the test rig: the import keeps it in go.mod and go.sum.
package etcd

import _ "go.etcd.io/etcd/server/v3"
