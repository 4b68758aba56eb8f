// What tools/h2spec builds, pinned by go.mod and go.sum.
package h2spec

import _ "github.com/summerwind/h2spec/cmd/h2spec"
