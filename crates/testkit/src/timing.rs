//! Operands for timing: as many as a case has, and as hard for the tensor cores, but not drawn one by one.

use std::sync::Arc;

use oxigemm::{DType, Device, Tensor, random};

use crate::Failure;
use crate::case::{GemmCase, Grouping};
use crate::data::GemmData;
use crate::gemm::Gemm;
use crate::memory::{scale_columns, scale_matrices};
use crate::upload::output;

/// Elements of a pattern: no power of two, so that no two rows or groups begin alike.
const PATTERN: usize = (1 << 24) - 4099 * 16;

/// Random elements on a device, which fill operands of any size.
pub struct Patterns {
    e4m3: Tensor,
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
}

impl GemmCase {
    /// Operands on a device that can be run and timed, not judged. Dense and m-grouped GEMMs of K-major operands have
    /// some.
    pub fn for_timing(&self, patterns: &Patterns, device: &Device) -> Result<Gemm, Failure> {
        let ([slabs, rows], groups) = match &self.grouping {
            Grouping::Dense => ([1, self.m], None),
            Grouping::M(groups) => (groups.slabs(), Some(groups)),
            Grouping::Summed(_) | Grouping::K(_) => return Err("only dense and m-grouped GEMMs".into()),
        };
        let (n, k, [a_type, b_type]) = (self.n, self.k, self.ab_types());
        let columns = |dtype: DType| if dtype == DType::U8 { k / 2 } else { k };
        let has_slabs = groups.is_some_and(|groups| groups.has_slabs());
        let flat = |x: Tensor| if has_slabs { Ok(x) } else { x.select(0) };
        let a = flat(patterns.filled(a_type, &[slabs, rows, columns(a_type)], device)?)?;
        let counts = groups.map_or(1, |groups| groups.sizes.len());
        let b = patterns.filled(b_type, &[counts, n, columns(b_type)], device)?;
        let b = if groups.is_some() { b } else { b.select(0)? };
        let scale_type = self.types.scale_type;
        let scales = match self.types.scale_blocks {
            None => None,
            Some([[_, of_a], [rows_of_b, of_b]]) => {
                let memory = |len| match scale_type {
                    DType::F32 => patterns.filled(DType::F32, &[len], device),
                    // 2^-7 as UE8M0, and 1 as E4M3.
                    dtype => {
                        let code = if dtype == DType::E4m3 { 0x38 } else { 120 };
                        Tensor::from_bytes(dtype, &vec![code; len * dtype.size()], &[len], device)
                    }
                };
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
        let data = GemmData { case: self.clone(), groups: Arc::new(Vec::new()) };
        Ok(Gemm::new(data, (a, b), (scales, numbers, None), output(self, 0, device)?, None, None))
    }
}
