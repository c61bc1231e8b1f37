//! Unpacking of UE8M0 scales, into a workspace of the stream, before the GEMM that reads them.

use oxigemm_kernels::KernelId;
use oxigemm_kernels::gemm::unpack_scales::{COLUMNS, Job, blocks, launch};

use crate::check::gemm::ue8m0::{Ue8m0Scales, Unpacked};
use crate::device::backend::Backend;
use crate::device::launch::{KernelArg, KernelLaunch};
use crate::error::{Error, Result};
use crate::launch::args::Addresses;
use crate::launch::geometry;

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

    /// Bytes of the workspace.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Addresses of the GEMM, once scales are unpacked.
    pub fn addresses(&self, own: Addresses, workspace: u64) -> Addresses {
        let [sfa, sfb] = self.offsets.map(|offset| offset.map(|offset| workspace + offset));
        Addresses { sfa: sfa.unwrap_or(own.sfa), sfb: sfb.unwrap_or(own.sfb), ..own }
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
            kernel: KernelId::UnpackScales,
            geometry: geometry(&launch(&self.jobs)),
            programmatic,
            params,
        };
        // SAFETY: the caller's promise; the arguments are those of the kernel.
        unsafe { backend.launch(&kernel, stream) }
    }
}

/// The job of one operand, with a result at an offset of the workspace.
fn job_of(scales: &Ue8m0Scales) -> Result<Job> {
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
    })
}

fn too_many(scales: &[Option<Ue8m0Scales>; 2]) -> Error {
    let name = scales.iter().flatten().map(|scales| scales.from.name).next().unwrap_or("sfa");
    Error::Overflow {
        argument: name,
        expected: "UE8M0 scales that a kernel can count".to_owned(),
        found: "too many, or too far apart".to_owned(),
    }
}
