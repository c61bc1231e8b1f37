//! The tensor maps of a call, without their addresses.

use oxigemm_cuda::Swizzle;
use oxigemm_kernels::gemm::operand::f16::Major;
use oxigemm_kernels::gemm::params::ScaleLayout;
use oxigemm_kernels::gemm::{ElementType, Launch, MatrixMap, Operand, Swizzle as KernelSwizzle};

use super::output::Output;
use crate::check::Problem;
use crate::plan::GemmShape;
use crate::tensor::desc::ScaleStrides;
use crate::tensor::dtype::DType;

/// Bytes of the longest line of a swizzled box.
const LINE_BYTES: u32 = 128;

/// An operand that TMA copies, and so has a tensor map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mapped {
    A,
    B,
    ScalesOfA,
    D,
}

/// Element type of a tensor map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapElement {
    /// FP4, of which TMA gives each code a byte of shared memory.
    PaddedFp4,
    Byte,
    Bf16,
    F16,
    F32,
}

impl MapElement {
    /// Bits of one.
    fn bits(self) -> u64 {
        match self {
            MapElement::PaddedFp4 => 4,
            MapElement::Byte => 8,
            MapElement::Bf16 | MapElement::F16 => 16,
            MapElement::F32 => 32,
        }
    }

    fn of(dtype: DType) -> MapElement {
        match dtype {
            DType::E4m3 | DType::E5m2 | DType::U8 => MapElement::Byte,
            DType::Bf16 => MapElement::Bf16,
            DType::F16 => MapElement::F16,
            // Of 32 bits as well; no operand that is copied as a matrix has it.
            DType::F32 | DType::I32 => MapElement::F32,
        }
    }
}

/// A tensor map without its address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Map {
    pub matrix: MatrixMap,
    pub element: MapElement,
    pub swizzle: Swizzle,
}

impl Map {
    /// The same matrix `count` times, so many units of the operand's pitch apart.
    pub fn in_slabs(self, count: u32, pitch: u64) -> Map {
        let codes = if self.element == MapElement::PaddedFp4 { 2 } else { 1 };
        Map { matrix: self.matrix.in_slabs(count, pitch * codes), ..self }
    }

    /// Bytes from one row to the next; 0 where that is too much to say.
    pub fn pitch_bytes(&self) -> u32 {
        u32::try_from(self.matrix.pitch * self.element.bits() / 8).unwrap_or(0)
    }
}

/// Tensor maps of a problem, without their addresses; none where TMA never copies the operand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Maps {
    pub a: Map,
    pub b: Map,
    pub sfa: Option<Map>,
    pub d: Option<Map>,
}

impl Maps {
    /// Tensor maps of a launch, with so many scale blocks along K.
    pub(super) fn new(launch: &Launch, problem: &Problem, blocks: u32, output: &Output) -> Maps {
        let shape = GemmShape { m: problem.m, n: problem.n, k: problem.k };
        let fused = problem.fused.as_ref();
        let scales = |matrix| Map { matrix, element: MapElement::F32, swizzle: Swizzle::None };
        let (a_pitch, b_pitch) = (problem.a_pitch, problem.b_pitch);
        let parts_of_b = fused.map_or(1, |fused| fused.fusion.accumulators());
        let of_b = GemmShape { n: shape.n * parts_of_b, ..shape };
        let of_d = GemmShape { n: fused.map_or(shape.n, |fused| fused.columns_of_d(shape.n)), ..shape };
        let (a, b) = (problem.family.a, problem.family.b);
        let [a, mut b] = match wide_element(a.element) {
            None if problem.family.widens_b() => {
                let b = Map {
                    matrix: launch.map_packed_b(of_b, b_pitch),
                    element: MapElement::Byte,
                    swizzle: Swizzle::B64,
                };
                [byte_map(launch.map_a(shape, a_pitch), a, a), b]
            }
            None => {
                [byte_map(launch.map_a(shape, a_pitch), a, b), byte_map(launch.map_b(of_b, b_pitch), b, a)]
            }
            Some(element) => {
                let map = |operand: Operand, rows: u32, pitch: u64, lines: u32| Map {
                    matrix: launch.map_lines(operand, [rows, shape.k], pitch, lines),
                    element,
                    swizzle: swizzle(operand),
                };
                [map(a, shape.m, a_pitch, launch.tile_a), map(b, of_b.n, b_pitch, launch.tile_b)]
            }
        };
        b.matrix = b.matrix.in_parts(parts_of_b, launch.parts_of_b);
        let sfa = match problem.family.scales_by_tma() {
            true => {
                let strides = sfa_strides(problem, blocks);
                // An aligned address stands for all aligned ones; the others are copied by threads.
                launch.map_sfa(shape, ScaleLayout::of(0, strides), strides)
            }
            false => None,
        };
        let d = output.plain.then(|| launch.map_d(of_d, problem.d_pitch, problem.d_type.size() as u32));
        let element = MapElement::of(problem.d_type);
        let d = d.map(|matrix| Map { matrix, element, swizzle: Swizzle::B128 });
        Maps { a, b, sfa: sfa.map(scales), d }
    }
}

/// Elements of more than a byte.
fn wide_element(element: ElementType) -> Option<MapElement> {
    match element {
        ElementType::Bf16 => Some(MapElement::Bf16),
        ElementType::F16 => Some(MapElement::F16),
        ElementType::Tf32 => Some(MapElement::F32),
        ElementType::E4m3 | ElementType::E5m2 | ElementType::E2m1 => None,
    }
}

/// How lines of an operand are permuted.
fn swizzle(operand: Operand) -> Swizzle {
    match operand.swizzle() {
        KernelSwizzle::None => Swizzle::None,
        KernelSwizzle::B32 => Swizzle::B32,
        KernelSwizzle::B64 => Swizzle::B64,
        KernelSwizzle::B128 => Swizzle::B128,
        KernelSwizzle::B128Atom32 => Swizzle::B128Atom32,
    }
}

/// The map of an operand of at most 8 bits, as of bytes, with that of a K-major one. FP4, whose pitch is in bytes of two, is
/// copied as such beside FP4; beside FP8, TMA gives each code a byte of its own.
fn byte_map(matrix: MatrixMap, operand: Operand, other: Operand) -> Map {
    let (element, matrix) = match (operand.element, other.element) {
        (ElementType::E2m1, ElementType::E2m1) => {
            let [k, rows] = matrix.dims;
            (MapElement::Byte, MatrixMap { dims: [k.div_ceil(2), rows], ..matrix })
        }
        (ElementType::E2m1, _) => (MapElement::PaddedFp4, MatrixMap { pitch: matrix.pitch * 2, ..matrix }),
        _ if operand.major == Major::MN => (MapElement::Byte, matrix.across(LINE_BYTES)),
        _ => (MapElement::Byte, matrix),
    };
    Map { matrix, element, swizzle: swizzle(operand) }
}

/// The strides of A's scales, along M and along K, of which there are so many blocks.
pub(super) fn sfa_strides(problem: &Problem, blocks: u32) -> [u32; 2] {
    with_meaning(problem.sfa, problem.m, blocks)
}

/// The strides of B's scales, along N and along K.
pub(super) fn sfb_strides(problem: &Problem, blocks: u32) -> [u32; 2] {
    match problem.family.is_1d1d() {
        true => with_meaning(problem.sfb, problem.n, blocks),
        false => [problem.sfb.mn, problem.sfb.k],
    }
}

/// The stride of a single row or of a single block of K has no meaning: it becomes one that TMA takes.
fn with_meaning(strides: ScaleStrides, rows: u32, k_blocks: u32) -> [u32; 2] {
    match (strides.mn, strides.k) {
        (_, 1) if rows == 1 => [k_blocks.next_multiple_of(4), 1],
        (1, _) if k_blocks == 1 => [1, rows.next_multiple_of(4)],
        (mn, k) => [mn, k],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Accumulate;
    use crate::plan::OperandKind;

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

    #[test]
    fn strides_without_meaning_become_ones_that_tma_takes() {
        let strides = |problem: &Problem| sfa_strides(problem, problem.k_blocks());
        let layout = |problem: &Problem| ScaleLayout::of(0x2000, strides(problem));
        assert_eq!(layout(&PROBLEM), ScaleLayout::RowMajor);
        let one_row = Problem { m: 1, k: 640, sfa: ScaleStrides { mn: 1, k: 1 }, ..PROBLEM };
        assert_eq!((strides(&one_row), layout(&one_row)), ([8, 1], ScaleLayout::RowMajor));
        let one_block = Problem { m: 63, k: 128, sfa: ScaleStrides { mn: 1, k: 1 }, ..PROBLEM };
        assert_eq!((strides(&one_block), layout(&one_block)), ([1, 64], ScaleLayout::MnMajor));
        let odd = Problem { sfa: ScaleStrides { mn: 5, k: 1 }, ..PROBLEM };
        assert_eq!((strides(&odd), layout(&odd)), ([5, 1], ScaleLayout::Copied));
        let apart = Problem { m: 1, sfa: ScaleStrides { mn: 1, k: 7 }, ..PROBLEM };
        assert_eq!((strides(&apart), layout(&apart)), ([1, 7], ScaleLayout::Copied));
    }
}
