#!/bin/sh
# Write the Go module in otelcol/ anew from otelcol-manifest.yaml, with OpenTelemetry's own builder. Only after a change of the manifest.
# What the builder's `go mod tidy` says of modules that only tests of other projects need does not matter; the list below is complete.
# Usage: generate.sh, with Go in the path
set -eu
cd "$(dirname "$0")"
version=$(sed -n 's/^  version: //p' otelcol-manifest.yaml)
tools=$(mktemp -d)
trap 'chmod -R u+w "$tools"; rm -rf "$tools"' EXIT
GOBIN=$tools go install "go.opentelemetry.io/collector/cmd/builder@v$version"
sums=$tools/go.sum
cp otelcol/go.sum "$sums" 2>/dev/null || : >"$sums"
"$tools/builder" --config otelcol-manifest.yaml --skip-compilation >"$tools/log" 2>&1 || true
cd otelcol
rm -f main_windows.go
cp "$sums" go.sum
GOFLAGS="-mod=mod -buildvcs=false" go list -deps -tags grpcnotrace,remove_all_sd . >/dev/null || {
    cat "$tools/log" >&2
    exit 1
}
echo "otelcol/ is written for $version; build it: make collector"
