#!/usr/bin/env bash
# Runs test scripts that are written for DeepGEMM with this package under the name `deep_gemm`, on a GPU.
#   tools/peer_tests.sh DIR [FILE ...]      default: every test_*.py of DIR
# The scripts run as they are, each in its own process, with DIR on the path for what they share. Kernels that they only
# time are called once and not timed, unless TIMING=1. TIMEOUT is the limit of each in seconds (default: 600), JOBS the
# number that runs at once (default: 1).
set -uo pipefail
[ $# -gt 0 ] || { echo "expected a folder of test scripts" >&2 && exit 2; }
dir=$(realpath "$1")
shift
[ $# -gt 0 ] || { cd "$dir" && set -- test_*.py; }
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

run() {
  local file=$1 start=$SECONDS status
  timeout "${TIMEOUT:-600}" python3 -u - "$dir" "$file" >"$logs/$file.log" 2>&1 <<'P'
import os
import runpy
import sys

directory, file = sys.argv[1:]
import oxigemm

oxigemm.install_as_deep_gemm()
from deep_gemm import testing


def called_once(function, kernel_names="", *_rest, **_named):
    """The signature of `bench_kineto`: seconds for a name, or for each of several."""
    function()
    return 1e-6 if isinstance(kernel_names, str) else (1e-6,) * len(kernel_names)


if os.environ.get("TIMING") != "1":
    testing.bench_kineto = called_once
    testing.bench = lambda function, *_rest, **_named: called_once(function)
sys.path.insert(0, directory)
sys.argv = [file]
runpy.run_path(os.path.join(directory, file), run_name="__main__")
P
  status=$?
  {
    [ $status = 0 ] || tail -n 12 "$logs/$file.log"
    echo "$file: $([ $status = 0 ] && echo passed || echo "failed (status $status)") in $((SECONDS - start)) s," \
      "$(grep -c '^ *>' "$logs/$file.log") cases"
  } >"$logs/$file.result"
  cat "$logs/$file.result"
}

for file in "$@"; do
  while [ "$(jobs -rp | wc -l)" -ge "${JOBS:-1}" ]; do wait -n; done
  run "$file" &
done
wait
passed=$(cat "$logs"/*.result | grep -c ': passed in')
failed=$(($# - passed))
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
