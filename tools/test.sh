#!/usr/bin/env bash
# Everything that can be tested without a GPU. (With one: `oxigemm verify`.)
set -euo pipefail
cd "$(dirname "$0")/.."
export OXIGEMM_PTXAS="${OXIGEMM_PTXAS:-$(tools/ptxas.sh)}"
cargo test --workspace --locked --no-fail-fast
# Both take minutes and hardly more than a core each: side by side. The program is the one that the tests ran:
# `cargo run` of one package has other features of shared crates, and would build them all again.
report=$(mktemp)
trap 'rm -f "$report"' EXIT
"${CARGO_TARGET_DIR:-target}/debug/oxigemm" verify --quick --device sim >"$report" 2>&1 &
verify=$!
tools/python.sh || { kill "$verify"; exit 1; }
status=0
wait "$verify" || status=$?
cat "$report"
exit "$status"
