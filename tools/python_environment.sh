#!/usr/bin/env bash
# Installs what the tests of the Python package need, with a torch for the CPU, into a virtual environment in .tools/ (once)
# and prints its path. Remove it to get newer versions.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=('maturin>=1.9,<2' pytest numpy ml_dtypes safetensors ruff==0.14.0 mypy 'auditwheel>=6,<7' abi3audit)
# Another list, another torch or another Python: another environment.
key=$( (python3 -VV && printf '%s\n' "${packages[@]}" && cat tools/cpu_torch.py) | sha256sum | cut -c1-12)
environment=$PWD/.tools/python-$key
if [ ! -e "$environment/complete" ]; then
  rm -rf .tools/python-*
  python3 -m venv "$environment"
  "$environment/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}" >&2
  "$environment/bin/python" tools/cpu_torch.py >&2
  touch "$environment/complete"
fi
echo "$environment"
