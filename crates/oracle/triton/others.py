"""Kernels that are no GEMM: reductions, scans, sorts, atomics, attention."""
import triton
import triton.language as tl

from registry import kernel


@triton.jit
def softmax(x, y, N, BLOCK: tl.constexpr):
    """A row for each program; N is no multiple of the block."""
    cols = tl.arange(0, BLOCK)
    at = tl.program_id(0) * N + cols
    v = tl.load(x + at, mask=cols < N, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, e / tl.sum(e, 0), mask=cols < N)


@triton.jit
def layer_norm(x, w, b, y, N, BLOCK: tl.constexpr, EPS: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    at = tl.program_id(0) * N + cols
    inside = cols < N
    v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(v, 0) / N
    d = tl.where(inside, v - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(d * d, 0) / N + EPS)
    out = d * scale * tl.load(w + cols, mask=inside) + tl.load(b + cols, mask=inside)
    tl.store(y + at, out.to(y.dtype.element_ty), mask=inside)


@triton.jit
def transpose(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (rows[:, None] < M) & (cols[None, :] < N)
    v = tl.load(x + rows[:, None] * N + cols[None, :], mask=inside, other=0)
    tl.store(y + cols[:, None] * M + rows[None, :], v.T, mask=inside.T)


@triton.jit
def column_sum(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Column sums: a block of rows for each program, added by atomics. Y starts as zeros."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.arange(0, BN)
    v = tl.load(x + rows[:, None] * N + cols[None, :])
    tl.atomic_add(y + cols, tl.sum(v.to(tl.float32), 0))


@triton.jit
def locked_sum(x, y, lock, N, BN: tl.constexpr):
    """The same under a spin lock, which starts as zero."""
    cols = tl.arange(0, BN)
    v = tl.load(x + tl.program_id(0) * N + cols)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(y + cols, tl.load(y + cols) + v)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def histogram(x, y, BLOCK: tl.constexpr, BINS: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y + tl.arange(0, BINS), tl.histogram(tl.load(x + at), BINS))


@triton.jit
def cumsum(x, y, BM: tl.constexpr, BN: tl.constexpr):
    at = (tl.program_id(0) * BM + tl.arange(0, BM))[:, None] * BN + tl.arange(0, BN)[None, :]
    tl.store(y + at, tl.cumsum(tl.load(x + at), 1))


@triton.jit
def sort(x, y, BM: tl.constexpr, BN: tl.constexpr):
    at = (tl.program_id(0) * BM + tl.arange(0, BM))[:, None] * BN + tl.arange(0, BN)[None, :]
    tl.store(y + at, tl.sort(tl.load(x + at), 1))


@triton.jit
def argmax(x, y, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    v = tl.load(x + rows[:, None] * BN + tl.arange(0, BN)[None, :])
    tl.store(y + rows, tl.argmax(v, 1))


@triton.jit
def print_rows(x, y, BLOCK: tl.constexpr):
    """Y = X, and every element is printed."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at)
    tl.device_print("v", v)
    tl.store(y + at, v)


@triton.jit
def attention(q, k, v, o, N, SCALE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    """O = softmax(Q K^T * SCALE) V, online, one head."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    x = tl.load(q + rows[:, None] * D + d[None, :])
    most = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for n in range(0, N, BN):
        cols = n + tl.arange(0, BN)
        s = tl.dot(x, tl.load(k + cols[None, :] * D + d[:, None])) * (SCALE * 1.4426950408889634)
        new = tl.maximum(most, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        old = tl.exp2(most - new)
        total = total * old + tl.sum(p, 1)
        acc = acc * old[:, None]
        acc = tl.dot(p.to(v.dtype.element_ty), tl.load(v + cols[:, None] * D + d[None, :]), acc)
        most = new
    tl.store(o + rows[:, None] * D + d[None, :], (acc / total[:, None]).to(o.dtype.element_ty))


@triton.jit
def attention_maps(dq, dk, dv, do, N, SCALE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
                   WS: tl.constexpr):
    """The same with tensor maps."""
    row = tl.program_id(0) * BM
    x = dq.load([row, 0])
    most = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for n in tl.range(0, N, BN, warp_specialize=WS):
        s = tl.dot(x, dk.load([n, 0]).T) * (SCALE * 1.4426950408889634)
        new = tl.maximum(most, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        old = tl.exp2(most - new)
        total = total * old + tl.sum(p, 1)
        acc = acc * old[:, None]
        acc = tl.dot(p.to(dv.dtype), dv.load([n, 0]), acc)
        most = new
    do.store([row, 0], (acc / total[:, None]).to(do.dtype))


def rows(name, fn, arch, reference, ty, out, m, n, bm, consts, out_shape=None, warps=4, ctas=1, scalars=None, **about):
    """A kernel of X[M, N] with a program for every `bm` rows."""
    kernel(name, fn, {"x": "*" + ty, "y": "*" + out, **{s: "i32" for s in scalars or {}}}, consts, arch, reference,
           (m // bm,), scalars, {"x": (m, n), "y": out_shape or (m, n)}, dict(num_warps=warps, num_ctas=ctas), **about)


rows("sm80_softmax", softmax, 80, "softmax", "fp32", "fp32", 8, 200, 1, {"BLOCK": 256}, scalars={"N": 200})
rows("sm90_softmax_2ctas", softmax, 90, "softmax", "fp32", "fp32", 8, 1000, 1, {"BLOCK": 1024}, ctas=2,
     scalars={"N": 1000})
kernel("sm86_layer_norm", layer_norm, {"x": "*fp16", "w": "*fp32", "b": "*fp32", "y": "*fp16", "N": "i32"},
       {"BLOCK": 512, "EPS": 1e-5}, 86, "layer_norm", (8,), {"N": 400},
       {"x": (8, 400), "w": (400,), "b": (400,), "y": (8, 400)}, dict(num_warps=4))
for arch, ty in ((80, "fp32"), (89, "u8")):
    kernel(f"sm{arch}_transpose", transpose, {"x": "*" + ty, "y": "*" + ty, "M": "i32", "N": "i32"},
           {"BM": 64, "BN": 32}, arch, "transpose", (2, 3), {"M": 96, "N": 80}, {"x": (96, 80), "y": (80, 96)},
           dict(num_warps=4))
rows("sm80_column_sum", column_sum, 80, "column_sum", "fp16", "fp32", 128, 64, 32, {"BM": 32, "BN": 64}, (64,),
     scalars={"M": 128, "N": 64}, zeroed=["y"])
kernel("sm80_locked_sum", locked_sum, {"x": "*fp32", "y": "*fp32", "lock": "*i32", "N": "i32"}, {"BN": 128}, 80,
       "column_sum", (6,), {"N": 128}, {"x": (6, 128), "y": (128,), "lock": (1,)}, dict(num_warps=4),
       zeroed=["y", "lock"])
rows("sm80_histogram", histogram, 80, "histogram", "i32", "i32", 4, 256, 1, {"BLOCK": 256, "BINS": 32}, (32,),
     zeroed=["y"])
rows("sm86_cumsum", cumsum, 86, "cumsum", "fp32", "fp32", 32, 256, 8, {"BM": 8, "BN": 256})
rows("sm89_sort", sort, 89, "sort", "fp32", "fp32", 16, 128, 8, {"BM": 8, "BN": 128})
rows("sm90_sort_i32", sort, 90, "sort", "i32", "i32", 8, 256, 4, {"BM": 4, "BN": 256})
rows("sm90_argmax", argmax, 90, "argmax", "fp32", "i32", 32, 256, 8, {"BM": 8, "BN": 256}, (32,))
rows("sm80_print", print_rows, 80, "copy", "i32", "i32", 2, 32, 1, {"BLOCK": 32}, warps=1)
for name, arch, ty, bm, bn, d in (("sm80_attention", 80, "fp16", 64, 32, 64), ("sm89_attention", 89, "bf16", 64, 64, 64),
                                  ("sm90_attention", 90, "bf16", 64, 64, 64), ("sm100_attention", 100, "bf16", 128, 64, 64)):
    kernel(name, attention, {x: "*" + ty for x in "qkvo"} | {"N": "i32"}, {"SCALE": 0.125, "BM": bm, "BN": bn, "D": d},
           arch, "attention", (2,), {"N": 4 * bn}, {"q": (2 * bm, d), "k": (4 * bn, d), "v": (4 * bn, d), "o": (2 * bm, d)},
           dict(num_warps=4, num_stages=3))
for name, arch, bm, bn, ws in (("sm90_attention_maps", 90, 64, 64, False), ("sm90_attention_maps_ws", 90, 64, 64, True),
                               ("sm100_attention_maps_ws", 100, 128, 64, True)):
    kernel(name, attention_maps,
           {"dq": f"tensordesc<fp16[{bm},64]>", "dk": f"tensordesc<fp16[{bn},64]>", "dv": f"tensordesc<fp16[{bn},64]>",
            "do": f"tensordesc<fp16[{bm},64]>", "N": "i32"}, {"SCALE": 0.125, "BM": bm, "BN": bn, "D": 64, "WS": ws},
           arch, "attention", (2,), {"N": 4 * bn},
           {"dq": (2 * bm, 64), "dk": (4 * bn, 64), "dv": (4 * bn, 64), "do": (2 * bm, 64)},
           dict(num_warps=4, num_stages=3))
