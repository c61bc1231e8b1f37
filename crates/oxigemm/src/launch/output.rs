//! How a call writes D: by TMA stores, by vectors, or by single elements.

use oxigemm_kernels::gemm::epilogue::{OutputFlags, Panels};

use super::args::Addresses;
use crate::check::{Accumulate, Fused, Problem};
use crate::tensor::dtype::DType;

impl Fused {
    /// The columns of D where these are computed; the check has bounded them.
    pub(super) fn columns_of_d(&self, columns: u32) -> u32 {
        self.heads.map_or(columns, |heads| columns + columns / (heads.left + heads.right) * heads.mid)
    }

    /// Whether runs of this many columns that are computed together are neighbours in D.
    pub(super) fn keeps_together(&self, columns: u32) -> bool {
        self.heads
            .is_none_or(|heads| [heads.left, heads.right].iter().all(|part| part.is_multiple_of(columns)))
    }
}

/// Properties of D that decide how it is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Output {
    /// The flags that do not depend on addresses.
    pub flags: u32,
    /// The size of an element.
    size: u64,
    /// Elements by which the rows of D, and of C, are apart.
    pub pitches: [u64; 2],
    /// Elements by which their slabs are.
    slab: u64,
    /// Whether TMA could store D, were its address aligned.
    pub plain: bool,
    /// Whether four columns that are computed together are neighbours in D.
    fours: bool,
}

impl Output {
    /// `f32_panels`: whether the kernel stores FP32 by TMA, and adds it to D.
    pub fn new(problem: &Problem, f32_panels: bool) -> Output {
        let fused = problem.fused.as_ref();
        let d_slab = problem.groups.map_or(0, |groups| groups.d_slab);
        let c_pitch = match problem.c {
            Accumulate::None | Accumulate::InPlace => problem.d_pitch,
            Accumulate::From { pitch } => pitch,
        };
        let mut flags = 0;
        if problem.d_type == DType::F32 {
            flags |= OutputFlags::F32;
        }
        if problem.c != Accumulate::None {
            flags |= OutputFlags::ADDEND;
        }
        let size = problem.d_type.size() as u64;
        let kind = match (problem.d_type, problem.c) {
            (DType::F32, Accumulate::None | Accumulate::InPlace) => f32_panels,
            (DType::F32, Accumulate::From { .. }) => false,
            (_, c) => c == Accumulate::None,
        };
        // TMA takes rows of whole 16-byte vectors.
        let vectors = |elements: u64| (elements * size).is_multiple_of(16);
        let slab = u64::from(d_slab);
        let together = |columns| fused.is_none_or(|fused| fused.keeps_together(columns));
        let aligned = vectors(problem.n.into()) && vectors(problem.d_pitch) && vectors(slab);
        // Lanes store FP4.
        let is_fp4 = problem.d_type == DType::U8;
        let plain = kind && aligned && !is_fp4 && together(Panels::MAP_TILE[1]);
        let fours = together(4) && fused.and_then(|fused| fused.heads).is_none_or(|heads| heads.mid % 4 == 0);
        Output { flags, size, pitches: [problem.d_pitch, c_pitch], slab, plain, fours }
    }

    /// The flags for operands at these addresses.
    pub fn flags(&self, at: &Addresses) -> u32 {
        let vector = |address: u64, pitch: u64| {
            address.is_multiple_of(4 * self.size) && (pitch | self.slab).is_multiple_of(4)
        };
        let [d_pitch, c_pitch] = self.pitches;
        let mut flags = self.flags;
        if self.fours && vector(at.d, d_pitch) && (flags & OutputFlags::ADDEND == 0 || vector(at.c, c_pitch))
        {
            flags |= OutputFlags::VECTORS;
        }
        if self.plain && at.d.is_multiple_of(16) {
            flags |= OutputFlags::PLAIN;
        }
        flags
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::args::EpilogueAddresses;
    use crate::tensor::desc::ScaleStrides;
    use oxigemm_kernels::gemm::OperandKind;
    use oxigemm_kernels::gemm::epilogue::Gate;

    const PROBLEM: Problem = Problem {
        family: OperandKind::FP8,
        m: 64,
        n: 256,
        k: 512,
        a_pitch: 512,
        b_pitch: 512,
        d_pitch: 256,
        c: Accumulate::None,
        sfa: ScaleStrides { mn: 4, k: 1 },
        sfb: ScaleStrides { mn: 4, k: 1 },
        d_type: DType::Bf16,
        transpose: [false; 2],
        groups: None,
        k_groups: None,
        summed: None,
        fused: None,
    };
    const AT: Addresses = Addresses {
        a: 0x1000,
        sfa: 0x2000,
        b: 0x3000,
        sfb: 0x4000,
        c: 0x5000,
        d: 0x6000,
        groups: 0,
        map_workspace: 0,
        epilogue: EpilogueAddresses { alpha: 1.0, beta: 1.0, bias: 0, scales: 0, gate: Gate::PLAIN },
    };

    #[test]
    fn tma_stores_what_it_can_address_and_nothing_else() {
        const PLAIN: u32 = OutputFlags::PLAIN;
        const VECTORS: u32 = OutputFlags::VECTORS;
        let flags = |problem: Problem, d: u64| Output::new(&problem, false).flags(&Addresses { d, ..AT });
        assert_eq!(flags(PROBLEM, 0x6000), PLAIN | VECTORS);
        assert_eq!(flags(PROBLEM, 0x6008), VECTORS, "four elements are still aligned");
        assert_eq!(flags(PROBLEM, 0x6002), 0);
        assert_eq!(flags(Problem { n: 252, ..PROBLEM }, 0x6000), VECTORS);
        assert_eq!(flags(Problem { d_pitch: 260, ..PROBLEM }, 0x6000), VECTORS);
        assert_eq!(flags(Problem { d_pitch: 257, ..PROBLEM }, 0x6000), 0);
        let wide = Problem { d_type: DType::F32, ..PROBLEM };
        assert_eq!(flags(wide, 0x6000), OutputFlags::F32 | VECTORS);
        assert_eq!(flags(wide, 0x6008), OutputFlags::F32, "four floats are 16 bytes");
    }

    #[test]
    fn tma_stores_fp32_and_adds_it_to_d_where_the_kernel_can() {
        const F32: u32 = OutputFlags::F32 | OutputFlags::VECTORS;
        const PLAIN: u32 = OutputFlags::PLAIN;
        let wide = Problem { d_type: DType::F32, ..PROBLEM };
        let flags = |problem: Problem| Output::new(&problem, true).flags(&Addresses { c: AT.d, ..AT });
        assert_eq!(flags(wide), F32 | PLAIN);
        assert_eq!(flags(Problem { n: 252, ..wide }), F32 | PLAIN);
        assert_eq!(flags(Problem { n: 254, ..wide }), F32);
        let in_place = Problem { c: Accumulate::InPlace, ..wide };
        assert_eq!(flags(in_place), F32 | PLAIN | OutputFlags::ADDEND);
        let other = Problem { c: Accumulate::From { pitch: 256 }, ..wide };
        assert_eq!(flags(other), F32 | OutputFlags::ADDEND, "TMA adds to D alone");
        let narrow = Problem { d_type: DType::Bf16, ..in_place };
        assert_eq!(flags(narrow), OutputFlags::ADDEND | OutputFlags::VECTORS, "that would round twice");
    }

    #[test]
    fn vectors_need_both_d_and_c_aligned() {
        let both = OutputFlags::ADDEND | OutputFlags::VECTORS;
        let problem = Problem { c: Accumulate::From { pitch: 256 }, ..PROBLEM };
        let flags = |problem: Problem, c: u64| Output::new(&problem, false).flags(&Addresses { c, ..AT });
        assert_eq!(flags(problem, 0x5000), both);
        assert_eq!(flags(problem, 0x5002), OutputFlags::ADDEND);
        let odd = Problem { c: Accumulate::From { pitch: 259 }, ..PROBLEM };
        assert_eq!(flags(odd, 0x5000), OutputFlags::ADDEND);
        let in_place = Problem { c: Accumulate::InPlace, ..PROBLEM };
        assert_eq!(flags(in_place, AT.d), both);
        assert_eq!(flags(PROBLEM, 0x5002) & OutputFlags::VECTORS, OutputFlags::VECTORS, "there is no C");
    }
}
