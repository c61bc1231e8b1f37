// A sum over blocks: shuffles, shared memory, an atomic; and a row softmax with dynamic shared memory.
__device__ __forceinline__ float warp_sum(float v) {
  for (int i = 16; i > 0; i /= 2) v += __shfl_xor_sync(~0u, v, i);
  return v;
}
__device__ __forceinline__ float warp_max(float v) {
  for (int i = 16; i > 0; i /= 2) v = fmaxf(v, __shfl_down_sync(~0u, v, i));
  return __shfl_sync(~0u, v, 0);
}
extern "C" __global__ void block_sum(const float* x, float* out, int n) {
  __shared__ float part[32];
  float s = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) s += x[i];
  s = warp_sum(s);
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane == 0) part[warp] = s;
  __syncthreads();
  if (warp == 0) {
    s = warp_sum(lane < blockDim.x / 32 ? part[lane] : 0.f);
    if (lane == 0) atomicAdd(out, s);
  }
}
extern __shared__ float row[];
extern "C" __global__ void softmax(const float* x, float* y, int n) {
  const float* in = x + (size_t)blockIdx.x * n;
  float m = -__int_as_float(0x7f800000);
  for (int i = threadIdx.x; i < n; i += 32) m = fmaxf(m, row[i] = in[i]);
  m = warp_max(m);
  float s = 0;
  for (int i = threadIdx.x; i < n; i += 32) s += row[i] = __expf(row[i] - m);
  s = 1.f / warp_sum(s);
  for (int i = threadIdx.x; i < n; i += 32) y[(size_t)blockIdx.x * n + i] = row[i] * s;
}
