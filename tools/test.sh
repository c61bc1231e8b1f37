#!/usr/bin/env bash
# Everything that can be tested without a GPU. (With one: `oxigemm verify`.)
set -euo pipefail
cd "$(dirname "$0")/.."
export OXIGEMM_PTXAS="${OXIGEMM_PTXAS:-$(tools/ptxas.sh)}"
cargo test --workspace --locked --no-fail-fast
cargo run --locked --quiet --package oxigemm-cli -- verify --quick --device sim
tools/python.sh
