"""Gluon: kernels that allocate tensor memory, issue copies and MMAs and wait for mbarriers by hand.

The compiler is proven on the chip. The mbarriers here are ours."""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import blackwell as bw
from triton.experimental.gluon.language.nvidia.blackwell import mbarrier, tma

from dots import MNK, packed, sizes
from registry import kernel


@gluon.jit
def store_rows(c, value, row, col, N, lay: gl.constexpr):
    """A block of registers to C, whatever lanes hold it."""
    rows = row + gl.arange(0, value.shape[0], layout=gl.SliceLayout(1, lay))
    cols = col + gl.arange(0, value.shape[1], layout=gl.SliceLayout(0, lay))
    gl.store(c + rows[:, None] * N + cols[None, :], value)


@gluon.jit
def g_dot(da, db, c, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, TM: gl.constexpr,
          TN: gl.constexpr, STRIDE: gl.constexpr, MAJOR_A: gl.constexpr, MAJOR_B: gl.constexpr, TWO: gl.constexpr,
          MULTI: gl.constexpr, CGA: gl.constexpr, SUM: gl.constexpr, LD: gl.constexpr):
    """TMA, tcgen05.mma, tcgen05.commit, one stage. TWO: cta_group::2. MULTI: loads and commits go to the CTAs that
    share an operand."""
    row = gl.program_id(0) * BM
    col = gl.program_id(1) * BN
    xa = gl.allocate_shared_memory(da.dtype, da.block_shape, da.layout)
    xb = gl.allocate_shared_memory(db.dtype, db.block_shape, db.layout)
    full = mbarrier.allocate_mbarrier(two_ctas=TWO)
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.init(done, count=bw.tcgen05_mma_barrier_count([xa, xb], MULTI, TWO))
    tm: gl.constexpr = bw.TensorMemoryLayout([TM, TN], col_stride=STRIDE, cga_layout=CGA, two_ctas=TWO)
    acc = bw.allocate_tensor_memory(SUM, [BM, BN], tm)
    phase = 0
    for k in range(0, K, BK):
        mbarrier.expect(full, da.nbytes_per_cta + db.nbytes_per_cta)
        if MAJOR_A == "K":
            tma.async_load(da, [row, k], full, xa, multicast=MULTI)
            va = xa
        else:
            tma.async_load(da, [k, row], full, xa, multicast=MULTI)
            va = xa.permute((1, 0))
        if MAJOR_B == "K":
            tma.async_load(db, [col, k], full, xb, multicast=MULTI)
            vb = xb.permute((1, 0))
        else:
            tma.async_load(db, [k, col], full, xb, multicast=MULTI)
            vb = xb
        mbarrier.wait(full, phase)
        bw.tcgen05_mma(va, vb, acc, use_acc=k != 0, multicast=MULTI, mbarriers=[done])
        mbarrier.wait(done, phase)
        phase ^= 1
    lay: gl.constexpr = acc.get_reg_layout(instr_variant=LD)
    store_rows(c, acc.load(lay), row, col, N, lay)


@gluon.jit
def g_scaled(da, db, dsa, dsb, c, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, FA: gl.constexpr,
             FB: gl.constexpr, PA: gl.constexpr, PB: gl.constexpr, GROUP: gl.constexpr, TWO: gl.constexpr,
             MULTI: gl.constexpr, CGA: gl.constexpr, CGA_B: gl.constexpr):
    """Block scales from shared to tensor memory by tcgen05.cp; their layout is that of scaled_maps."""
    ta: gl.constexpr = BM // 128
    tb: gl.constexpr = BN // 128
    tk: gl.constexpr = BK // GROUP // 4
    pm = gl.program_id(0)
    pn = gl.program_id(1)
    xa = gl.allocate_shared_memory(da.dtype, da.block_shape, da.layout)
    xb = gl.allocate_shared_memory(db.dtype, db.block_shape, db.layout)
    xs = gl.allocate_shared_memory(dsa.dtype, dsa.block_shape, dsa.layout)
    xt = gl.allocate_shared_memory(dsb.dtype, dsb.block_shape, dsb.layout)
    full = mbarrier.allocate_mbarrier(two_ctas=TWO)
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.init(done, count=bw.tcgen05_mma_barrier_count([xa, xb, xs, xt], MULTI, TWO))
    tm: gl.constexpr = bw.TensorMemoryLayout([128, BN], col_stride=1, cga_layout=CGA, two_ctas=TWO)
    acc = bw.allocate_tensor_memory(gl.float32, [BM, BN], tm)
    ts = bw.allocate_tensor_memory(dsa.dtype, [BM, BK // GROUP], bw.TensorMemoryScalesLayout(cga_layout=CGA))
    tt = bw.allocate_tensor_memory(dsb.dtype, [BN, BK // GROUP], bw.TensorMemoryScalesLayout(cga_layout=CGA_B))
    phase = 0
    for k in range(0, K // BK):
        mbarrier.expect(full, da.nbytes_per_cta + db.nbytes_per_cta + dsa.nbytes_per_cta + dsb.nbytes_per_cta)
        tma.async_load(da, [pm * BM, k * (BK // PA)], full, xa, multicast=MULTI)
        tma.async_load(db, [pn * BN, k * (BK // PB)], full, xb, multicast=MULTI)
        tma.async_load(dsa, [0, pm * ta, k * tk, 0, 0], full, xs, multicast=MULTI)
        tma.async_load(dsb, [0, pn * tb, k * tk, 0, 0], full, xt, multicast=MULTI)
        mbarrier.wait(full, phase)
        vs = xs.reshape((ta, tk, 32, 4, 4)).permute((0, 3, 2, 1, 4)).reshape((BM, BK // GROUP))
        vt = xt.reshape((tb, tk, 32, 4, 4)).permute((0, 3, 2, 1, 4)).reshape((BN, BK // GROUP))
        bw.tcgen05_copy(vs, ts)
        bw.tcgen05_copy(vt, tt)
        bw.tcgen05_mma_scaled(xa, xb.permute((1, 0)), acc, ts, tt, FA, FB, use_acc=k != 0, multicast=MULTI,
                              mbarriers=[done])
        mbarrier.wait(done, phase)
        phase ^= 1
    lay: gl.constexpr = acc.get_reg_layout()
    store_rows(c, acc.load(lay), pm * BM, pn * BN, N, lay)


@gluon.jit
def g_through_tmem(x, y, N, BM: gl.constexpr, BN: gl.constexpr, TM: gl.constexpr, STRIDE: gl.constexpr,
                   ST: gl.constexpr, LD: gl.constexpr):
    """Y = X: registers to tensor memory by one shape and back by another."""
    tm: gl.constexpr = bw.TensorMemoryLayout([TM, BN], col_stride=STRIDE)
    t = bw.allocate_tensor_memory(x.dtype.element_ty, [BM, BN], tm)
    into: gl.constexpr = t.get_reg_layout(instr_variant=ST)
    rows = gl.arange(0, BM, layout=gl.SliceLayout(1, into))
    cols = gl.arange(0, BN, layout=gl.SliceLayout(0, into))
    t.store(gl.load(x + rows[:, None] * N + cols[None, :]))
    out: gl.constexpr = t.get_reg_layout(instr_variant=LD)
    store_rows(y, t.load(out), 0, 0, N, out)


@gluon.jit
def g_load_max(x, y, m, N, BM: gl.constexpr, BN: gl.constexpr, ABS: gl.constexpr):
    """Y = X and m = the largest of each row, by tcgen05.ld.red."""
    tm: gl.constexpr = bw.TensorMemoryLayout([128, BN], col_stride=1)
    t = bw.allocate_tensor_memory(gl.float32, [BM, BN], tm)
    lay: gl.constexpr = t.get_reg_layout()
    rows = gl.arange(0, BM, layout=gl.SliceLayout(1, lay))
    cols = gl.arange(0, BN, layout=gl.SliceLayout(0, lay))
    t.store(gl.load(x + rows[:, None] * N + cols[None, :]))
    v, most = t.load_max(lay, abs=ABS)
    store_rows(y, v, 0, 0, N, lay)
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    most = gl.convert_layout(most, flat)
    gl.store(m + gl.arange(0, BM, layout=flat), most)


@gluon.jit
def g_copy(dx, y, N, BM: gl.constexpr, BN: gl.constexpr, LD: gl.constexpr):
    """Y = X: global to shared memory by TMA, to tensor memory by tcgen05.cp, to registers by tcgen05.ld."""
    x = gl.allocate_shared_memory(dx.dtype, [BM, BN], dx.layout)
    full = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.expect(full, dx.nbytes_per_cta)
    tma.async_load(dx, [0, 0], full, x)
    mbarrier.wait(full, 0)
    mbarrier.invalidate(full)
    t = bw.allocate_tensor_memory(dx.dtype, [BM, BN], bw.TensorMemoryLayout([128, BN], col_stride=1))
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(done, count=1)
    bw.tcgen05_copy(x, t)
    bw.tcgen05_commit(done)
    mbarrier.wait(done, 0)
    lay: gl.constexpr = t.get_reg_layout(instr_variant=LD)
    store_rows(y, t.load(lay), 0, 0, N, lay)


@gluon.jit
def g_left_tmem(a, db, c, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """A goes from registers to tensor memory and is multiplied there."""
    row = gl.program_id(0) * BM
    col = gl.program_id(1) * BN
    xb = gl.allocate_shared_memory(db.dtype, [BN, BK], db.layout)
    full = mbarrier.allocate_mbarrier()
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.init(done, count=1)
    acc = bw.allocate_tensor_memory(gl.float32, [BM, BN], bw.TensorMemoryLayout([128, BN], col_stride=1))
    ta = bw.allocate_tensor_memory(db.dtype, [BM, BK], bw.TensorMemoryLayout([128, BK], col_stride=1))
    into: gl.constexpr = ta.get_reg_layout()
    rows = row + gl.arange(0, BM, layout=gl.SliceLayout(1, into))
    phase = 0
    for k in range(0, K, BK):
        mbarrier.expect(full, db.nbytes_per_cta)
        tma.async_load(db, [col, k], full, xb)
        ks = k + gl.arange(0, BK, layout=gl.SliceLayout(0, into))
        ta.store(gl.load(a + rows[:, None] * K + ks[None, :]))
        mbarrier.wait(full, phase)
        bw.tcgen05_mma(ta, xb.permute((1, 0)), acc, use_acc=k != 0)
        bw.tcgen05_commit(done)
        mbarrier.wait(done, phase)
        phase ^= 1
    lay: gl.constexpr = acc.get_reg_layout()
    store_rows(c, acc.load(lay), row, col, N, lay)


@gluon.jit
def g_claim(y, count, BLOCK: gl.constexpr):
    """Y[i] = i by blocks; programs that have begun take over those that have not (cluster launch control)."""
    lay: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0], cga_layout=[[0]] * (gl.num_ctas() // 2))
    answer = gl.allocate_shared_memory(gl.int64, [2], gl.SwizzledSharedLayout(
        1, 1, 1, [0], cga_layout=[[0]] * (gl.num_ctas() // 2)))
    told = mbarrier.allocate_mbarrier()
    mbarrier.init(told, count=1)
    who = gl.program_id(0)
    phase = 0
    more = True
    while more:
        mbarrier.expect(told, 16)
        bw.clc.try_cancel(answer, told)
        at = who * BLOCK + gl.arange(0, BLOCK, layout=lay)
        gl.store(y + at, at, mask=at < count)
        mbarrier.wait(told, phase)
        got = bw.clc.load_result(answer)
        more = got.is_canceled()
        who = got.program_id(0)
        phase ^= 1


@gluon.jit
def g_gather(dx, dy, index, BM: gl.constexpr, BN: gl.constexpr):
    """Rows index[i] of X, by gather4, are put into rows index[i] of Y, by scatter4."""
    x = gl.allocate_shared_memory(dx.dtype, [BM, BN], dx.layout)
    full = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    flat: gl.constexpr = gl.SliceLayout(0, gl.BlockedLayout([1, 4], [32, 1], [1, gl.num_warps()], [1, 0]))
    at = gl.load(index + gl.arange(0, BM, layout=flat))
    mbarrier.expect(full, BM * BN * 2)
    tma.async_gather(dx, at, 0, full, x)
    mbarrier.wait(full, 0)
    tma.async_scatter(dy, at, 0, x)
    tma.store_wait(0)


@gluon.jit
def g_reduce(dx, dy, BM: gl.constexpr, BN: gl.constexpr):
    """Y += X, by cp.reduce.async.bulk.tensor."""
    x = gl.allocate_shared_memory(dx.dtype, [BM, BN], dx.layout)
    full = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.expect(full, dx.nbytes_per_cta)
    tma.async_load(dx, [0, 0], full, x)
    mbarrier.wait(full, 0)
    tma.async_atomic_add(dy, [0, 0], x)
    tma.store_wait(0)


TYPES = {"f16": (gl.float16, "fp16"), "bf16": (gl.bfloat16, "bf16"), "f32": (gl.float32, "fp32"),
         "e4m3": (gl.float8e4nv, "fp8e4nv"), "e5m2": (gl.float8e5, "fp8e5"), "u8": (gl.uint8, "u8"),
         "i8": (gl.int8, "i8")}


def desc(ty, block, cga=None, swizzle=None, padded=False):
    el, name = TYPES[ty]
    lay = gl.NVMMASharedLayout.get_default_for(block, el, fp4_padded=padded, cga_layout=cga)
    if swizzle is not None:
        lay = gl.NVMMASharedLayout(swizzle, el.primitive_bitwidth, len(block), cga_layout=cga)
    return f"tensordesc<{name}[{','.join(map(str, block))}],{lay!r}>"


def gdot(name, ty, bm, bn, bk, tm=128, ctas=1, two=False, multi=False, cga_a=None, cga_b=None, cga=(), out="fp32",
         ld="32x32b", warps=4, swizzle=None, tn=None, ma="K", mb="K"):
    size, tiles = sizes(bm, bn, bk, steps=3)
    m, n, k = size["M"], size["N"], size["K"]
    kernel(name, g_dot, {"da": desc(ty, [bm, bk] if ma == "K" else [bk, bm], cga_a, swizzle),
                         "db": desc(ty, [bn, bk] if mb == "K" else [bk, bn], cga_b, swizzle),
                         "c": "*" + out, **MNK},
           {"BM": bm, "BN": bn, "BK": bk, "TM": tm, "TN": tn or bn, "STRIDE": 2 if out == "fp16" else 1,
            "MAJOR_A": ma, "MAJOR_B": mb, "TWO": two, "MULTI": multi, "CGA": [list(x) for x in cga],
            "SUM": {"fp32": gl.float32, "i32": gl.int32, "fp16": gl.float16}[out], "LD": ld},
           100, "dot", tiles, size,
           {"da": (m, k) if ma == "K" else (k, m), "db": (n, k) if mb == "K" else (k, n), "c": (m, n)},
           dict(num_warps=warps, num_ctas=ctas))


def gscaled(name, fa, fb, group, bm, bn, bk, ctas=1, two=False, multi=False):
    el = {"e4m3": "e4m3", "e5m2": "e5m2", "e2m1": "u8"}
    mixed = fa != fb and "e2m1" in (fa, fb)
    pa, pb = (2 if f == "e2m1" else 1 for f in (fa, fb))
    s = "e4m3" if group == 16 else "u8"
    tk = bk // group // 4
    split = [[1, 0]] if ctas == 2 else None
    split5 = [[0, 1, 0, 0, 0]] if ctas == 2 else None
    all5 = [[0, 0, 0, 0, 0]] if ctas == 2 else None
    size, tiles = sizes(bm, bn, bk, steps=3)
    m, n, k = size["M"], size["N"], size["K"]
    kernel(name, g_scaled,
           {"da": desc(el[fa], [bm, bk // pa], split, padded=mixed and pa == 2),
            "db": desc(el[fb], [bn, bk // pb], split, padded=mixed and pb == 2),
            "dsa": desc(s, [1, bm // 128, tk, 2, 256], split5, 0), "dsb": desc(s, [1, bn // 128, tk, 2, 256], all5, 0),
            "c": "*fp32", **MNK},
           {"BM": bm, "BN": bn, "BK": bk, "FA": fa, "FB": fb, "PA": pa, "PB": pb, "GROUP": group, "TWO": two,
            "MULTI": multi, "CGA": [[1, 0]] if ctas == 2 else [], "CGA_B": [[0, 0]] if ctas == 2 else []},
           100, "dot_scaled", tiles, size,
           {"da": (m, k // pa), "db": (n, k // pb), "c": (m, n), "dsa": packed(m, k, group), "dsb": packed(n, k, group)},
           dict(num_warps=4, num_ctas=ctas))


def copied(name, fn, sig, consts, rows, cols, arch=100, reference="copy", **shapes):
    """A kernel of one CTA that copies X[rows, cols] to Y."""
    x = next(iter(sig))
    kernel(name, fn, {**sig, "N": "i32"}, {"BM": rows, "BN": cols, **consts}, arch, reference, (1,), {"N": cols},
           {x: (rows, cols), "y": (rows, cols), **shapes}, dict(num_warps=4))


gdot("gluon_f16", "f16", 128, 128, 64)
gdot("gluon_f16_sum16", "f16", 128, 64, 64, out="fp16")
gdot("gluon_f16_m64", "f16", 64, 128, 64, tm=64, ld="16x256b")
gdot("gluon_f16_swizzle64", "f16", 128, 64, 32, swizzle=64)
gdot("gluon_f16_swizzle32", "f16", 128, 64, 16, swizzle=32)
gdot("gluon_f16_mn_major", "f16", 128, 64, 64, ma="M", mb="N")
gdot("gluon_e4m3_mn_major", "e4m3", 128, 128, 64, ma="M", mb="N")
gdot("gluon_f16_n_swizzle64", "f16", 128, 32, 64, mb="N", swizzle=64)
gdot("gluon_f16_n16", "f16", 128, 16, 64)
gdot("gluon_tf32", "f32", 128, 64, 32)
gdot("gluon_e4m3", "e4m3", 128, 256, 128)
gdot("gluon_i8", "i8", 128, 128, 128, out="i32")
for ty, bk in (("bf16", 64), ("e4m3", 128), ("f32", 32), ("i8", 128)):
    gdot(f"gluon_{ty}_2cta", ty, 256, 128, bk, ctas=2, two=True, cga_a=[[1, 0]], cga_b=[[1, 0]], cga=[[1, 0]],
         out="i32" if ty == "i8" else "fp32")
gdot("gluon_bf16_2cta_m128", "bf16", 128, 128, 64, tm=64, ctas=2, two=True, cga_a=[[1, 0]], cga_b=[[1, 0]],
     cga=[[1, 0]])
gdot("gluon_bf16_multicast", "bf16", 256, 128, 64, ctas=2, multi=True, cga_a=[[1, 0]], cga_b=[[0, 0]], cga=[[1, 0]])
gdot("gluon_bf16_2cta_multicast", "bf16", 256, 256, 64, ctas=4, two=True, multi=True, tn=128, cga_a=[[1, 0], [0, 0]],
     cga_b=[[1, 0], [2, 0]], cga=[[1, 0], [0, 1]])
gscaled("gluon_mxfp8", "e4m3", "e4m3", 32, 128, 128, 128)
gscaled("gluon_mxfp4", "e2m1", "e2m1", 32, 128, 128, 256)
gscaled("gluon_nvfp4", "e2m1", "e2m1", 16, 128, 256, 256)
gscaled("gluon_mx_e4m3_e2m1", "e4m3", "e2m1", 32, 128, 128, 128)
gscaled("gluon_mx_e2m1_e5m2", "e2m1", "e5m2", 32, 128, 128, 128)
gscaled("gluon_mxfp8_2cta", "e4m3", "e4m3", 32, 256, 128, 128, ctas=2, two=True)
gscaled("gluon_mxfp4_2cta", "e2m1", "e2m1", 32, 256, 256, 256, ctas=2, two=True)
gscaled("gluon_nvfp4_2cta", "e2m1", "e2m1", 16, 256, 256, 256, ctas=2, two=True)
gscaled("gluon_nvfp4_2cta_multicast", "e2m1", "e2m1", 16, 256, 256, 256, ctas=2, two=True, multi=True)
gscaled("gluon_mx_e4m3_e2m1_2cta", "e4m3", "e2m1", 32, 256, 256, 128, ctas=2, two=True)
for st, ld, bm, bn in (("32x32b", "16x64b", 128, 8), ("16x64b", "16x128b", 128, 16), ("16x128b", "16x256b", 128, 32),
                       ("16x256b", "32x32b", 128, 64), ("32x32b", "32x32b_splitn", 128, 32),
                       ("32x32b", "16x64b", 64, 32), ("16x256b", "32x32b", 64, 64), ("16x128b", "16x64b", 64, 4),
                       ("32x32b", "32x32b", 128, 1), ("32x32b", "32x32b", 128, 512), ("16x64b", "32x32b", 128, 256),
                       ("16x128b", "32x32b", 128, 256), ("16x256b", "16x128b", 128, 8)):
    copied(f"gluon_tmem_{st}_{ld}_{bm}x{bn}", g_through_tmem, {"x": "*fp32", "y": "*fp32"},
           {"TM": bm, "STRIDE": 1, "ST": st, "LD": ld}, bm, bn)
for stride in (1, 2):
    copied(f"gluon_tmem_bf16_stride{stride}", g_through_tmem, {"x": "*bf16", "y": "*bf16"},
           {"TM": 128, "STRIDE": stride, "ST": "32x32b", "LD": "32x32b"}, 128, 64)
copied("gluon_load_max_sm103", g_load_max, {"x": "*fp32", "y": "*fp32", "m": "*fp32"}, {"ABS": False}, 128, 64, 103,
       "row_max", m=(128,))
for swizzle in (32, 64, 128):
    copied(f"gluon_copy_f32_swizzle{swizzle}", g_copy,
           {"dx": desc("f32", [128, swizzle // 4], None, swizzle), "y": "*fp32"}, {"LD": "32x32b"}, 128, swizzle // 4)
size, tiles = sizes(128, 128, 64, steps=3)
kernel("gluon_bf16_left_tmem", g_left_tmem, {"a": "*bf16", "db": desc("bf16", [128, 64]), "c": "*fp32", **MNK},
       {"BM": 128, "BN": 128, "BK": 64}, 100, "dot", tiles, size,
       {"a": (size["M"], size["K"]), "db": (size["N"], size["K"]), "c": (size["M"], size["N"])}, dict(num_warps=4))
for ctas in (1, 2):
    kernel("gluon_clc" + ("_2ctas" if ctas == 2 else ""), g_claim, {"y": "*i32", "count": "i32"}, {"BLOCK": 256}, 100,
           "count", (40,), {"count": 10000}, {"y": (10000,)}, dict(num_warps=4, num_ctas=ctas))
kernel("gluon_gather_scatter", g_gather,
       {"dx": desc("bf16", [1, 64], None, 128), "dy": desc("bf16", [1, 64], None, 128), "index": "*i32"},
       {"BM": 32, "BN": 64}, 100, "gather_scatter", (1,), {}, {"dx": (100, 64), "dy": (100, 64), "index": (32,)},
       dict(num_warps=4), zeroed=["dy"])
kernel("gluon_reduce", g_reduce, {"dx": desc("f32", [64, 32]), "dy": desc("f32", [64, 32])}, {"BM": 64, "BN": 32}, 100,
       "add", (1,), {}, {"dx": (64, 32), "dy": (64, 32)}, dict(num_warps=4))
