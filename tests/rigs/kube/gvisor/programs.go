//go:build programs

// Package programs names gVisor's runtime and its shim for containerd, so that go.mod has what they
// need.
package programs

import (
	_ "gvisor.dev/gvisor/runsc"
	_ "gvisor.dev/gvisor/shim"
)
