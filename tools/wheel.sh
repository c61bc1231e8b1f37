#!/usr/bin/env bash
# Builds the wheel into crates/python/dist (or the directory that is given) and prints its path.
#   tools/wheel.sh [DIR]        what is shipped: optimized, with the cubins of every kernel
#   tools/wheel.sh --dev [DIR]  what tests need: the profile of `cargo test`, without cubins
# `maturin` is taken from PATH, or from a virtual environment in .tools/ that is made for it.
set -euo pipefail
cd "$(dirname "$0")/.."
profile=release
if [ "${1:-}" = --dev ]; then
  profile=dev
  shift
fi
out=$(mkdir -p "${1:-crates/python/dist}" && cd "${1:-crates/python/dist}" && pwd)
if ! command -v maturin >/dev/null; then
  [ -x .tools/maturin/bin/maturin ] || python3 -m venv .tools/maturin
  .tools/maturin/bin/pip install --quiet --disable-pip-version-check 'maturin>=1.9,<2'
  PATH="$PWD/.tools/maturin/bin:$PATH"
fi
cubins=crates/python/python/oxigemm/cubins
rm -rf "$cubins"
if [ "$profile" = release ]; then
  export OXIGEMM_PTXAS="${OXIGEMM_PTXAS:-$(tools/ptxas.sh)}"
  cargo run --quiet --release --locked --package oxigemm-cli -- prebuild --arch sm_90a,sm_100a \
    --out "$cubins" >/dev/null
fi
rm -f "$out"/oxigemm-*.whl
# For any glibc from 2.17 on, not only from this machine's on. Only the link of the last crate differs, so all other
# crates are those that `cargo test` has built.
platform=() link=()
if [ "$(uname -m)" = x86_64 ]; then
  glibc=2.17
  stubs=$(realpath "${CARGO_TARGET_DIR:-target}")/glibc-$glibc
  python3 tools/old_glibc.py "$stubs" "$glibc"
  platform=(--compatibility "manylinux_${glibc/./_}")
  link=(-- -C "link-arg=-L$stubs")
fi
maturin build --quiet --locked --profile "$profile" --manifest-path crates/python/Cargo.toml --out "$out" \
  "${platform[@]}" "${link[@]}" >&2
if [ "$profile" = release ]; then
  # The wheel must hold the cubin of each of its kernels.
  check=$(mktemp -d)
  trap 'rm -rf "$check"' EXIT
  python3 -m zipfile -e "$out"/oxigemm-*.whl "$check"
  PYTHONPATH="$check" python3 -c "
from oxigemm._oxigemm import missing_cubins
missing = missing_cubins()
assert not missing, missing"
fi
ls "$out"/oxigemm-*.whl
