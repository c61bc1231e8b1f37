#!/usr/bin/env bash
# Tests a wheel on a machine with a Hopper GPU and torch, without network.
#   tools/gpu_python.sh WHEEL [test|time|anchor|client|versus ...]     default: test and time
# `client` runs FP8 models of transformers, which has to be installed or to lie unpacked in $OXIGEMM_SITE; the modules
# named in $OXIGEMM_CLIENTS run one after another (default: oxigemm).
# `versus` times the wheel beside a module with DeepGEMM's functions, $OXIGEMM_PEER (default: deep_gemm), which has to be
# installed or to lie in $OXIGEMM_SITE; $OXIGEMM_VERSUS has the arguments of bench/versus.py that choose cases and files.
# numpy, ml_dtypes and pytest with its dependencies come from wheels beside WHEEL if they are not installed.
set -euo pipefail
wheel=$(realpath "$1")
shift
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A directory of its own, not a virtual environment: one that is made inside another does not see the other's torch.
export PYTHONPATH="$work/site${OXIGEMM_SITE:+:$OXIGEMM_SITE}"
install() {
  python3 -m pip --disable-pip-version-check install --quiet --no-index --no-deps --target "$work/site" "$@"
}
install "$wheel"
for package in numpy ml_dtypes packaging pluggy iniconfig pygments pytest; do
  python3 -c "import $package" 2>/dev/null || install --find-links "$(dirname "$wheel")" "$package"
done
export OXIGEMM_CACHE_DIR="$work/cache"
[ $# -gt 0 ] || set -- test time
for what in "$@"; do
  case $what in
  test) (cd crates/python && python3 -m pytest -q -p no:cacheprovider tests) ;;
  time) python3 crates/python/bench/host_time.py ;;
  anchor) python3 crates/python/bench/anchor.py ;;
  client)
    python3 -c 'import transformers'
    (cd crates/python && python3 -m pytest -q -p no:cacheprovider tests/test_transformers.py)
    for module in ${OXIGEMM_CLIENTS:-oxigemm}; do
      python3 crates/python/bench/transformers_client.py --module "$module"
    done
    ;;
  versus)
    versus=(python3 crates/python/bench/versus.py "${OXIGEMM_PEER:-deep_gemm}")
    read -ra arguments <<<"${OXIGEMM_VERSUS:---seeds 101,102,103,104,105}"
    # The peer compiles its kernels at their first call: in several processes, and before anything is timed.
    for part in {1..8}; do "${versus[@]}" "${arguments[@]}" --warm --part "$part/8" & done
    wait
    "${versus[@]}" "${arguments[@]}"
    ;;
  *) echo "expected test, time, anchor, client or versus, found $what" >&2 && exit 2 ;;
  esac
done
