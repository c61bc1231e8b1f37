//! Random cases, and cases that go through all layouts in turn.

use std::ops::{Deref, DerefMut};

use oxigemm::cast::ScaleFormat;
use oxigemm::{Activation, DType, Gate, GemmLayout, HeadSplits};
use oxigemm_testkit::{
    ACTIVATIONS, AddendKind, EpilogueSpec, FP8, FP16, GemmCase, GroupLayout, MGroups, OperandTypes,
    ScaleOrder,
};

use super::Setup;

pub const ADDENDS: [AddendKind; 3] = [AddendKind::None, AddendKind::Inplace, AddendKind::Other];
pub const ORDERS: [ScaleOrder; 4] = [ScaleOrder::Row, ScaleOrder::RowPadded, ScaleOrder::Mn, ScaleOrder::Odd];
pub const BIASES: [Option<DType>; 3] = [None, Some(DType::Bf16), Some(DType::F32)];
pub const FORMATS: [ScaleFormat; 2] = [ScaleFormat::F32, ScaleFormat::PowerOfTwo];
/// How the device is told where groups of rows are.
pub const GROUP_LAYOUTS: [GroupLayout; 3] = [GroupLayout::Counts, GroupLayout::Ids, GroupLayout::Ends];
pub const ALIGNMENTS: [usize; 5] = [1, 16, 32, 64, 128];

/// Sizes on both sides of where something changes: vectors, tiles, blocks of K.
const ROWS: [usize; 20] = [1, 2, 3, 7, 8, 9, 16, 17, 31, 64, 65, 96, 127, 128, 129, 191, 255, 257, 384, 521];
const COLUMNS: [usize; 20] =
    [1, 2, 3, 7, 8, 9, 24, 63, 64, 65, 97, 112, 127, 128, 129, 145, 176, 257, 576, 1031];
const DEPTHS: [usize; 18] =
    [1, 2, 15, 16, 17, 100, 127, 128, 129, 255, 256, 257, 384, 512, 641, 1024, 1999, 3072];

/// Random numbers of the suite's seed, one after another.
pub struct Draw {
    numbers: oxigemm_testkit::Draw,
    largest: usize,
}

impl Deref for Draw {
    type Target = oxigemm_testkit::Draw;

    fn deref(&self) -> &Self::Target {
        &self.numbers
    }
}

impl DerefMut for Draw {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.numbers
    }
}

impl Draw {
    /// The numbers of a check.
    pub fn new(setup: &Setup, salt: u64) -> Draw {
        let seed = setup.seed.wrapping_mul(1000).wrapping_add(salt);
        Draw { numbers: oxigemm_testkit::Draw::new(seed), largest: setup.largest() }
    }

    /// Multiplications that one case may have.
    pub fn largest(&self) -> usize {
        self.largest
    }

    /// A dense FP8 case with K-major operands.
    pub fn fp8(&mut self) -> GemmCase {
        self.scaled(FP8)
    }

    /// A dense case of operands with scales, K-major.
    pub fn scaled(&mut self, types: OperandTypes) -> GemmCase {
        let (sfa, sfb) = (self.of(&ORDERS), self.of(&ORDERS));
        let case = self.dense(types, GemmLayout::Nt);
        // A K of at most 32 has one scale, be it of 32 or of 128: that is a GEMM of other kernels.
        let of_32 = types.scale_blocks.is_some_and(|[[_, k], _]| k == 32);
        let k = if of_32 { case.k.max(33) } else { case.k };
        GemmCase { sfa, sfb, k: fitting_k(&types, k), ..case }
    }

    /// A dense case of some operands and layout.
    pub fn dense(&mut self, types: OperandTypes, layout: GemmLayout) -> GemmCase {
        let (mut m, mut n, k) = (self.size(&ROWS), self.size(&COLUMNS), self.size(&DEPTHS));
        while m * n * k > self.largest {
            (m, n) = (m.div_ceil(2), n.div_ceil(2));
        }
        let gaps = self.below(3) == 0;
        GemmCase {
            d_type: self.of(&types.d_types),
            addend: self.of(&ADDENDS),
            ab_padding: if gaps { self.below(4) } else { 0 },
            d_padding: if gaps { self.below(10) } else { 0 },
            d_offset: if gaps { self.below(9) } else { 0 },
            at_end: self.below(8) == 0,
            seed: self.below(1 << 20) as u64,
            ..GemmCase::dense(types, layout, [m, n, k])
        }
    }

    /// A fused epilogue, as a kernel can have; `gated` if it has a gate.
    fn epilogue(&mut self, types: &OperandTypes, gated: bool) -> EpilogueSpec {
        let quantized = (self.below(3) == 0).then(|| (self.of(&ORDERS), self.of(&FORMATS)));
        let heads = (!gated && quantized.is_none() && self.below(3) == 0).then(|| {
            let unit = self.of(&[1, 4, 64]);
            let [left, mid, right] =
                [1 + self.below(3), self.below(3), self.below(3)].map(|x| x as u32 * unit);
            HeadSplits { left, mid, right }
        });
        let activation = self.of(&ACTIVATIONS);
        let mut epilogue = EpilogueSpec {
            activation,
            gated,
            gate: if gated { self.gate(activation) } else { Gate::PLAIN },
            bias: self.of(&BIASES),
            alpha: self.of(&[1.0, 0.25, -1.5]),
            beta: self.of(&[1.0, 0.5, -2.0]),
            heads,
            quantized,
        }
        .beside(types);
        if *types == FP16 && (gated || activation == Activation::ReluSquared) {
            // Products of two accumulators stay within the range of FP16.
            epilogue.alpha = self.of(&[0.25, -0.125]);
        }
        epilogue
    }

    /// What is done with gates and ups.
    fn gate(&mut self, activation: Activation) -> Gate {
        Gate {
            slope: if activation == Activation::Silu { self.of(&[1.0, 1.702, 0.5]) } else { 1.0 },
            limit: self.of(&[f32::INFINITY, 7.0, 0.75]),
            up_offset: self.of(&[0.0, 1.0]),
        }
    }

    /// A dense case whose N, addend and gaps its epilogue takes.
    pub fn fused(&mut self, types: OperandTypes, gated: bool) -> GemmCase {
        let epilogue = self.epilogue(&types, gated);
        let case = self.dense(types, GemmLayout::Nt);
        let (sfa, sfb) = (self.of(&ORDERS), self.of(&ORDERS));
        let (n, k) = (epilogue.fitting(case.n, &types), fitting_k(&types, case.k));
        let addend = if epilogue.quantized.is_some() { AddendKind::None } else { case.addend };
        GemmCase { sfa, sfb, n, k, addend, epilogue: Some(epilogue), ..case }
    }

    /// An m-grouped case whose rows, N, addend and gaps its epilogue takes: rows around a tile of so many, or fewer.
    pub fn fused_groups(&mut self, types: OperandTypes, gated: bool, tile: usize) -> GemmCase {
        let epilogue = self.epilogue(&types, gated);
        let groups = 1 + self.below(6);
        let mut rows: Vec<usize> = (0..groups)
            .map(|_| match self.below(4) {
                0 => self.below(3),
                1 => tile / 2 + self.below(tile),
                _ => self.below(70),
            })
            .collect();
        let (n, k) = (epilogue.fitting(16 * (1 + self.below(40)), &types), 16 * (1 + self.below(40)));
        while rows.iter().sum::<usize>() * n * k > self.largest {
            rows.iter_mut().for_each(|rows| *rows /= 2);
        }
        let turn = self.below(240);
        let case = k_major(m_grouped(types, GROUP_LAYOUTS[self.below(3)], &rows, [n, k], turn));
        let addend = match epilogue.quantized {
            Some(_) => AddendKind::None,
            None => self.of(&ADDENDS),
        };
        GemmCase { addend, epilogue: Some(epilogue), ..case }
    }
}

/// The next K that operands can have: FP4 has two elements to a byte, and beside FP8 lines of 128.
pub fn fitting_k(types: &OperandTypes, k: usize) -> usize {
    let unit = match (types.has_fp4(), types.fp4) {
        (false, _) => 1,
        (true, [true, true]) => 2,
        (true, _) => 128,
    };
    k.next_multiple_of(unit)
}

/// The same with K-major operands, and nothing added.
pub fn k_major(case: GemmCase) -> GemmCase {
    GemmCase { layout: GemmLayout::Nt, addend: AddendKind::None, ..case }
}

/// An m-grouped case, or a batch: over the turns every layout, alignment, type and gap occurs. Layouts and addends that
/// FP8 has not occur with the others.
pub fn m_grouped(
    types: OperandTypes,
    layout: GroupLayout,
    rows: &[usize],
    dims: [usize; 2],
    turn: usize,
) -> GemmCase {
    let groups = MGroups::new(layout, rows.to_vec());
    let groups = MGroups {
        alignment: if groups.has_slabs() { 1 } else { ALIGNMENTS[turn % ALIGNMENTS.len()] },
        max_m: if groups.is_batch() { groups.max_m } else { groups.max_m + turn % 3 * 7 + 1 },
        interleaved: groups.is_batch() && turn.is_multiple_of(2),
        trailing_rows: turn % 4 * 5,
        ..groups
    };
    let fp8 = types.has_scales();
    GemmCase {
        layout: if fp8 { GemmLayout::Nt } else { [GemmLayout::Nt, GemmLayout::Nn][turn / 4 % 2] },
        addend: if fp8 { AddendKind::None } else { ADDENDS[(turn + turn / 3) % ADDENDS.len()] },
        d_type: types.d_types[turn / 2 % 2],
        sfa: ORDERS[turn % ORDERS.len()],
        d_padding: [0, 8, 3][turn % 3],
        seed: turn as u64,
        ..GemmCase::m_grouped(types, groups, [dims[0], fitting_k(&types, dims[1])])
    }
}

/// A k-grouped case: over the turns every type, addend, layout of scales and gap occurs.
pub fn k_grouped(
    (types, layout): (OperandTypes, GemmLayout),
    ks: &[usize],
    dims: [usize; 2],
    turn: usize,
) -> GemmCase {
    let [d_row_padding, d_padding] = [[0, 0], [0, 8], [3, 1], [1, 0]][turn % 4];
    GemmCase {
        d_type: [types.d_types[1], types.d_types[0]][turn / 3 % 2],
        addend: ADDENDS[turn % ADDENDS.len()],
        sfa: ORDERS[(turn + 2) % ORDERS.len()],
        sfb: ORDERS[(turn + 2 + turn / 4) % ORDERS.len()],
        d_row_padding,
        d_padding,
        seed: turn as u64,
        ..GemmCase::k_grouped(types, layout, ks.to_vec(), dims)
    }
}

/// A sum of GEMMs of `[m, n, k]` each: over the turns every type, addend and gap occurs.
pub fn summed(types: OperandTypes, gemms: usize, dims: [usize; 3], turn: usize) -> GemmCase {
    GemmCase {
        d_type: types.d_types[turn / 3 % 2],
        addend: ADDENDS[turn % ADDENDS.len()],
        d_padding: [0, 8, 1][turn / 2 % 3],
        seed: turn as u64,
        ..GemmCase::summed(types, gemms, dims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_order_and_alignment_occurs() {
        let all: Vec<GemmCase> =
            (0..60).map(|turn| m_grouped(FP8, GroupLayout::Ids, &[3], [8, 8], turn)).collect();
        for alignment in ALIGNMENTS {
            let aligned = |case: &GemmCase| {
                case.m_groups().is_some_and(|groups| groups.alignment == alignment)
                    && case.d_type == DType::F32
            };
            assert!(all.iter().any(aligned));
        }
        assert!(all.iter().any(|case| case.sfa == ScaleOrder::Mn && case.d_padding == 0));
        let half = |turn| m_grouped(FP16, GroupLayout::Ids, &[3], [8, 8], turn);
        for (addend, layout) in
            ADDENDS.into_iter().flat_map(|x| [GemmLayout::Nt, GemmLayout::Nn].map(|y| (x, y)))
        {
            for d_type in FP16.d_types {
                let same =
                    |case: GemmCase| (case.addend, case.layout, case.d_type) == (addend, layout, d_type);
                assert!((0..60).map(half).any(same), "{addend:?} {layout} {d_type}");
            }
        }
    }
}
