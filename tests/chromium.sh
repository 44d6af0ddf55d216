#!/bin/sh
# Print the path of a Chromium for the tests of the HTML page. Where there is none it is installed if that can be done (root, apt);
# if not, the reason is printed and the exit code is 1: those tests are then skipped with this reason.
# Usage: chromium.sh [--look]   --look: install nothing
set -eu
for name in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name"; then exit 0; fi
done
if [ "${1:-}" = --look ]; then
    echo "no Chromium is installed: run tests/chromium.sh as root" >&2
    exit 1
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "no Chromium is installed, and it cannot be installed here: that needs root and apt-get" >&2
    exit 1
fi
echo "[setup] installing chromium" >&2
export DEBIAN_FRONTEND=noninteractive
{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1 || {
    echo "no Chromium is installed, and apt-get could not install it" >&2
    exit 1
}
command -v chromium
