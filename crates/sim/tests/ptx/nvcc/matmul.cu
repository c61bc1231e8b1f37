// C = A B in bf16 with mma.sync: cp.async in two stages, ldmatrix, one 64x64 tile per block of four warps.
#include <cuda_bf16.h>
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
extern "C" __global__ void matmul(const __nv_bfloat16* a, const __nv_bfloat16* b, __nv_bfloat16* c, int m, int n, int k) {
  __shared__ __align__(16) __nv_bfloat16 sa[2][64][24], sb[2][64][24];
  int t = threadIdx.x, w = t / 32, l = t % 32, i0 = blockIdx.y * 64, j0 = blockIdx.x * 64;
  float d[8][4] = {};
  auto load = [&](int s, int k0) {
    int r = t / 2, h = t % 2 * 8;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at(&sa[s][r][h])), "l"(a + (i0 + r < m ? i0 + r : 0) * k + k0 + h), "r"(i0 + r < m ? 16 : 0));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at(&sb[s][r][h])), "l"(b + (j0 + r < n ? j0 + r : 0) * k + k0 + h), "r"(j0 + r < n ? 16 : 0));
    asm volatile("cp.async.commit_group;");
  };
  load(0, 0);
  for (int k0 = 0; k0 < k; k0 += 16) {
    int s = k0 / 16 % 2;
    if (k0 + 16 < k) {
      load(s ^ 1, k0 + 16);
      asm volatile("cp.async.wait_group 1;");
    } else asm volatile("cp.async.wait_group 0;");
    __syncthreads();
    unsigned x[4], y[2];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(at(&sa[s][w * 16 + l % 16][l / 16 * 8])));
#pragma unroll
    for (int j = 0; j < 8; j++) {
      asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(y[0]), "=r"(y[1]) : "r"(at(&sb[s][j * 8 + l % 8][l / 8 % 2 * 8])));
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" : "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
    }
    __syncthreads();
  }
#pragma unroll
  for (int j = 0; j < 8; j++)
    for (int h = 0; h < 2; h++) {
      int i = i0 + w * 16 + l / 4 + h * 8, q = j0 + j * 8 + l % 4 * 2;
      if (i < m && q < n) *(__nv_bfloat162*)(c + i * n + q) = __floats2bfloat162_rn(d[j][h * 2], d[j][h * 2 + 1]);
    }
}
