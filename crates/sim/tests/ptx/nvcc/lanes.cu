// Votes, matches, atomics of every kind, packed halves, FP8, generic addresses.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
extern "C" __global__ void lanes(const unsigned* x, unsigned* out, unsigned* cells, float* sums) {
  __shared__ unsigned bins[16];
  __shared__ unsigned long long big;
  unsigned t = threadIdx.x, v = x[t], r = 0;
  if (t < 16) bins[t] = 0;
  if (t == 0) big = 0;
  __syncthreads();
  atomicAdd(&bins[v % 16], v);
  atomicMax(&big, (unsigned long long)v << 20);
  r += __ballot_sync(~0u, v & 1) + __popc(__match_any_sync(~0u, v % 5)) + __any_sync(~0u, v == 7);
  r ^= __reduce_add_sync(~0u, v) + __shfl_up_sync(~0u, v, 3, 8);
  if (v & 4) r += __activemask() == __ballot_sync(__activemask(), 1);
  atomicCAS(&cells[0], 0u, 9u); atomicExch(&cells[1], 77u); atomicInc(&cells[2], 10u);
  atomicMin((int*)&cells[3], -(int)t); atomicXor(&cells[4], v); atomicAdd(&sums[0], 0.5f);
  atomicAdd((__half2*)&cells[5], __floats2half2_rn(1.f, 2.f));
  atomicAdd((__nv_bfloat162*)&cells[6], __floats2bfloat162_rn(1.f, -1.f));
  __half2 h = __hfma2(__floats2half2_rn(v, t), __float2half2_rn(0.25f), __float2half2_rn(1.f));
  __nv_bfloat162 b = __hmul2(__floats2bfloat162_rn(v, t), __float2bfloat162_rn(3.f));
  b = __hmax2(b, __float2bfloat162_rn(40.f));
  __nv_fp8_e4m3 q((float)v * 0.37f);
  __nv_fp8_e5m2 e((float)t * 1.9f);
  unsigned* p = t % 2 ? &bins[t % 16] : (unsigned*)&big;
  __syncthreads();
  r += *p + *(unsigned*)&h + *(unsigned*)&b + q.__x * 3 + e.__x;
  r += __hgt(__low2half(h), __high2half(h)) + __dp4a((int)v, (int)t, 5) + __vadd2(v, t);
  r += __float2uint_rn(float(q) * 8.f) + __umulhi(v, 0x9e3779b9u) + __float_as_uint(exp2f(t * 0.125f)) / 3;
  out[t] = r;
}
