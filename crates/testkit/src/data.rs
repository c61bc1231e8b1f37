//! The operands of a case on the host.

use std::sync::Arc;

use oxigemm::cast::{Quantized, cast_blocks_to_fp4, cast_blocks_to_fp8};
use oxigemm::{DType, Device, LaunchOptions, Tensor, TensorScale, quantize_nvfp4, random};

use crate::Failure;
use crate::case::{AddendKind, GemmCase, Grouping};

/// Normals of a seed, rounded to a type.
pub fn values(dtype: DType, seed: u64, salt: u64, len: usize) -> Vec<f32> {
    dtype.decode(&dtype.encode(&random::normals(seed.wrapping_mul(4).wrapping_add(salt), len)))
}

/// Scales of the tensors A and B of NVFP4: operands are standard normals.
pub const TENSOR_SCALES: [f32; 2] = [0.02, 0.015];

/// A and B quantized; groups may share B.
pub struct Fp8Pair {
    /// A.
    pub a: Quantized,
    /// B.
    pub b: Arc<Quantized>,
}

/// The operands of one GEMM: of the case, or of one of its groups.
pub struct GroupData {
    /// M, N and K.
    pub dims: [usize; 3],
    /// A, `[M, K]`: normals, rounded to its type; those of FP8 to BF16, and not yet quantized.
    pub a_values: Vec<f32>,
    /// B, `[N, K]`, like A.
    pub b_values: Arc<Vec<f32>>,
    /// A and B quantized, where the operands are FP8.
    pub fp8: Option<Fp8Pair>,
    /// What is added, if anything is: a column for each that is computed, already of D's type.
    pub c: Option<Vec<f32>>,
}

impl GroupData {
    /// A and B quantized, of an operation that takes FP8.
    pub fn quantized(&self) -> Result<&Fp8Pair, Failure> {
        self.fp8.as_ref().ok_or_else(|| "the operands are not FP8".into())
    }
}

/// The operands of a case on the host: those of a GEMM for each group.
#[derive(Clone)]
pub struct GemmData {
    /// The case.
    pub case: GemmCase,
    /// The operands of each group.
    pub groups: Arc<Vec<GroupData>>,
}

impl GemmData {
    /// Draws the operands.
    pub fn draw(case: GemmCase) -> Result<GemmData, Failure> {
        let mut groups: Vec<GroupData> = Vec::new();
        for (group, dims @ [m, n, k]) in case.gemms().into_iter().enumerate() {
            let seed = group_seed(&case, group);
            let own = |salt: u64, len: usize| values(case.types.rounding, seed, salt, len);
            let cast = |values: &[f32], rows: usize, operand: usize| {
                let block = case.scales.block(&case.types, operand, [rows, k]);
                let (dtype, format) = (case.ab_types()[operand], case.types.scale_format);
                match dtype {
                    DType::U8 if case.types.is_nvfp4() => nvfp4(values, [rows, k], TENSOR_SCALES[operand]),
                    DType::U8 => cast_blocks_to_fp4(values, rows, k, block, format),
                    _ => cast_blocks_to_fp8(values, rows, k, dtype, block, format),
                }
            };
            let a_values = own(0, m * k);
            let earlier = case.m_groups().map(|groups| groups.distinct_b.max(1)).filter(|own| group >= *own);
            let earlier = earlier.map(|own| &groups[group % own]);
            let b_values = match earlier {
                Some(earlier) => Arc::clone(&earlier.b_values),
                None => Arc::new(own(1, n * k)),
            };
            let fp8 = match case.types.has_scales() {
                false => None,
                true => Some(Fp8Pair {
                    a: cast(&a_values, m, 0)?,
                    b: match earlier {
                        Some(earlier) => Arc::clone(&earlier.quantized()?.b),
                        None => Arc::new(cast(&b_values, n, 1)?),
                    },
                }),
            };
            let c = (case.addend != AddendKind::None).then(|| draw_addend(&case, group, [m, n]));
            groups.push(GroupData { dims, a_values, b_values, fp8, c });
        }
        Ok(GemmData { case, groups: Arc::new(groups) })
    }

    /// The same GEMM without its epilogue, whose result is the accumulators.
    pub(crate) fn accumulators(&self) -> GemmData {
        let plain = GemmCase {
            epilogue: None,
            d_type: DType::F32,
            addend: AddendKind::None,
            d_padding: 0,
            d_row_padding: 0,
            d_offset: 0,
            ..self.case.clone()
        };
        GemmData { case: plain, groups: Arc::clone(&self.groups) }
    }

    /// The bias of each group.
    pub(crate) fn bias(&self, dtype: DType) -> Vec<f32> {
        let len = self.case.groups().unwrap_or(1) * self.case.n;
        values(dtype, self.case.seed, 2, len).iter().map(|x| x * 4.0).collect()
    }
}

/// A matrix as NVFP4, for a scale of its tensor. The scales are those of blocks.
fn nvfp4(values: &[f32], [rows, k]: [usize; 2], tensor_scale: f32) -> oxigemm::Result<Quantized> {
    const BLOCK: usize = 16;
    let device = &Device::cpu();
    let x = Tensor::from_f32(DType::F32, values, &[rows, k], device)?;
    let mut codes = Tensor::zeros(DType::U8, &[rows, k / 2], device)?;
    let mut scales = Tensor::zeros(DType::E4m3, &[rows, k.div_ceil(BLOCK)], device)?;
    let given = Tensor::from_slice(&[tensor_scale], &[1], device)?;
    let options = LaunchOptions::default();
    quantize_nvfp4(&x, &mut codes, &mut scales, TensorScale::Given(&given), &options)?;
    Ok(Quantized {
        dtype: DType::U8,
        codes: codes.to_bytes()?,
        scales: scales.to_vec_f32()?,
        rows,
        k,
        rows_per_scale: 1,
        k_per_scale: BLOCK,
    })
}

/// The seed of a group's operands.
fn group_seed(case: &GemmCase, group: usize) -> u64 {
    match &case.grouping {
        Grouping::Dense | Grouping::Summed(_) => case.seed,
        Grouping::M(_) => case.seed.wrapping_add(1 + group as u64),
        Grouping::K(_) => case.seed.wrapping_mul(1000).wrapping_add(group as u64),
    }
}

fn draw_addend(case: &GemmCase, group: usize, [m, n]: [usize; 2]) -> Vec<f32> {
    let drawn = match &case.epilogue {
        None => values(case.types.rounding, group_seed(case, group), 2, m * n),
        Some(epilogue) => {
            let seed = case.seed.wrapping_add(group as u64);
            values(case.output_type(), seed, 3, m * epilogue.columns(n))
        }
    };
    drawn.iter().map(|x| x * 8.0).collect()
}
