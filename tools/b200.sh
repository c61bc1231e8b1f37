#!/usr/bin/env bash
# Checks on a Blackwell GPU what docs/blackwell.md claims, and packs what it finds into one archive.
#
#   tools/b200.sh [BINARY [DIR]]             on a B200 or a B300: about an hour
#   tools/b200.sh --dry-run [BINARY [DIR]]   the same steps in the simulator, with tiny shapes: a minute
#
# BINARY is an `oxigemm`, else that of target/release. DIR is where results go, else b200-results. Nothing else is
# written to, nothing is sent anywhere, and a step that fails stops no other.
set -euo pipefail
cd "$(dirname "$0")/.."
dry=
[ "${1:-}" = --dry-run ] && { dry=1; shift; }
binary=$(realpath "${1:-target/release/oxigemm}")
[ -x "$binary" ] || { echo "$binary is not here: cargo build --release" >&2; exit 2; }
mkdir -p "${2:-b200-results}"
results=$(realpath "${2:-b200-results}")
device=cuda
[ -n "$dry" ] && device=sim:sm_100a
oxigemm() { "$binary" --device "$device" "$@"; }
if [ -z "$dry" ] && ! nvidia-smi --query-gpu=compute_cap --format=csv,noheader | grep -q '^10\.'; then
    echo "no GPU of compute capability 10.0 or 10.3 is here (--dry-run needs none)" >&2
    exit 2
fi

failed=()
# step NAME COMMAND...: runs a step into NAME.txt, and says how it went.
step() {
    local name=$1 started=$SECONDS
    shift
    local status=0
    # In a condition, the commands of a function would not end it where they fail.
    set +e
    (set -e; "$@") >"$results/$name.txt" 2>&1
    status=$?
    set -e
    if [ "$status" = 0 ]; then
        echo "ok      $name ($((SECONDS - started)) s)"
    else
        echo "FAILED  $name ($((SECONDS - started)) s): $results/$name.txt ends with"
        tail -n 3 "$results/$name.txt" | sed 's/^/        /'
        failed+=("$name")
    fi
}

about() {
    uname -sr
    git rev-parse HEAD 2>/dev/null || true
    "$binary" --version
    "$binary" devices
    "$binary" devices --json
    [ -n "$dry" ] || nvidia-smi
    [ -n "$dry" ] || nvidia-smi -q -d CLOCK,POWER,ECC
}

# What the model predicts and what the GPU takes: the tables of docs/blackwell.md.
predictions() {
    local size=("8192 8192 4096") ops="mxfp8 mxfp4 nvfp4 fp8-fp4 fp8-ue8m0 bf16 fp16" runs=(--runs 20)
    size+=("128 7168 2048" "4096 7168 4096")
    [ -n "$dry" ] && size=("40 48 128")
    printf '%-10s %-16s %-56s %12s %12s %10s\n' op "m n k" plan "estimate, us" "measured, us" TFLOPS
    local op m n k shape plan found estimate time
    for op in $ops; do
        for shape in "${size[@]}"; do
            read -r m n k <<<"$shape"
            plan=$("$binary" inspect --arch sm_100a --op "$op" -m "$m" -n "$n" -k "$k" --top 1)
            found=$(oxigemm gemm --op "$op" -m "$m" -n "$n" -k "$k" "${runs[@]}")
            grep -q '^result  *right' <<<"$found"
            estimate=$(awk '/^candidate/ { getline; print $2 }' <<<"$plan")
            time=$(awk '/^time/ { print $2, $4 }' <<<"$found")
            [ -n "$estimate" ]
            [ -n "$dry$time" ]
            plan=$(awk '/^plan/ { print $2 }' <<<"$found")
            printf '%-10s %-16s %-56s %12s %12s %10s\n' "$op" "$shape" "$plan" "$estimate" ${time:-- -}
        done
    done
}

suite() {
    if [ -z "$dry" ]; then
        oxigemm bench --json --suite "$1"
        return
    fi
    # The simulator has no times, and says so.
    local said
    said=$(oxigemm bench --suite "$1" 2>&1) && return 1
    echo "$said"
    grep -q 'bench needs a GPU' <<<"$said"
}

# Every family of kernels under the tools of compute-sanitizer.
sanitizer() {
    command -v compute-sanitizer || [ -x /usr/local/cuda/bin/compute-sanitizer ] || {
        echo "compute-sanitizer is not here: it comes with the CUDA toolkit"
        return 0
    }
    [ -n "$dry" ] || tools/sanitize.sh "$binary"
}

verify=(verify --json)
compare=(verify --json --compare sim)
if [ -n "$dry" ]; then
    verify=(verify --json --quick --filter "mxfp8: random")
    compare=(gemm --op mxfp8 -m 20 -n 40 -k 128)
fi
step about about
step verify oxigemm "${verify[@]}"
step compare oxigemm "${compare[@]}"
step predictions predictions
for suite in models fused quantize hc einsum; do
    step "bench-$suite" suite "$suite"
done
step sanitizer sanitizer

archive=$results.tar.gz
tar -czf "$archive" -C "$(dirname "$results")" "$(basename "$results")"
echo
cat "$results/predictions.txt"
echo "${#failed[@]} of 10 steps failed${failed[*]:+: ${failed[*]}}"
echo "Please attach $archive to an issue: it holds the names of the GPU, its driver and its kernel, times and results."
[ ${#failed[@]} = 0 ]
