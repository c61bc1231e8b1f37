//! The GEMM on the CPU: one reference for every grouping and epilogue.

use std::ops::Range;

use oxigemm_kernels::gemm::ScaleType;
use oxigemm_kernels::gemm::scheduler::k_grouped::{KCapacity, KGroup, PITCH_UNIT, k_groups, ks_of_ends};
use oxigemm_kernels::gemm::unpack_scales;

use super::epilogue::{EpilogueOutput, Finish, computed};
use super::{Fp8Matrix, fp8_gemm_nt, gemm_nt, truncated_to_tf32};
use crate::cast::Quantized;
use crate::check::gemm::tensors::epilogue::Epilogue;
use crate::check::gemm::tensors::{Addend, Gemm, Grouping};
use crate::check::{Checked, GemmDesc, GemmLayout, Groups, KGroups, OutputFormat, Problem};
use crate::device::Device;
use crate::error::Result;
use crate::tensor::Tensor;
use crate::tensor::desc::Operand;
use crate::tensor::dtype::DType;

/// `fp8_gemm_nt` on tensors of any device: the arguments pass the same checks as on a GPU, and D takes the exact
/// result, rounded once.
///
/// # Errors
/// Whatever [`GemmDesc::check`] refuses.
///
/// ```
/// use oxigemm::{DType, Device, Tensor, reference};
///
/// let cpu = Device::Cpu;
/// let a = Tensor::from_f32(DType::E4m3, &[0.5; 16], &[1, 16], &cpu)?;
/// let b = Tensor::from_f32(DType::E4m3, &[4.0; 2 * 16], &[2, 16], &cpu)?;
/// let one = Tensor::from_slice(&[1.0f32], &[1, 1], &cpu)?;
/// let mut d = Tensor::zeros(DType::Bf16, &[1, 2], &cpu)?;
/// reference::fp8_gemm_nt_tensors(&a, &one, &b, &one, None, &mut d)?;
/// assert_eq!(d.to_vec_f32()?, [32.0, 32.0]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn fp8_gemm_nt_tensors(
    a: &Tensor,
    sfa: &Tensor,
    b: &Tensor,
    sfb: &Tensor,
    c: Option<&Tensor>,
    d: &mut Tensor,
) -> Result<()> {
    gemm(&Gemm { c: c.map_or(Addend::None, Addend::From), ..Gemm::fp8((a, sfa), (b, sfb), d) })
}

/// A GEMM of tensors of any device. Its arguments pass the same check as on a GPU. Products are exact in `f64`, and D
/// is rounded once.
pub(crate) fn gemm(gemm: &Gemm<'_>) -> Result<()> {
    match gemm.describe().unpacked()? {
        None => gemm_f32(gemm),
        Some((desc, unpacked)) => {
            unpacked.expect_apart(&gemm.describe())?;
            let encoding = desc.scale_encoding();
            let unpack = |scales: Option<&Tensor>, to: Option<Operand>, k_first: bool| match (scales, to) {
                (Some(x), Some(to)) if x.dtype() != DType::F32 => unpack(x, &to, encoding, k_first).map(Some),
                _ => Ok(None),
            };
            let sfa = unpack(gemm.sfa, desc.sfa, gemm.layout.a_begins_with_k())?;
            let sfb = unpack(gemm.sfb, desc.sfb, gemm.layout.b_begins_with_k())?;
            gemm_f32(&Gemm { sfa: sfa.as_ref().or(gemm.sfa), sfb: sfb.as_ref().or(gemm.sfb), ..*gemm })
        }
    }
}

/// FP32 scales of codes, in the shape that a kernel unpacks them to. `k_first`: matrices begin with K.
fn unpack(scales: &Tensor, to: &Operand, encoding: ScaleType, k_first: bool) -> Result<Tensor> {
    let packed = scales.dtype() == DType::I32;
    // Columns are along K, and so are the codes of a word.
    let bytes = along_k(scales, k_first)?.to_bytes()?;
    let mut dims: Vec<usize> = to.dims().iter().map(|dim| *dim as usize).collect();
    let rank = dims.len();
    if k_first && rank > 1 {
        dims.swap(rank - 2, rank - 1);
    }
    let columns = dims[rank - 1];
    let row = if packed { columns.next_multiple_of(4) } else { columns };
    let codes: Vec<u8> = bytes.chunks(row.max(1)).flat_map(|row| &row[..columns]).copied().collect();
    let values = match encoding {
        ScaleType::Ue4m3 => DType::E4m3.decode(&codes),
        ScaleType::Ue8m0 | ScaleType::F32 => codes.into_iter().map(unpack_scales::scale).collect(),
    };
    along_k(&Tensor::from_slice(&values, &dims, &Device::Cpu)?, k_first)
}

fn gemm_f32(gemm: &Gemm<'_>) -> Result<()> {
    let problem = match gemm.describe().check()? {
        Checked::Launch(problem) => problem,
        Checked::Trivial(_) => return without_product(gemm.c.tensor(gemm.d), &mut gemm.d.clone()),
        Checked::Nothing => return Ok(()),
    };
    match (&gemm.grouping, &problem.groups, &problem.k_groups) {
        (Grouping::KGrouped { groups: numbers, .. }, _, Some(groups)) => {
            k_grouped(gemm, &problem, groups, numbers.numbers())
        }
        (Grouping::Summed, ..) => summed(gemm),
        (_, Some(groups), _) => grouped(gemm, &problem, groups),
        _ => {
            let operands = Operands::new(gemm)?;
            Part::of(gemm, |x| Ok(x.clone()))?.store(
                &operands.product()?,
                operands.b.dims()[0],
                gemm.epilogue,
            )
        }
    }
}

/// Operands of one matrix of D, A as `[M, K]` and B as `[N, K]`.
struct Operands {
    a: Tensor,
    b: Tensor,
    scales: Option<(Tensor, Tensor)>,
    /// Rows of A and of B, with columns, that share a scale.
    scale_blocks: [[usize; 2]; 2],
}

impl Operands {
    /// All of A and B, in the layout `nt`.
    fn new(gemm: &Gemm<'_>) -> Result<Operands> {
        let (a_first, b_first) = (gemm.layout.a_begins_with_k(), gemm.layout.b_begins_with_k());
        let scales = match (gemm.sfa, gemm.sfb) {
            (Some(sfa), Some(sfb)) => Some((along_k(sfa, a_first)?, along_k(sfb, b_first)?)),
            _ => None,
        };
        let granularity = gemm.describe().scale_granularity()?.unwrap_or_default();
        let scale_blocks = granularity.map(|block| block.map(|size| size as usize));
        Ok(Operands { a: along_k(gemm.a, a_first)?, b: along_k(gemm.b, b_first)?, scales, scale_blocks })
    }

    /// Those of a group, with its rows of A.
    fn of_group(&self, groups: &Groups, group: usize, rows: &Range<u32>) -> Result<Operands> {
        // One matrix of scales may hold for all groups, and one row for all rows.
        let scales_of = |x: &Tensor, several: bool| match x.dims() {
            [groups, _, _] if several => x.select(if *groups == 1 { 0 } else { group }),
            _ => Ok(x.clone()),
        };
        let scales = match &self.scales {
            None => None,
            Some((sfa, sfb)) => {
                let mut sfa = scales_of(sfa, groups.layout.has_slabs())?;
                if sfa.dims()[0] > 1 {
                    sfa = sfa.narrow(0, rows.start as usize, rows.len())?;
                }
                Some((sfa, scales_of(sfb, true)?))
            }
        };
        let (a, b) = (part_of(groups, &self.a, group, rows)?, self.b.select(group)?);
        Ok(Operands { a, b, scales, scale_blocks: self.scale_blocks })
    }

    /// The exact product.
    fn product(&self) -> Result<Vec<f64>> {
        let Operands { a, b, scales, scale_blocks: [of_a, of_b] } = self;
        let Some((sfa, sfb)) = scales else {
            let dims = [a.dims()[0], b.dims()[0], a.dims()[1]];
            let read = |x: &Tensor| -> Result<Vec<f32>> {
                let values = x.to_vec_f32()?;
                Ok(if x.dtype() == DType::F32 {
                    values.into_iter().map(truncated_to_tf32).collect()
                } else {
                    values
                })
            };
            return gemm_nt(&read(a)?, &read(b)?, dims, None);
        };
        let a = Quantized::from_tensors_in_blocks(a, sfa, *of_a)?;
        let b = Quantized::from_tensors_in_blocks(b, sfb, *of_b)?;
        fp8_gemm_nt(&a.as_matrix(), &b.as_matrix(), None)
    }
}

/// One matrix of D and what goes with it.
struct Part {
    d: Tensor,
    c: Option<Tensor>,
    bias: Option<Tensor>,
    d_scales: Option<(Tensor, OutputFormat)>,
}

impl Part {
    /// What `of` leaves of D, C and the scales of D; with the bias of all groups.
    fn of(gemm: &Gemm<'_>, of: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Part> {
        Ok(Part {
            d: of(gemm.d)?,
            c: gemm.c.tensor(gemm.d).map(&of).transpose()?,
            bias: gemm.epilogue.and_then(|epilogue| epilogue.bias).cloned(),
            d_scales: match gemm.d_scales {
                Some((scales, format)) => Some((of(scales)?, format)),
                None => None,
            },
        })
    }

    /// Stores a product with `n` columns.
    fn store(mut self, product: &[f64], n: usize, epilogue: Option<&Epilogue<'_>>) -> Result<()> {
        let Some(epilogue) = epilogue else {
            let mut sums = product.to_vec();
            if let Some(c) = &self.c {
                sums.iter_mut().zip(c.to_vec_f32()?).for_each(|(sum, c)| *sum += f64::from(c));
            }
            return self.d.write_bytes(&self.d.dtype().encode_f64(&sums));
        };
        let Epilogue { alpha, beta, activation, gated, gate, heads, .. } = *epilogue;
        let bias = self.bias.as_ref().map(Tensor::to_vec_f32).transpose()?;
        let c = self.c.as_ref().map(|c| computed(c, heads)).transpose()?;
        let finish = Finish { alpha, beta, bias: bias.as_deref(), activation, gated, gate };
        let result = finish.apply(product, n, c.as_deref())?;
        let size = [self.d.dims()[0], if gated { n / 2 } else { n }];
        EpilogueOutput { d: self.d, scales: self.d_scales, heads }.store(&result, size)
    }
}

/// Batched and m-grouped GEMMs.
fn grouped(gemm: &Gemm<'_>, problem: &Problem, groups: &Groups) -> Result<()> {
    let all = Operands::new(gemm)?;
    let numbers = match &gemm.grouping {
        Grouping::MGrouped(groups) => groups.numbers().to_vec::<i32>()?,
        _ => Vec::new(),
    };
    let runs = groups.layout.runs(&numbers, groups.count, problem.m, groups.alignment);
    for (group, rows) in runs.into_iter().filter(|(_, rows)| !rows.is_empty()) {
        let group = group as usize;
        let operands = all.of_group(groups, group, &rows)?;
        let mut part = Part::of(gemm, |x| part_of(groups, x, group, &rows))?;
        part.bias = match part.bias {
            Some(bias) if bias.dims().len() == 2 => Some(bias.select(group)?),
            bias => bias,
        };
        part.store(&operands.product()?, operands.b.dims()[0], gemm.epilogue)?;
    }
    Ok(())
}

/// Sum of a batch: one GEMM whose K runs through all matrices.
fn summed(gemm: &Gemm<'_>) -> Result<()> {
    let Gemm { a, b, .. } = gemm;
    let side_by_side = |x: &Tensor| x.transpose(0, 1)?.to_vec_f32();
    let dims = [a.dims()[1], b.dims()[1], a.dims()[0] * a.dims()[2]];
    let product = gemm_nt(&side_by_side(a)?, &side_by_side(b)?, dims, None)?;
    Part::of(gemm, |x| Ok(x.clone()))?.store(&product, dims[1], None)
}

/// k-grouped GEMMs.
fn k_grouped(gemm: &Gemm<'_>, problem: &Problem, groups: &KGroups, numbers: &Tensor) -> Result<()> {
    let k_first = gemm.layout == GemmLayout::Tn;
    let (a, b) = (along_k(gemm.a, k_first)?, along_k(gemm.b, k_first)?);
    let [m, n] = [problem.m, problem.n].map(|x| x as usize);
    let scales = match (gemm.sfa, gemm.sfb) {
        (Some(sfa), Some(sfb)) => {
            let values = |x: &Tensor| along_k(x, k_first)?.to_vec::<f32>();
            Some(((a.to_bytes()?, values(sfa)?), (b.to_bytes()?, values(sfb)?)))
        }
        _ => None,
    };
    let block = problem.family.scale_block.size();
    // FP4 has two elements to a byte.
    let per_byte = if gemm.a.dtype() == DType::U8 { 2 } else { 1 };
    let capacity = KCapacity {
        extent: problem.k,
        unit: GemmDesc::k_unit(gemm.layout, gemm.a.dtype()).max(groups.alignment),
        scales: scales.as_ref().map(|_| (groups.blocks, block)),
    };
    let mut ks = numbers.to_vec::<i32>()?;
    if groups.alignment > 0 {
        ks = ks_of_ends(&ks, groups.alignment);
    }
    for (group, place) in k_groups(&ks, &capacity).into_iter().enumerate() {
        let KGroup { k, start, .. } = place;
        let product = match &scales {
            None => {
                let of_group = |x: &Tensor| x.narrow(1, start as usize, k as usize)?.to_vec_f32();
                gemm_nt(&of_group(&a)?, &of_group(&b)?, [m, n, k as usize], None)?
            }
            Some((a, b)) => {
                let matrix = |operand, rows: usize| {
                    let (codes, scales): &(Vec<u8>, Vec<f32>) = operand;
                    let k = k / per_byte * per_byte;
                    let first = if k_first { start as usize } else { (start / per_byte) as usize * rows };
                    Fp8Matrix {
                        dtype: gemm.a.dtype(),
                        codes: &codes[first..],
                        rows,
                        k: k as usize,
                        pitch: match k_first {
                            true => problem.k,
                            false => (k / per_byte).next_multiple_of(PITCH_UNIT),
                        } as usize,
                        scales: &scales[place.first_block as usize..],
                        scale_strides: [groups.blocks as usize, 1],
                        rows_per_scale: 1,
                        k_per_scale: block as usize,
                    }
                };
                fp8_gemm_nt(&matrix(a, m), &matrix(b, n), None)?
            }
        };
        Part::of(gemm, |x| x.select(group))?.store(&product, n, None)?;
    }
    Ok(())
}

/// Matrices with rows and columns exchanged where they begin with K.
fn along_k(x: &Tensor, k_first: bool) -> Result<Tensor> {
    match x.dims().len() {
        2 if k_first => x.transpose(0, 1),
        3 if k_first => x.transpose(1, 2),
        _ => Ok(x.clone()),
    }
}

/// The rows of a group, in the matrix of the group or the only one there is.
fn part_of(groups: &Groups, x: &Tensor, group: usize, rows: &Range<u32>) -> Result<Tensor> {
    let slab = if groups.layout.has_slabs() { x.select(group)? } else { x.clone() };
    slab.narrow(0, rows.start as usize, rows.len())
}

/// D where the product is 0: C, or 0.
fn without_product(c: Option<&Tensor>, d: &mut Tensor) -> Result<()> {
    match c {
        Some(c) => d.copy_from(c),
        None => d.write_bytes(&vec![0; d.len() * d.dtype().size()]),
    }
}
