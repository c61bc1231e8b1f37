//! The kernels of the smoke test, small enough to be written by hand.

/// The PTX of a kernel, for an architecture such as `sm_90a`.
pub fn module(arch: &str, entry: &str) -> String {
    let version = if arch.starts_with("sm_9") { "8.0" } else { "8.8" };
    format!(".version {version}\n.target {arch}\n.address_size 64\n{entry}")
}

/// `out[i] = 3 * in[i] + addend` for every thread.
pub const AFFINE: &str =
    ".visible .entry affine(.param .u64 in, .param .u64 out, .param .u32 addend) .maxntid 256, 1, 1
{
    .reg .b64 %d<4>; .reg .b32 %r<5>;
    griddepcontrol.wait;
    ld.param.u64 %d0, [in];
    ld.param.u64 %d1, [out];
    ld.param.u32 %r0, [addend];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r1, %r1, %r2, %r3;
    mul.wide.u32 %d2, %r1, 4;
    add.u64 %d0, %d0, %d2;
    add.u64 %d1, %d1, %d2;
    ld.global.u32 %r4, [%d0];
    mad.lo.u32 %r4, %r4, 3, %r0;
    st.global.u32 [%d1], %r4;
    ret;
}
";

/// `out[block] = 100 * blocks of the cluster + rank in the cluster`.
pub const CLUSTER: &str = ".visible .entry cluster(.param .u64 out) .maxntid 32, 1, 1
{
    .reg .b64 %d<2>; .reg .b32 %r<4>;
    ld.param.u64 %d0, [out];
    mov.u32 %r0, %cluster_nctarank;
    mov.u32 %r1, %cluster_ctarank;
    mad.lo.u32 %r0, %r0, 100, %r1;
    mov.u32 %r2, %ctaid.x;
    mul.wide.u32 %d1, %r2, 4;
    add.u64 %d0, %d0, %d1;
    st.global.u32 [%d0], %r0;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    ret;
}
";

/// One thread copies a tile of 32 x 8 words, at (`x`, `y`) of a matrix, to `out`, by the tensor memory accelerator.
pub const TILE: &str = ".extern .shared .align 128 .b8 smem[];
.visible .entry tile(.param .align 64 .b8 map[128], .param .u64 out, .param .u32 x, .param .u32 y) .maxntid 32, 1, 1
{
    .reg .b64 %d<4>; .reg .b32 %r<8>; .reg .pred %p<3>;
    .shared .align 8 .b64 arrived;
    mov.u32 %r0, %tid.x;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra END;
    mov.b64 %d0, map;
    cvta.param.u64 %d0, %d0;
    ld.param.u64 %d1, [out];
    ld.param.u32 %r1, [x];
    ld.param.u32 %r2, [y];
    mov.u32 %r3, smem;
    mov.u32 %r4, arrived;
    mbarrier.init.shared::cta.b64 [%r4], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 %d2, [%r4], 1024;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r3], [%d0, {%r1, %r2}], [%r4];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r4], 0;
    @!%p1 bra WAIT;
    mov.u32 %r5, 0;
COPY:
    ld.shared.u32 %r6, [%r3];
    st.global.u32 [%d1], %r6;
    add.u32 %r3, %r3, 4;
    add.u64 %d1, %d1, 4;
    add.u32 %r5, %r5, 1;
    setp.lt.u32 %p2, %r5, 256;
    @%p2 bra COPY;
END:
    ret;
}
";
