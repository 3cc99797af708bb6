//go:build programs

// Package programs names the installer of charts, so that go.mod has what it needs.
package programs

import _ "helm.sh/helm/v3/cmd/helm"
