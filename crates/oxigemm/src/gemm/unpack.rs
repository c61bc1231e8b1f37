//! Scales that are rewritten into a workspace of the stream before the GEMM reads them: UE8M0 scales, and FP32 scales of A
//! that TMA cannot address.

use oxigemm_kernels::KernelId;
use oxigemm_kernels::gemm::params::ScaleLayout;
use oxigemm_kernels::gemm::unpack_scales::{COLUMNS, Job, blocks, launch};

use crate::check::gemm::scale_codes::{ScaleCodes, Unpacked};
use crate::check::{Groups, Problem};
use crate::device::backend::Backend;
use crate::device::launch::{KernelArg, KernelLaunch};
use crate::error::{Error, Result};
use crate::launch::geometry;
use crate::tensor::desc::ScaleStrides;
use crate::tensor::granularity::BLOCK;

/// Multiplications from which on FP32 scales of A that TMA cannot address are copied first. A kernel that copies them
/// tile by tile takes a fifth longer; the copy takes 2 us. Unit tests copy always.
const LEAST_WORK: u64 = if cfg!(test) { 0 } else { 7_000_000_000 };
/// The same with groups, whose kernels take up to twice as long.
const LEAST_WORK_OF_GROUPS: u64 = if cfg!(test) { 0 } else { 2_000_000_000 };
/// Rows up to which split-K kernels compute a dense GEMM, which load scales once.
const FEW_ROWS: u32 = 128;

/// Unpacking of the scales of a checked GEMM.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unpacking {
    /// Jobs with results at offsets of the workspace.
    jobs: [Job; 2],
    /// Offsets of the scales of A and B, where they are unpacked.
    offsets: [Option<u64>; 2],
    bytes: u64,
}

impl Unpacking {
    pub fn new(unpacked: &Unpacked) -> Result<Unpacking> {
        let mut jobs = [Job::default(); 2];
        for (job, scales) in jobs.iter_mut().zip(unpacked.scales.iter().flatten()) {
            *job = job_of(scales)?;
        }
        if u64::from(jobs[0].blocks) + u64::from(jobs[1].blocks) > i32::MAX as u64 {
            return Err(too_many(&unpacked.scales));
        }
        let offsets = unpacked.scales.map(|scales| scales.map(|scales| scales.offset));
        Ok(Unpacking { jobs, offsets, bytes: unpacked.bytes })
    }

    /// The copy of A's FP32 scales to where TMA can address them, with the GEMM that reads the copy; `None` where TMA
    /// can, or where the copy would cost more than it gains.
    pub fn of_unaligned(problem: &Problem, sfa: u64) -> Option<(Problem, Unpacking)> {
        let ScaleStrides { mn, k } = problem.sfa;
        let (m, blocks) = (problem.m, problem.k.div_ceil(BLOCK));
        let (slabs, from_slab, aligned) = match &problem.groups {
            None => (1, 0, true),
            Some(groups) => {
                let aligned = groups.layout.has_slabs() || groups.alignment.is_multiple_of(4);
                (groups.slabs(), groups.sfa_slab, aligned)
            }
        };
        let addressable = ScaleLayout::of(sfa, [mn, k]) != ScaleLayout::Copied && from_slab.is_multiple_of(4);
        // Kernels with other scales copy them in any case, and have no tensor map for them.
        let family = problem.family;
        let multiplies = family.scales_by_tma();
        let dense = problem.k_groups.is_none() && problem.transpose == [false; 2];
        // A scale for several rows or blocks has no copy.
        if addressable || !multiplies || !dense || !aligned || mn == 0 || k == 0 || m == 1 || blocks == 1 {
            return None;
        }
        let (rows, least) = match &problem.groups {
            None if m <= FEW_ROWS && !cfg!(test) => return None,
            None => (m.into(), LEAST_WORK),
            Some(groups) => (u64::from(groups.count) * u64::from(groups.expected), LEAST_WORK_OF_GROUPS),
        };
        if rows.saturating_mul(problem.n.into()).saturating_mul(problem.k.into()) < least {
            return None;
        }
        let pitch = m.next_multiple_of(4);
        let of_slab = pitch.checked_mul(blocks)?;
        let job = Job {
            from: sfa,
            to: 0,
            from_slab: from_slab.into(),
            rows: m,
            columns: blocks,
            row_stride: mn,
            word_stride: k.checked_mul(COLUMNS)?,
            byte_stride: k.checked_mul(4)?,
            shift: 2,
            pitch,
            blocks: u32::try_from(self::blocks(slabs.into(), m, blocks)).ok()?,
            is_f32: 1,
        };
        let copied = Problem {
            sfa: ScaleStrides { mn: 1, k: pitch },
            groups: problem.groups.map(|groups| Groups { sfa_slab: of_slab, ..groups }),
            ..*problem
        };
        let bytes = u64::from(of_slab) * u64::from(slabs) * 4;
        Some((copied, Unpacking { jobs: [job, Job::default()], offsets: [Some(0), None], bytes }))
    }

    /// Whether the GEMM could read its scales as they are.
    pub fn is_optional(&self) -> bool {
        self.jobs[0].is_f32 != 0
    }

    /// Bytes of the workspace.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Offsets of the scales of A and B in the workspace, where they are rewritten.
    pub fn offsets(&self) -> [Option<u64>; 2] {
        self.offsets
    }

    /// Puts the kernel that unpacks into a stream.
    ///
    /// # Safety
    /// The scales must be memory of this device as they were checked, and the workspace as large as it is said to be,
    /// until the kernel is done or, where the stream is being captured, whenever the graph is launched.
    pub unsafe fn launch<B: Backend>(
        &self,
        backend: &B,
        workspace: u64,
        stream: B::Stream<'_>,
        programmatic: bool,
    ) -> Result<()> {
        if self.jobs[0].blocks == 0 {
            return Ok(());
        }
        let [first, second] = self.jobs.map(|job| Job { to: workspace + job.to, ..job }.values());
        let mut params = [KernelArg::U32(0); 2 * Job::COUNT];
        params[..Job::COUNT].copy_from_slice(&first);
        params[Job::COUNT..].copy_from_slice(&second);
        let kernel = KernelLaunch {
            kernel: KernelId::UnpackScales(backend.limits().arch),
            geometry: geometry(&launch(&self.jobs)),
            programmatic,
            params,
        };
        // SAFETY: the caller's promise; the arguments are those of the kernel.
        unsafe { backend.launch(&kernel, stream) }
    }
}

/// The job of one operand, with a result at an offset of the workspace.
fn job_of(scales: &ScaleCodes) -> Result<Job> {
    let [slab, row, column] = scales.strides;
    let packed = scales.is_packed();
    let word = if packed { column } else { column * u64::from(COLUMNS) };
    let narrow = |stride: u64| u32::try_from(stride).map_err(|_| too_many(&[Some(*scales), None]));
    let blocks = blocks(scales.slabs, scales.rows, scales.columns);
    Ok(Job {
        from: scales.from.address,
        to: scales.offset,
        from_slab: slab,
        rows: scales.rows,
        columns: scales.columns,
        row_stride: narrow(row)?,
        word_stride: narrow(word)?,
        byte_stride: if packed { 1 } else { narrow(column)? },
        shift: if packed { 2 } else { 0 },
        pitch: scales.pitch,
        blocks: u32::try_from(blocks).map_err(|_| too_many(&[Some(*scales), None]))?,
        is_f32: 0,
    })
}

fn too_many(scales: &[Option<ScaleCodes>; 2]) -> Error {
    let name = scales.iter().flatten().map(|scales| scales.from.name).next().unwrap_or("sfa");
    Error::Overflow {
        argument: name,
        expected: "UE8M0 scales that a kernel can count".to_owned(),
        found: "too many, or too far apart".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use crate::check::gemm::tensors::Addend;
    use crate::device::Device;
    use crate::error::Result;
    use crate::gemm::GemmOptions;
    use crate::gemm::names::{fp8_gemm_nt, m_grouped_fp8_gemm_nt_masked};
    use crate::random;
    use crate::tensor::Tensor;
    use crate::tensor::dtype::DType;

    /// Codes and positive scales of a matrix, each scale with a pitch that TMA does not take. `scales`: rows of them, and
    /// how many of K share one.
    fn operand(
        rows: &[usize],
        k: usize,
        (scale_rows, k_per_scale): (usize, usize),
        seed: u64,
        device: &Device,
    ) -> Result<[Tensor; 2]> {
        let len = rows.iter().product::<usize>() * k;
        let dims: Vec<usize> = rows.iter().copied().chain([k]).collect();
        let codes = Tensor::from_f32(DType::E4m3, &random::normals(seed, len), &dims, device)?;
        let (slabs, blocks) = (rows[..rows.len() - 1].to_vec(), k.div_ceil(k_per_scale));
        let scale_dims: Vec<usize> = slabs.iter().copied().chain([scale_rows, blocks]).collect();
        let scales = random::normals(seed + 1, scale_dims.iter().product());
        let scales: Vec<f32> = scales.iter().map(|x| x.abs() + 0.1).collect();
        Ok([codes, Tensor::from_f32(DType::F32, &scales, &scale_dims, device)?])
    }

    #[test]
    fn scales_that_tma_cannot_address_are_copied_first() -> Result<()> {
        dense(640, [(130, 128), (2, 128)])
    }

    /// Scales of 32, which have more columns, are not: their kernels read any strides.
    #[test]
    fn scales_of_32_are_read_as_they_are() -> Result<()> {
        dense(160, [(130, 32), (5, 32)])
    }

    fn dense(k: usize, [of_a, of_b]: [(usize, usize); 2]) -> Result<()> {
        let (m, n) = (130, 136);
        let run = |device: &Device| -> Result<Vec<f32>> {
            let ([a, sfa], [b, sfb]) =
                (operand(&[m], k, of_a, 1, device)?, operand(&[n], k, of_b, 3, device)?);
            let mut d = Tensor::zeros(DType::F32, &[m, n], device)?;
            fp8_gemm_nt((&a, &sfa), (&b, &sfb), Addend::None, &mut d, &GemmOptions::default())?;
            d.to_vec_f32()
        };
        compare(&run(&Device::sim())?, &run(&Device::Cpu)?);
        Ok(())
    }

    #[test]
    fn the_same_of_groups() -> Result<()> {
        let (groups, m, n, k) = (2, 70, 136, 640);
        let run = |device: &Device| -> Result<Vec<f32>> {
            let [a, sfa] = operand(&[groups, m], k, (m, 128), 1, device)?;
            let [b, sfb] = operand(&[groups, n], k, (2, 128), 3, device)?;
            let mut d = Tensor::zeros(DType::Bf16, &[groups, m, n], device)?;
            let masked_m = Tensor::from_slice(&[66i32, 3], &[groups], device)?;
            let options = GemmOptions::default();
            m_grouped_fp8_gemm_nt_masked((&a, &sfa), (&b, &sfb), &mut d, &masked_m, 40, &options)?;
            let rows = [d.select(0)?.narrow(0, 0, 66)?, d.select(1)?.narrow(0, 0, 3)?];
            Ok(rows.iter().map(Tensor::to_vec_f32).collect::<Result<Vec<_>>>()?.concat())
        };
        compare(&run(&Device::sim())?, &run(&Device::Cpu)?);
        Ok(())
    }

    fn compare(found: &[f32], expected: &[f32]) {
        let (mut error, mut all) = (0.0, 0.0);
        for (x, y) in found.iter().zip(expected) {
            error += f64::from(x - y).powi(2);
            all += f64::from(*y).powi(2);
        }
        assert!(all > 0.0 && error / all < 1e-5, "{error} of {all}");
    }
}
