#!/usr/bin/env bash
# Downloads NVIDIA's assembler into .tools/ (once) and prints its path: export OXIGEMM_PTXAS=$(tools/ptxas.sh)
#
# Only tests and `prebuild` want it; running needs nothing but the driver. Its licence does not let us ship it.
set -euo pipefail
cd "$(dirname "$0")/.."
ptxas=.tools/nvidia/cu13/bin/ptxas
if [ ! -x "$ptxas" ]; then
  mkdir -p .tools/wheels
  python3 -m pip download --quiet --no-deps --only-binary=:all: --dest .tools/wheels nvidia-cuda-nvcc==13.0.88 >&2
  python3 - >&2 <<'PY'
import glob, zipfile
wheel = zipfile.ZipFile(glob.glob(".tools/wheels/nvidia_cuda_nvcc-*.whl")[0])
wheel.extract("nvidia/cu13/bin/ptxas", ".tools")
PY
  chmod +x "$ptxas"
  rm -r .tools/wheels
fi
echo "$PWD/$ptxas"
