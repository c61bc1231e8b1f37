//! Operands for timing: as many as a case has, and as hard for the tensor cores, but not drawn one by one.

use std::sync::Arc;

use oxigemm::{DType, Device, GemmLayout, Tensor, random};

use crate::Failure;
use crate::case::{GemmCase, Grouping};
use crate::data::GemmData;
use crate::gemm::Gemm;
use crate::groups::MGroups;
use crate::memory::{ScaleOrder, scale_columns, scale_matrices};
use crate::plan;
use crate::upload::output;

/// Elements of a pattern: no power of two, so that no two rows or groups begin alike.
const PATTERN: usize = (1 << 24) - 4099 * 16;

/// Random elements on a device, which fill operands of any size.
pub struct Patterns {
    e4m3: Tensor,
    e5m2: Tensor,
    bf16: Tensor,
    f16: Tensor,
    fp4: Tensor,
    scales: Tensor,
}

impl Patterns {
    /// Draws them.
    pub fn new(device: &Device) -> Result<Patterns, Failure> {
        let values = random::normals(1, PATTERN);
        // As quantization leaves them: the largest of 128 normals, about 2.6, becomes 448.
        let codes: Vec<f32> = values.iter().map(|x| (x * 170.0).clamp(-448.0, 448.0)).collect();
        let scales: Vec<f32> = values.iter().map(|x| (2.6 + 0.2 * x) / 448.0).collect();
        let of = |dtype, values: &[f32]| Tensor::from_f32(dtype, values, &[PATTERN], device);
        Ok(Patterns {
            e4m3: of(DType::E4m3, &codes)?,
            e5m2: of(DType::E5m2, &codes)?,
            bf16: of(DType::Bf16, &values)?,
            f16: of(DType::F16, &values)?,
            fp4: Tensor::from_bytes(DType::U8, &DType::E4m3.encode(&codes), &[PATTERN], device)?,
            scales: of(DType::F32, &scales)?,
        })
    }

    /// A tensor without gaps, filled.
    fn filled(&self, dtype: DType, dims: &[usize], device: &Device) -> oxigemm::Result<Tensor> {
        let pattern = match dtype {
            DType::Bf16 => &self.bf16,
            DType::F16 => &self.f16,
            DType::F32 => &self.scales,
            DType::U8 => &self.fp4,
            DType::E5m2 => &self.e5m2,
            _ => &self.e4m3,
        };
        let len = dims.iter().product();
        let all = Tensor::empty(dtype, &[len], device)?;
        for first in (0..len).step_by(PATTERN) {
            let part = PATTERN.min(len - first);
            all.narrow(0, first, part)?.copy_from(&pattern.narrow(0, 0, part)?)?;
        }
        all.view(dims)
    }

    /// Scales: FP32 ones, or the code of one scale.
    fn scales(&self, dtype: DType, len: usize, device: &Device) -> oxigemm::Result<Tensor> {
        match dtype {
            DType::F32 => self.filled(DType::F32, &[len], device),
            // 2^-7 as UE8M0, and 1 as E4M3.
            dtype => {
                let code = if dtype == DType::E4m3 { 0x38 } else { 120 };
                Tensor::from_bytes(dtype, &vec![code; len * dtype.size()], &[len], device)
            }
        }
    }
}

/// Operands without gaps, filled.
struct Filled {
    a: Tensor,
    b: Tensor,
    scales: Option<[Tensor; 2]>,
    numbers: Option<Tensor>,
}

impl GemmCase {
    /// Operands on a device that can be run and timed, not judged. Those with scales are K-major, unless they are
    /// k-grouped. Ranges of K are whole blocks.
    pub fn for_timing(&self, patterns: &Patterns, device: &Device) -> Result<Gemm, Failure> {
        let Filled { a, b, scales, numbers } = match &self.grouping {
            Grouping::Dense => self.filled_rows(None, patterns, device)?,
            Grouping::M(groups) => self.filled_rows(Some(groups), patterns, device)?,
            Grouping::Summed(gemms) => {
                let operand =
                    |rows| patterns.filled(self.types.ab, &[*gemms, rows, self.k / (*gemms).max(1)], device);
                Filled { a: operand(self.m)?, b: operand(self.n)?, scales: None, numbers: None }
            }
            Grouping::K(ks) => self.filled_ranges(ks, patterns, device)?,
        };
        let bias = match self.fused().bias {
            None => None,
            Some(dtype) => {
                let dims: Vec<usize> = self.groups().into_iter().chain([self.n]).collect();
                Some(patterns.filled(dtype, &dims, device)?)
            }
        };
        let data = GemmData { case: self.clone(), groups: Arc::new(Vec::new()) };
        Ok(Gemm::new(data, (a, b), (scales, numbers, bias), output(self, 0, device)?, None, None))
    }

    /// Operands of dense and m-grouped GEMMs.
    fn filled_rows(
        &self,
        groups: Option<&MGroups>,
        patterns: &Patterns,
        device: &Device,
    ) -> Result<Filled, Failure> {
        let [slabs, rows] = self.slabs();
        let (n, k, [a_type, b_type]) = (self.n, self.k, self.ab_types());
        let k_first = [self.layout.a_begins_with_k(), self.layout.b_begins_with_k()];
        if self.types.has_scales() && k_first != [false; 2] {
            return Err(format!("{self}: operands with scales that are timed are K-major").into());
        }
        let columns = |dtype: DType| if dtype == DType::U8 { k / 2 } else { k };
        let has_slabs = groups.is_some_and(|groups| groups.has_slabs());
        let flat = |x: Tensor| if has_slabs { Ok(x) } else { x.select(0) };
        let operand = |dtype: DType, slabs: usize, rows: usize, k_first: bool| {
            let dims = if k_first { [slabs, k, rows] } else { [slabs, rows, columns(dtype)] };
            patterns.filled(dtype, &dims, device)
        };
        let a = flat(operand(a_type, slabs, rows, k_first[0])?)?;
        let counts = groups.map_or(1, |groups| groups.sizes.len());
        let b = operand(b_type, counts, n, k_first[1])?;
        let b = if groups.is_some() { b } else { b.select(0)? };
        let scales = match self.types.scale_blocks {
            None => None,
            Some([[_, of_a], [rows_of_b, of_b]]) => {
                let scale_type = self.types.scale_type;
                let memory = |len| patterns.scales(scale_type, len, device);
                let blocks = |of_k: usize| scale_columns(k.div_ceil(of_k), scale_type);
                let sfa = flat(scale_matrices([slabs, rows, blocks(of_a)], self.sfa, memory)?)?;
                let sfb = scale_matrices([counts, n.div_ceil(rows_of_b), blocks(of_b)], self.sfb, memory)?;
                Some([sfa, if groups.is_some() { sfb } else { sfb.select(0)? }])
            }
        };
        let numbers = match groups.map(|groups| groups.numbers()) {
            Some(numbers) if !numbers.is_empty() => {
                Some(Tensor::from_slice(&numbers, &[numbers.len()], device)?)
            }
            _ => None,
        };
        Ok(Filled { a, b, scales, numbers })
    }

    /// Operands of k-grouped GEMMs.
    fn filled_ranges(&self, ks: &[usize], patterns: &Patterns, device: &Device) -> Result<Filled, Failure> {
        let (unit, k_first) = (plan::k_unit(self), self.layout == GemmLayout::Tn);
        let extent: usize = ks.iter().map(|k| k.next_multiple_of(unit)).sum();
        let operand = |dtype: DType, rows: usize| match (self.types.has_scales(), k_first) {
            (_, true) => patterns.filled(dtype, &[extent, rows], device),
            (false, false) => patterns.filled(dtype, &[rows, extent], device),
            (true, false) => {
                patterns.filled(dtype, &[rows * if dtype == DType::U8 { extent / 2 } else { extent }], device)
            }
        };
        let block = plan::scale_block(self).size() as usize;
        let blocks = scale_columns(ks.iter().map(|k| k.div_ceil(block)).sum(), self.types.scale_type);
        let scales = |rows: usize, order: ScaleOrder| {
            let memory = |len| patterns.scales(self.types.scale_type, len, device);
            let scales = scale_matrices([1, rows, blocks], order, memory)?.select(0)?;
            if k_first { scales.transpose(0, 1) } else { Ok(scales) }
        };
        let [a_type, b_type] = self.ab_types();
        let numbers: Vec<i32> = ks.iter().map(|k| *k as i32).collect();
        Ok(Filled {
            a: operand(a_type, self.m)?,
            b: operand(b_type, self.n)?,
            scales: match self.types.has_scales() {
                true => Some([scales(self.m, self.sfa)?, scales(self.n, self.sfb)?]),
                false => None,
            },
            numbers: Some(Tensor::from_slice(&numbers, &[numbers.len()], device)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BF16, EpilogueSpec, FP8, FP8_1D1D, FP8_FP4, Fill, Named, Op, spread};
    use oxigemm::GemmOptions;

    /// A small case of an operation.
    fn case(op: Op) -> GemmCase {
        use crate::GroupingKind::{Batched, Dense, KGrouped, MGroupedContiguous, MGroupedMasked, Summed};
        let groups = |layout| GemmCase::m_grouped(op.types, MGroups::new(layout, vec![5, 0, 9]), [32, 128]);
        let case = match op.grouping {
            Dense => GemmCase::dense(op.types, GemmLayout::Nt, [9, 32, 128]),
            Batched => groups(crate::GroupLayout::All),
            MGroupedContiguous => groups(crate::GroupLayout::Ids),
            MGroupedMasked => groups(crate::GroupLayout::Counts),
            Summed => GemmCase::summed(op.types, 3, [9, 32, 64]),
            KGrouped => GemmCase::k_grouped(op.types, op.default_layout(), vec![128, 256], [16, 32]),
        };
        match case.grouping {
            Grouping::M(groups) if op.grouping == Batched => {
                let groups = MGroups { sizes: vec![9; 3], ..groups };
                GemmCase { grouping: Grouping::M(groups), ..case }
            }
            _ => case,
        }
    }

    #[test]
    fn every_operation_has_operands_that_run() {
        let device = Device::cpu();
        let patterns = Patterns::new(&device).unwrap();
        let run = |case: GemmCase| {
            let case = GemmCase { fill: Fill::Zeros, ..case };
            let mut gemm =
                case.for_timing(&patterns, &device).unwrap_or_else(|error| panic!("{case}: {error}"));
            gemm.run(&GemmOptions::default()).unwrap_or_else(|error| panic!("{case}: {error}"));
            let groups = 0..case.gemms().len();
            let found: Vec<f32> = groups.flat_map(|group| gemm.result(group).unwrap()).collect();
            assert!(found.iter().all(|x| x.is_finite()), "{case}");
            assert!(found.iter().any(|x| *x != 0.0), "{case}");
        };
        Op::all().into_iter().for_each(|op| run(case(op)));
        let e5m2 = Some(crate::E5m2::B);
        run(GemmCase { e5m2, ..GemmCase::fp8(9, 32, 128) });
        for layout in GemmLayout::ALL {
            run(GemmCase::dense(BF16, layout, [8, 32, 64]));
        }
        let ks = spread(2, 256, 1).into_iter().map(|k| k.next_multiple_of(128)).collect();
        run(GemmCase::k_grouped(FP8_1D1D, GemmLayout::Tn, ks, [16, 32]));
        for (types, words) in [(FP8, "swiglu,fp8"), (FP8, "bias,gelu"), (BF16, "bias"), (FP8_FP4, "swiglu")] {
            let epilogue = Some(words.parse::<EpilogueSpec>().unwrap().beside(&types));
            run(GemmCase { epilogue, ..GemmCase::dense(types, GemmLayout::Nt, [9, 256, 128]) });
        }
    }
}
