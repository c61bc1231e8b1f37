#!/usr/bin/env bash
# Tests the Python package: builds the wheel, checks which systems it is for, installs it into the environment of
# tools/python_environment.sh, and runs pytest there.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
environment=$(tools/python_environment.sh)
"$environment/bin/ruff" check --quiet --no-cache crates/python
"$environment/bin/ruff" format --quiet --no-cache --check crates/python
wheel=$(PATH="$environment/bin:$PATH" tools/wheel.sh --dev "$work")
"$environment/bin/python" tools/check_wheel.py "$wheel"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall "$wheel"
cd crates/python && "$environment/bin/python" -m pytest -q -p no:cacheprovider tests "$@"
