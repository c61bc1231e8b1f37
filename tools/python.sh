#!/usr/bin/env bash
# Tests the Python package: builds the wheel, checks which systems it is for, installs it into a fresh virtual
# environment with a torch for the CPU, and runs pytest there.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check 'maturin>=1.9,<2' pytest numpy ml_dtypes safetensors \
  ruff==0.14.0 mypy 'auditwheel>=6,<7' abi3audit
"$work/venv/bin/python" tools/cpu_torch.py
"$work/venv/bin/ruff" check --quiet --no-cache crates/python
"$work/venv/bin/ruff" format --quiet --no-cache --check crates/python
wheel=$(PATH="$work/venv/bin:$PATH" tools/wheel.sh --dev "$work")
"$work/venv/bin/python" tools/check_wheel.py "$wheel"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps "$wheel"
cd crates/python && "$work/venv/bin/python" -m pytest -q -p no:cacheprovider tests "$@"
