//! An MXFP8 GEMM by a pair of CTAs: 256 rows of A, 256 of B, two stages of 128 along K, scales by `tcgen05.cp`.

use oxigemm_sim::*;

const STAGE: usize = 2 * 16384 + 512 + 1024;

/// Operands as the kernel loads them: for each CTA and each 128 of K one stage (A, B, scales of A, scales of B).
pub struct MxFp8 {
    pub k: usize,
    images: Vec<u8>,
}

impl MxFp8 {
    pub fn new(k: usize) -> MxFp8 {
        let mut images = vec![0u8; 2 * k / 128 * STAGE];
        for (at, stage) in images.chunks_mut(STAGE).enumerate() {
            let (cta, first) = (at / (k / 128), at % (k / 128) * 128);
            for row in 0..128 {
                for i in 0..128 {
                    // The 128-byte swizzle: units of 16 bytes, exchanged by the row.
                    let place = row * 128 + ((i / 16) ^ (row % 8)) * 16 + i % 16;
                    stage[place] = code(MxFp8::value(false, cta * 128 + row, first + i));
                    stage[16384 + place] = code(MxFp8::value(true, cta * 128 + row, first + i));
                }
            }
            // Row r of 128: 16 bytes for r % 32, of them four for r / 32, one for each 32 of K.
            let tiles = [(32768, false, cta * 128), (33280, true, 0), (33792, true, 128)];
            for ((base, b, start), i) in tiles.into_iter().flat_map(|t| (0..512).map(move |i| (t, i))) {
                let row = start + i / 16 + i / 4 % 4 * 32;
                stage[base + i] = 127 + MxFp8::exponent(b, row, first / 32 + i % 4) as u8;
            }
        }
        MxFp8 { k, images }
    }

    pub fn value(b: bool, row: usize, depth: usize) -> i32 {
        ((row * 7 + depth * 5 + row * depth % 11 + usize::from(b)) % 5) as i32 - 2
    }

    pub fn exponent(b: bool, row: usize, block: usize) -> i32 {
        ((row + block * 3 + usize::from(b)) % 3) as i32
    }

    /// Runs the kernel: D, row-major, and the report.
    pub fn run(&self, options: &Options) -> Result<(Vec<f32>, Report), Fault> {
        let module = Module::parse(&text(self.k)).unwrap_or_else(|e| panic!("{e}"));
        let mut machine = Machine::new();
        let images = machine.memory.allocate_with(&self.images);
        let out = machine.memory.allocate(256 * 256 * 4);
        let launch = Launch {
            entry: "mxfp8_pair".into(),
            grid: [2, 1, 1],
            cluster: Some([2, 1, 1]),
            block: [128, 1, 1],
            shared_bytes: 1024 + 2 * 35840,
            params: vec![Param::U64(images), Param::U64(out)],
        };
        let report = machine.run(&module, &launch, options)?;
        let bytes = machine.memory.read(out, 256 * 256 * 4)?;
        Ok((bytes.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(), report))
    }
}

/// E4M3 of -2 to 2.
fn code(x: i32) -> u8 {
    [0xc0, 0xb8, 0, 0x38, 0x40][(x + 2) as usize]
}

/// Barriers at 0 and 8 (full), 16 and 24 (full in both CTAs), 32 and 40 (empty), 48 (done); the address at 56.
fn text(k: usize) -> String {
    let blocks = k / 128;
    let descriptor = |at: u32, sbo: u64, swizzle: u64| {
        format!(
            "add.u32 r10, stage, {at}; and.b32 r10, r10, 0x3ffff; shr.u32 r10, r10, 4; cvt.u64.u32 d4, r10;
            or.b64 d4, d4, {};",
            1u64 << 16 | (sbo / 16) << 32 | 1 << 46 | swizzle << 61
        )
    };
    let idesc = |id: u32| 32 << 17 | 1 << 23 | 2 << 27 | id << 29 | id << 4;
    let copies: String = [(32768, 256), (33280, 264), (33792, 268)]
        .map(|(at, column)| {
            format!(
                "{} add.u32 r11, ta, {column}; tcgen05.cp.cta_group::2.32x128b.warpx4 [r11], d4;\n",
                descriptor(at, 128, 0)
            )
        })
        .concat();
    let steps: String = (0..4)
        .map(|i| {
            format!(
                "{} mov.b64 d5, d4; {} mov.b32 r12, {}; add.u32 r13, ta, 256; add.u32 r14, ta, 264;
                tcgen05.mma.cta_group::2.kind::mxf8f6f4.block_scale.block32 [ta], d5, d4, r12, [r13], [r14], more;
                setp.eq.u32 more, 0, 0;\n",
                descriptor(i * 32, 1024, 2),
                descriptor(16384 + i * 32, 1024, 2),
                idesc(i)
            )
        })
        .collect();
    let loads: String = (0..256)
        .step_by(32)
        .map(|c| {
            let list = (0..32).map(|i| format!("x{i}")).collect::<Vec<_>>().join(", ");
            let stores: String = (0..32)
                .step_by(4)
                .map(|i| {
                    format!(
                        "st.global.v4.b32 [out+{}], {{x{i}, x{}, x{}, x{}}};\n",
                        (c + i) * 4,
                        i + 1,
                        i + 2,
                        i + 3
                    )
                })
                .collect();
            format!(
                "add.u32 r11, wbase, {c}; tcgen05.ld.sync.aligned.32x32b.x32.b32 {{{list}}}, [r11];
                tcgen05.wait::ld.sync.aligned;\n{stores}"
            )
        })
        .collect();
    format!(
        ".version 8.8\n.target sm_100a\n.address_size 64\n
        .extern .shared .align 1024 .b8 smem[];
        .visible .entry mxfp8_pair(.param .u64 images, .param .u64 result) .reqntid 128
        {{
        .reg .pred p<8>, more; .reg .b16 both; .reg .b32 r<32>, x<32>, s, t, c, ta, wbase, stage, i, parity, full;
        .reg .b64 d<8>, in, out;
        mov.u32 s, smem; mov.u32 t, %tid.x; mov.u32 c, %cluster_ctarank; mov.b16 both, 3;
        setp.lt.u32 p1, t, 32; setp.eq.u32 p2, t, 0; setp.eq.u32 p3, t, 32;
        @!p1 bra allocated;
        add.u32 r0, s, 56; tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [r0], 512;
        tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;
        allocated:
        @!p2 bra ready;
        mbarrier.init.shared::cta.b64 [s], 1; mbarrier.init.shared::cta.b64 [s+8], 1;
        mbarrier.init.shared::cta.b64 [s+16], 2; mbarrier.init.shared::cta.b64 [s+24], 2;
        mbarrier.init.shared::cta.b64 [s+32], 1; mbarrier.init.shared::cta.b64 [s+40], 1;
        mbarrier.init.shared::cta.b64 [s+48], 1;
        fence.mbarrier_init.release.cluster;
        ready:
        bar.warp.sync 0xffffffff;
        tcgen05.fence::before_thread_sync;
        barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
        tcgen05.fence::after_thread_sync;
        ld.shared.b32 ta, [s+56]; shr.u32 wbase, t, 5; shl.b32 wbase, wbase, 21; add.u32 wbase, wbase, ta;
        @p2 bra producer;
        @p3 bra issuer;
        bra.uni epilogue;

        producer:
        ld.param.u64 in, [images]; mul.wide.u32 d0, c, {cta_bytes}; add.u64 in, in, d0; mov.u32 i, 0;
        fill:
        and.b32 r1, i, 1; shl.b32 r2, r1, 3; add.u32 full, s, r2;
        mad.lo.u32 stage, r1, 35840, s; add.u32 stage, stage, 1024;
        shr.u32 parity, i, 1; and.b32 parity, parity, 1; xor.b32 parity, parity, 1;
        empty: mbarrier.try_wait.parity.shared::cta.b64 p0, [full+32], parity; @!p0 bra empty;
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], {STAGE};
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [stage], [in], {STAGE}, [full];
        add.u64 in, in, {STAGE}; add.u32 i, i, 1; setp.lt.u32 p0, i, {blocks}; @p0 bra fill;
        bra.uni epilogue;

        issuer:
        mov.u32 i, 0; setp.ne.u32 more, 0, 0; setp.eq.u32 p4, c, 0;
        next:
        and.b32 r1, i, 1; shl.b32 r2, r1, 3; add.u32 full, s, r2;
        mad.lo.u32 stage, r1, 35840, s; add.u32 stage, stage, 1024;
        shr.u32 parity, i, 1; and.b32 parity, parity, 1;
        own: mbarrier.try_wait.parity.shared::cta.b64 p0, [full], parity; @!p0 bra own;
        add.u32 r3, full, 16; mapa.shared::cluster.u32 r4, r3, 0;
        mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r4];
        @!p4 bra issued;
        pair: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p0, [r3], parity; @!p0 bra pair;
        {copies}{steps}
        add.u32 r5, full, 32;
        tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [r5], both;
        issued:
        add.u32 i, i, 1; setp.lt.u32 p0, i, {blocks}; @p0 bra next;
        add.u32 r5, s, 48;
        @p4 tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [r5], both;

        epilogue:
        bar.warp.sync 0xffffffff;
        done: mbarrier.try_wait.parity.shared::cta.b64 p0, [s+48], 0; @!p0 bra done;
        bar.warp.sync 0xffffffff; tcgen05.fence::after_thread_sync;
        ld.param.u64 out, [result]; mad.lo.u32 r0, c, 128, t; mul.wide.u32 d0, r0, 1024; add.u64 out, out, d0;
        {loads}
        tcgen05.fence::before_thread_sync;
        barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
        @!p1 bra end;
        tcgen05.fence::after_thread_sync;
        tcgen05.dealloc.cta_group::2.sync.aligned.b32 ta, 512;
        end: ret;
        }}",
        cta_bytes = blocks * STAGE
    )
}
