#!/usr/bin/env bash
# Runs small calls of every family of kernels on the GPU under compute-sanitizer: memcheck, racecheck and synccheck.
# Racecheck leaves out FP8 by MXFP4 and layers: there one barrier waits both for bytes that TMA writes and for threads that
# write scales or messages, and it reports what such threads write as a race (also of 16-bit m-grouped kernels, and at the
# same instructions of every stage). The simulator, which orders both, reports none.
#
#   tools/sanitize.sh [BINARY [FILTER]]
#
# BINARY is an `oxigemm`, else that of target/release; FILTER takes only calls that contain it. Each call also compares its result. Fails if
# any call has an error, a hazard or a wrong result.
set -euo pipefail

binary=${1:-target/release/oxigemm}
filter=${2:-}
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[ -x "$sanitizer" ] || { echo "compute-sanitizer is not here: it comes with the CUDA toolkit" >&2; exit 2; }

calls() {
    local few="-m 70 -k 1000 --runs 0" many="-m 300 -k 4096 --runs 0"
    for granularity in 1x128 1x32 128x128 128x1 row tensor; do
        echo "quantize --granularity $granularity $few"
        echo "quantize --granularity $granularity --input f32 --code e5m2 --power-of-two $many"
        echo "quantize --op dequantize --granularity $granularity $few"
    done
    echo "quantize --granularity tensor -m 700 -k 7168 --runs 0"
    echo "quantize --granularity 1x128 --scales packed --power-of-two $few"
    echo "quantize --granularity 1x32 --code u8 --scales blocked --power-of-two $few"
    for op in by-scale transform gather rmsnorm nvfp4 nvfp4-computed nvfp4-dequantize both swiglu; do
        echo "quantize --op $op $few"
        echo "quantize --op $op $many"
    done
    echo "quantize --op both --granularity 128x128 $many"
    for heads in 8 64; do
        echo "logits --heads $heads --queries 70 --keys 700 --runs 0"
        echo "logits --heads $heads --dim 32 --queries 9 --keys 300 --form compressed --logits bf16 --runs 0"
        for page in 16 64; do
            echo "logits --heads $heads --paged 1000,0,33,300 --page $page --next 2 --runs 0"
        done
    done
    echo "hc -m 300 -k 1000 --runs 0"
    echo "hc -m 300 -n 8 -k 1000 --splits 3 --runs 0"
    for m in 1 64 128 300; do
        echo "gemm --op fp8 -m $m -n 512 -k 1024 --runs 0"
        echo "gemm --op bf16 -m $m -n 512 -k 1024 --runs 0"
    done
    for tile in 128x128_s6_c1x1 128x256_s3_c1x1; do
        echo "gemm --op bf16 -m 500 -n 700 -k 1000 --num-sms 8 --choice sm90_bf16_persistent_stream_k_nt_$tile --runs 0"
    done
    for op in fp8-contiguous fp8-masked; do
        echo "gemm --op $op --groups 5 -m 200 -n 512 -k 1024 --runs 0"
    done
    echo "gemm --op fp8-1d1d -m 300 -n 512 -k 1024 --runs 0"
    for op in fp8-fp4 fp8-fp4-contiguous fp8-fp4-masked; do
        for m in 3 70 300; do
            echo "gemm --op $op -m $m -n 512 -k 1024 --runs 0"
        done
    done
    echo "verify --quick --filter layers"
    echo "verify --quick --filter router"
}

check() {
    local log
    log=$(mktemp)
    if "$1" --tool "$2" --error-exitcode 9 "$3" $4 >"$log" 2>&1; then
        echo "ok      $2 $4"
    else
        echo "FAILED  $2 $4"
        sed 's/^/        /' "$log" | head -40
    fi
    rm -f "$log"
}
export -f check

unknown_to_racecheck='fp8-fp4|layers'
results=$(for tool in memcheck racecheck synccheck; do
    calls | { grep -F -- "$filter" || true; } | while read -r call; do
        [[ $tool = racecheck && $call =~ $unknown_to_racecheck ]] || printf '%s\0%s\0' "$tool" "$call"
    done
done | xargs -0 -n 2 -P "$(nproc)" bash -c 'check "$0" "$2" "$1" "$3"' "$sanitizer" "$binary")
echo "$results"
echo "$(grep -c '^ok' <<<"$results") of $(grep -c '^ok\|^FAILED' <<<"$results") calls are clean"
! grep -q '^FAILED' <<<"$results"
