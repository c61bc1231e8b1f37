// What compilers make of ordinary code: calls, structures by value, local arrays, switches, tables, division.
struct P { int a; float b; long long c[2]; };
__constant__ int primes[8] = {2, 3, 5, 7, 11, 13, 17, 19};
__device__ int counter = 5;
__device__ int* where = &counter;
__noinline__ __device__ P mix(P p, int k) {
  P r = {p.a * k, p.b / (float)k, {p.c[1] / (k + 3), p.c[0] % (k + 7)}};
  return r;
}
__noinline__ __device__ double wave(double x, int n) {
  double s = 0;
  for (int i = 1; i <= n; i++) s = fma(s, x, 1.0 / i) + sqrt(x);
  return s;
}
__device__ int choose(int op, int x) {
  switch (op) {
    case 0: return x + 1;
    case 1: return x * 7;
    case 2: return x ^ 0x55;
    case 3: return __popc(x) + __clz(x);
    case 4: return __brev(x) >> 20;
    case 5: return __funnelshift_l(x, ~x, 5);
    case 6: return __byte_perm(x, op, 0x3210) / (x | 1);
    default: return -x;
  }
}
extern "C" __global__ void calls(int* out, long long* wide, double* real, int seed) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  int stack[16];
  for (int i = 0; i < 16; i++) stack[i] = choose((t + i) % 9, seed + i * t);
  P p = {t, 1.5f * t, {t * 1000000007LL, -t}};
  p = mix(p, primes[t % 8]);
  if (t & 1) p = mix(p, stack[t % 16] & 15 | 1);
  out[t] = stack[(seed + t) % 16] + p.a + (int)(p.b * 4.f);
  wide[t] = p.c[0] - p.c[1];
  real[t] = wave(1.0 + t, t % 5 + 1);
  if (t % 3 == 0) atomicAdd(where, 2);
}
