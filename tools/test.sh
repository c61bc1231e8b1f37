#!/usr/bin/env bash
# Everything that can be tested without a GPU. (With one: `oxigemm verify`.)
set -euo pipefail
cd "$(dirname "$0")/.."
export OXIGEMM_PTXAS="${OXIGEMM_PTXAS:-$(tools/ptxas.sh)}"
# The first time this waits for downloads, which nothing below needs soon. tools/python.sh reports what fails.
tools/python_environment.sh >/dev/null 2>&1 &
environment=$!
cargo test --workspace --locked --no-fail-fast
wait "$environment" || true
# These take minutes and hardly more than a core each: side by side, the checks in two parts. The program is the one that the tests ran:
# `cargo run` of one package has other features of shared crates, and would build them all again.
reports=$(mktemp -d)
trap 'rm -rf "$reports"' EXIT
oxigemm=${CARGO_TARGET_DIR:-target}/debug/oxigemm
parts=()
for part in 1 2; do
    "$oxigemm" verify --quick --device sim --part "$part/2" >"$reports/$part" 2>&1 &
    parts+=($!)
done
# Blackwell's kernels are tested above: a part of the suite, and that the script for a B200 goes through.
blackwell() {
    "$oxigemm" verify --quick --device sim:sm_100a --part 1/8
    tools/b200.sh --dry-run "$oxigemm" "$reports/b200-results"
}
blackwell >"$reports/blackwell" 2>&1 &
parts+=($!)
tools/python.sh || { kill "${parts[@]}"; exit 1; }
status=0
for part in "${parts[@]}"; do
    wait "$part" || status=$?
done
cat "$reports"/{1,2,blackwell}
exit "$status"
