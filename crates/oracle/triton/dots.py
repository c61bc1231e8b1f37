"""GEMMs by `tl.dot` and `tl.dot_scaled`: C[M, N] = A[M, K] @ B[N, K]^T, both operands K-major."""
import triton
import triton.language as tl

from registry import kernel


@triton.jit
def dot_ptr(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PREC: tl.constexpr,
            SUM: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=SUM)
    for k in range(0, K, BK):
        ks = k + tl.arange(0, BK)
        x = tl.load(a + rows[:, None] * K + ks[None, :])
        y = tl.load(b + cols[None, :] * K + ks[:, None])
        acc = tl.dot(x, y, acc, input_precision=PREC, out_dtype=SUM)
    tl.store(c + rows[:, None] * N + cols[None, :], acc.to(c.dtype.element_ty))


@triton.jit
def dot_left_cast(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """A is doubled on its way: on Blackwell it goes through tensor memory, on Hopper it stays in registers."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        ks = k + tl.arange(0, BK)
        x = (tl.load(a + rows[:, None] * K + ks[None, :]).to(tl.float32) * 2.0).to(b.dtype.element_ty)
        y = tl.load(b + cols[None, :] * K + ks[:, None])
        acc = tl.dot(x, y, acc)
    tl.store(c + rows[:, None] * N + cols[None, :], acc)


@triton.jit
def dot_split(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLITS: tl.constexpr):
    """Split-K: every split adds its accumulators to C by atomics. C starts as zeros."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.program_id(2) * BK, K, BK * SPLITS):
        ks = k + tl.arange(0, BK)
        x = tl.load(a + rows[:, None] * K + ks[None, :])
        y = tl.load(b + cols[None, :] * K + ks[:, None])
        acc = tl.dot(x, y, acc)
    tl.atomic_add(c + rows[:, None] * N + cols[None, :], acc)


@triton.jit
def scaled_ptr(a, b, c, sa, sb, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, FA: tl.constexpr,
               FB: tl.constexpr, GROUP: tl.constexpr):
    """Scales are plain rows: sa[M, K / GROUP], sb[N, K / GROUP]."""
    pa: tl.constexpr = 2 if FA == "e2m1" else 1
    pb: tl.constexpr = 2 if FB == "e2m1" else 1
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        ka = k // pa + tl.arange(0, BK // pa)
        kb = k // pb + tl.arange(0, BK // pb)
        ks = k // GROUP + tl.arange(0, BK // GROUP)
        x = tl.load(a + rows[:, None] * (K // pa) + ka[None, :])
        y = tl.load(b + cols[None, :] * (K // pb) + kb[:, None])
        s = tl.load(sa + rows[:, None] * (K // GROUP) + ks[None, :])
        t = tl.load(sb + cols[:, None] * (K // GROUP) + ks[None, :])
        acc = tl.dot_scaled(x, s, FA, y, t, FB, acc)
    tl.store(c + rows[:, None] * N + cols[None, :], acc)


@triton.jit
def dot_device_maps(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PROGRAMS: tl.constexpr,
                    WS: tl.constexpr, FLATTEN: tl.constexpr):
    """Persistent; the kernel makes its tensor maps itself, in global scratch."""
    da = tl.make_tensor_descriptor(a, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
    db = tl.make_tensor_descriptor(b, shape=[N, K], strides=[K, 1], block_shape=[BN, BK])
    dc = tl.make_tensor_descriptor(c, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    across = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BM) * across, PROGRAMS, flatten=FLATTEN, warp_specialize=WS):
        row = tile // across * BM
        col = tile % across * BN
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(0, K, BK):
            acc = tl.dot(da.load([row, k]), db.load([col, k]).T, acc)
        dc.store([row, col], acc.to(c.dtype.element_ty))


@triton.jit
def dot_host_maps(da, db, dc, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PROGRAMS: tl.constexpr,
                  WS: tl.constexpr):
    """Persistent, with tensor maps of the host."""
    across = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BM) * across, PROGRAMS, flatten=True, warp_specialize=WS):
        row = tile // across * BM
        col = tile % across * BN
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(0, K, BK):
            acc = tl.dot(da.load([row, k]), db.load([col, k]).T, acc)
        dc.store([row, col], acc.to(dc.dtype))


@triton.jit
def scaled_maps(da, db, dsa, dsb, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, FA: tl.constexpr,
                FB: tl.constexpr, GROUP: tl.constexpr):
    """Scales packed in tiles of 128 rows by four groups, so that they go from shared to tensor memory as they are."""
    pa: tl.constexpr = 2 if FA == "e2m1" else 1
    pb: tl.constexpr = 2 if FB == "e2m1" else 1
    ta: tl.constexpr = BM // 128
    tb: tl.constexpr = BN // 128
    tk: tl.constexpr = BK // GROUP // 4
    pm = tl.program_id(0)
    pn = tl.program_id(1)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K // BK):
        x = da.load([pm * BM, k * (BK // pa)])
        y = db.load([pn * BN, k * (BK // pb)])
        s = dsa.load([0, pm * ta, k * tk, 0, 0]).reshape(ta, tk, 32, 4, 4).trans(0, 3, 2, 1, 4).reshape(BM, BK // GROUP)
        t = dsb.load([0, pn * tb, k * tk, 0, 0]).reshape(tb, tk, 32, 4, 4).trans(0, 3, 2, 1, 4).reshape(BN, BK // GROUP)
        acc = tl.dot_scaled(x, s, FA, y.T, t, FB, acc)
    rows = pm * BM + tl.arange(0, BM)
    cols = pn * BN + tl.arange(0, BN)
    tl.store(c + rows[:, None] * N + cols[None, :], acc)


MNK = {"M": "i32", "N": "i32", "K": "i32"}
SUMS = {"fp32": tl.float32, "fp16": tl.float16, "i32": tl.int32}
ELEMENTS = {"e4m3": "fp8e4nv", "e5m2": "fp8e5", "e2m1": "u8"}


def sizes(bm, bn, bk, tiles=None, steps=4):
    """A small GEMM of whole tiles, with enough steps along K that every stage is used again."""
    down, across = tiles or ((2, 2) if bm * bn <= 128 * 128 else (1, 2))
    return {"M": down * bm, "N": across * bn, "K": steps * bk}, (down, across)


def ptr(name, arch, ty, out, bm, bn, bk, prec="tf32", sum="fp32", warps=4, stages=3, ctas=1, fn=dot_ptr, **about):
    size, tiles = sizes(bm, bn, bk)
    consts = {"BM": bm, "BN": bn, "BK": bk}
    if fn is dot_ptr:
        consts.update(PREC=prec, SUM=SUMS[sum])
    kernel(name, fn, {"a": "*" + ty, "b": "*" + ty, "c": "*" + out, **MNK}, consts, arch, "dot", tiles, size,
           {"a": (size["M"], size["K"]), "b": (size["N"], size["K"]), "c": (size["M"], size["N"])},
           dict(num_warps=warps, num_stages=stages, num_ctas=ctas), **about)


def device_maps(name, arch, ty, out, bm, bn, bk, programs=4, ws=False, flatten=True, tiles=(3, 2), warps=4, **options):
    size, _ = sizes(bm, bn, bk, tiles)
    grid = tiles[0] * tiles[1] if programs > 1 << 20 else programs
    kernel(name, dot_device_maps, {"a": "*" + ty, "b": "*" + ty, "c": "*" + out, **MNK},
           {"BM": bm, "BN": bn, "BK": bk, "PROGRAMS": programs, "WS": ws, "FLATTEN": flatten}, arch, "dot", (grid,), size,
           {"a": (size["M"], size["K"]), "b": (size["N"], size["K"]), "c": (size["M"], size["N"])},
           dict(num_warps=warps, num_stages=3, **options))


def host_maps(name, arch, ty, out, bm, bn, bk, programs=4, ws=False, tiles=(3, 2), warps=4, **options):
    size, _ = sizes(bm, bn, bk, tiles)
    kernel(name, dot_host_maps,
           {"da": f"tensordesc<{ty}[{bm},{bk}]>", "db": f"tensordesc<{ty}[{bn},{bk}]>",
            "dc": f"tensordesc<{out}[{bm},{bn}]>", **MNK},
           {"BM": bm, "BN": bn, "BK": bk, "PROGRAMS": programs, "WS": ws}, arch, "dot", (programs,), size,
           {"da": (size["M"], size["K"]), "db": (size["N"], size["K"]), "dc": (size["M"], size["N"])},
           dict(num_warps=warps, num_stages=3, **options))


def packed(rows, k, group):
    return 1, rows // 128, k // group // 4, 2, 256


def scaled(name, arch, fa, fb, group=32, bm=128, bn=128, bk=128, warps=4, stages=2):
    s = "*fp8e4nv" if group == 16 else "*u8"
    size, tiles = sizes(bm, bn, bk, steps=3)
    m, n, k = size["M"], size["N"], size["K"]
    pa, pb = (2 if f == "e2m1" else 1 for f in (fa, fb))
    kernel(name, scaled_ptr, {"a": "*" + ELEMENTS[fa], "b": "*" + ELEMENTS[fb], "c": "*fp32", "sa": s, "sb": s, **MNK},
           {"BM": bm, "BN": bn, "BK": bk, "FA": fa, "FB": fb, "GROUP": group}, arch, "dot_scaled", tiles, size,
           {"a": (m, k // pa), "b": (n, k // pb), "c": (m, n), "sa": (m, k // group), "sb": (n, k // group)},
           dict(num_warps=warps, num_stages=stages))


def scaled_tma(name, fa, fb, group=32, bm=128, bn=128, bk=128, warps=4, stages=2, ctas=1):
    s = "fp8e4nv" if group == 16 else "u8"
    pa, pb = (2 if f == "e2m1" else 1 for f in (fa, fb))
    tk = bk // group // 4
    size, tiles = sizes(bm, bn, bk, steps=3)
    m, n, k = size["M"], size["N"], size["K"]
    kernel(name, scaled_maps,
           {"da": f"tensordesc<{ELEMENTS[fa]}[{bm},{bk // pa}]>", "db": f"tensordesc<{ELEMENTS[fb]}[{bn},{bk // pb}]>",
            "dsa": f"tensordesc<{s}[1,{bm // 128},{tk},2,256]>", "dsb": f"tensordesc<{s}[1,{bn // 128},{tk},2,256]>",
            "c": "*fp32", **MNK},
           {"BM": bm, "BN": bn, "BK": bk, "FA": fa, "FB": fb, "GROUP": group}, 100, "dot_scaled", tiles, size,
           {"da": (m, k // pa), "db": (n, k // pb), "c": (m, n), "dsa": packed(m, k, group), "dsb": packed(n, k, group)},
           dict(num_warps=warps, num_stages=stages, num_ctas=ctas))


# Blackwell: one kind of tcgen05.mma after the other.
ptr("sm100_f16", 100, "fp16", "fp32", 128, 128, 64)
ptr("sm100_f16_m64", 100, "fp16", "fp32", 64, 64, 64)
ptr("sm100_f16_m256", 100, "fp16", "fp32", 256, 128, 64, warps=8)
ptr("sm100_bf16_2ctas", 100, "bf16", "fp32", 256, 128, 64, ctas=2)
ptr("sm100_e4m3", 100, "fp8e4nv", "fp32", 128, 128, 128)
ptr("sm100_e5m2", 100, "fp8e5", "fp32", 128, 64, 128)
ptr("sm100_tf32", 100, "fp32", "fp32", 128, 128, 32)
ptr("sm100_tf32x3", 100, "fp32", "fp32", 128, 64, 32, prec="tf32x3", stages=2)
ptr("sm100_bf16_left_tmem", 100, "bf16", "fp32", 128, 128, 64, fn=dot_left_cast, factor=2)
ptr("sm100_i8", 100, "i8", "i32", 128, 128, 64, sum="i32")
for ws in (False, True):
    tag = "_ws" if ws else ""
    device_maps("sm100_bf16_device_maps" + tag, 100, "bf16", "bf16", 128, 128, 64, ws=ws)
    host_maps("sm100_bf16_host_maps" + tag, 100, "bf16", "bf16", 128, 128, 64, ws=ws)
host_maps("sm100_bf16_host_maps_2cta", 100, "bf16", "bf16", 256, 128, 64, programs=2, tiles=(3, 1), num_ctas=2)
device_maps("sm100_e4m3_device_maps_ws", 100, "fp8e4nv", "fp16", 128, 256, 128, programs=2, tiles=(3, 1), ws=True)
device_maps("sm100_bf16_device_maps_clc", 100, "bf16", "bf16", 128, 128, 64, programs=1 << 30, flatten=False, clc=True)
scaled("sm100_mxfp8", 100, "e4m3", "e4m3")
scaled("sm100_mxfp8_e5m2", 100, "e5m2", "e4m3")
scaled("sm100_mxfp4", 100, "e2m1", "e2m1", bk=256)
scaled("sm100_nvfp4", 100, "e2m1", "e2m1", group=16, bk=256)
scaled("sm100_mx_e4m3_e2m1", 100, "e4m3", "e2m1")
scaled_tma("sm100_mxfp8_cp", "e4m3", "e4m3")
scaled_tma("sm100_mxfp4_cp", "e2m1", "e2m1", bk=256)
scaled_tma("sm100_nvfp4_cp", "e2m1", "e2m1", group=16, bk=256)
scaled_tma("sm100_nvfp4_cp_n256", "e2m1", "e2m1", group=16, bn=256, bk=256)
scaled_tma("sm100_mx_e4m3_e2m1_cp", "e4m3", "e2m1")
# Ampere and Ada: mma.sync.
ptr("sm80_bf16", 80, "bf16", "fp32", 64, 64, 64)
ptr("sm80_f16", 80, "fp16", "fp16", 64, 128, 32)
ptr("sm80_f16_sum16", 80, "fp16", "fp16", 64, 64, 32, sum="fp16")
ptr("sm80_tf32", 80, "fp32", "fp32", 64, 64, 32)
ptr("sm80_tf32x3", 80, "fp32", "fp32", 32, 32, 32, prec="tf32x3")
ptr("sm80_i8", 80, "i8", "i32", 64, 64, 64, sum="i32")
ptr("sm86_f16_8_warps", 86, "fp16", "fp32", 128, 64, 32, warps=8, stages=4)
ptr("sm89_e4m3", 89, "fp8e4nv", "fp32", 64, 64, 64)
ptr("sm89_e5m2", 89, "fp8e5", "fp32", 64, 64, 64)
# Hopper: wgmma.
ptr("sm90_e4m3", 90, "fp8e4nv", "fp32", 64, 128, 128)
ptr("sm90_e5m2", 90, "fp8e5", "fp32", 64, 64, 64)
ptr("sm90_bf16", 90, "bf16", "fp32", 128, 128, 64, warps=8)
ptr("sm90_tf32", 90, "fp32", "fp32", 64, 64, 32)
ptr("sm90_i8", 90, "i8", "i32", 64, 64, 64, sum="i32")
ptr("sm90_bf16_2ctas", 90, "bf16", "fp32", 128, 128, 64, ctas=2)
ptr("sm90_bf16_left_regs", 90, "bf16", "fp32", 64, 64, 64, fn=dot_left_cast, factor=2)
host_maps("sm90_e4m3_host_maps", 90, "fp8e4nv", "bf16", 64, 128, 128, programs=3)
host_maps("sm90_bf16_host_maps_ws", 90, "bf16", "bf16", 128, 128, 64, programs=3, ws=True, tiles=(2, 2))
host_maps("sm90_bf16_host_maps_2ctas", 90, "bf16", "bf16", 128, 128, 64, programs=3, tiles=(2, 2), num_ctas=2)
device_maps("sm90_bf16_device_maps", 90, "bf16", "bf16", 64, 64, 64, programs=3)
device_maps("sm90_e4m3_device_maps_ws", 90, "fp8e4nv", "fp16", 64, 128, 128, programs=3, ws=True)
scaled("sm90_mxfp8_emulated", 90, "e4m3", "e4m3", bm=64, bn=64)
# Blackwell of the desk: mma.sync with block scales.
scaled("sm120_mxfp8", 120, "e4m3", "e4m3", bm=64, bn=64)
scaled("sm120_mxfp8_e5m2", 120, "e5m2", "e4m3", bm=64, bn=64)
scaled("sm120_mxfp4", 120, "e2m1", "e2m1", bm=64, bn=64)
scaled("sm120_nvfp4", 120, "e2m1", "e2m1", group=16, bm=64, bn=64)
scaled("sm120_mx_e4m3_e2m1", 120, "e4m3", "e2m1", bm=64, bn=64)
ptr("sm120_e4m3", 120, "fp8e4nv", "fp32", 64, 64, 64)
ptr("sm120_bf16", 120, "bf16", "fp32", 64, 64, 64)
for arch, ty in ((80, "bf16"), (90, "bf16")):
    kernel(f"sm{arch}_{ty}_split_k", dot_split, {"a": "*" + ty, "b": "*" + ty, "c": "*fp32", **MNK},
           {"BM": 64, "BN": 64, "BK": 64, "SPLITS": 2}, arch, "dot", (1, 2, 2), {"M": 64, "N": 128, "K": 512},
           {"a": (64, 512), "b": (128, 512), "c": (64, 128)}, dict(num_warps=4, num_stages=3), zeroed=["c"])
