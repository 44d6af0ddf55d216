#!/bin/sh
# Write the Go module in otelcol/ anew from otelcol-manifest.yaml, with OpenTelemetry's own builder. Only after a change of the manifest.
# What the builder's `go mod tidy` says of modules that only tests of other projects need does not matter; the list below is complete.
# Usage: generate.sh, with Go in the path
#        generate.sh before    writes otelcol-before/ anew: the same program with the modules of an older release
set -eu
cd "$(dirname "$0")"
if [ "${1:-}" = before ]; then
    # The release before whose modules the module proxy has; one that it lacks stays at the newer version, and the newer modules that it asks
    # for are replaced.
    old=0.152.0 old_stable=1.58.0 missing=connector/forwardconnector
    new=$(sed -n 's/^  version: //p' otelcol-manifest.yaml)
    new_stable=$(sed -n 's|.*go.opentelemetry.io/collector/component v||p' otelcol/go.mod)
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cp otelcol/*.go "$work"
    {
        echo "// The modules of an older release for the sources in otelcol/. Made by generate.sh before."
        sed -e 1d -e '/\/\/ indirect/d' -e "/opentelemetry-collector-contrib/s/ v$new/ v$old/" otelcol/go.mod
        grep -ohE 'go\.opentelemetry\.io/collector(/[a-z0-9/]+)? v[0-9.]+' otelcol/go.mod | LC_ALL=C sort -u | grep -v "/$missing " |
            sed -n -e "s/^\(.*\) v$new\$/replace \1 => \1 v$old/p" -e "s/^\(.*\) v$new_stable\$/replace \1 => \1 v$old_stable/p"
    } >"$work/go.mod"
    for _ in once again; do # the first time it finds the modules, and then the sums of those alone
        : >"$work/go.sum"
        (cd "$work" && GOFLAGS="-mod=mod -buildvcs=false" go list -deps -tags grpcnotrace,remove_all_sd . >/dev/null)
    done
    mkdir -p otelcol-before
    cp "$work/go.mod" "$work/go.sum" otelcol-before/
    echo "otelcol-before/ is written for $old; build it: sh build.sh otelcol-before"
    exit 0
fi
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
