//! The GEMM functions: one path from a description to the launch.
//!
//! A public function ([`names`]) or [`gemm_raw`](raw::gemm_raw) builds a [`GemmDesc`](crate::check::GemmDesc). Its
//! check gives a [`Problem`](crate::check::Problem), planning chooses a kernel for it, and `run` launches that kernel,
//! or computes the reference on the CPU.

pub(crate) mod names;
mod pack;
pub(crate) mod raw;
mod run;
mod scales;
mod transpose;
mod unpack;

use oxigemm_kernels::gemm::params::ScaleBlock;
use oxigemm_kernels::gemm::scheduler::k_grouped::ks_of_ends;

use crate::check::gemm::tensors::groups::KGroupNumbers;
use crate::check::gemm::tensors::{Gemm, Grouping};
use crate::device::Stream;
use crate::error::{Error, Result};
use crate::launch::LaunchOptions;
use crate::plan::{GemmConfig, KOrder};
use crate::tensor::dtype::DType;

/// Options of a GEMM. The default is right for most calls.
#[derive(Clone, Debug, Default)]
pub struct GemmOptions {
    /// Stream of the call; the default stream where there is none. Only for a GPU or the simulator.
    pub stream: Option<Stream>,
    /// Kernel and its launch configuration, instead of the planned one.
    pub config: Option<GemmConfig>,
    /// Most SMs that the kernel may use; all where there is none.
    pub num_sms: Option<u32>,
    /// Programmatic dependent launch: whether the kernel may start while the one before it in the stream still runs. It
    /// then sets itself up, and waits for the other's results before it reads or writes anything. The simulator runs
    /// one at a time, and reports what would be too early.
    pub programmatic: bool,
    /// Batch invariance: whether a row of D must have the same bits however many rows A has, and whatever the others
    /// hold. Split-K and stream-K kernels are then left out, which costs time where rows are few. The others all
    /// accumulate K in the same order in every tile, which is forward K.
    pub batch_invariant: bool,
    /// Order in which tiles visit K; that of the family where there is none. Serpentine K may save time, but the last
    /// bits of a row then depend on the tile that holds it.
    pub k_order: Option<KOrder>,
    /// Raster band: rows of tiles, 1 to 64, that a persistent kernel sweeps along N together; the planned ones where
    /// there is none. Results do not depend on it.
    pub raster_band: Option<u32>,
    /// Elements of K that share a scale of A, and of B, as callers know who have a recipe; shapes tell where there is none.
    pub scale_blocks: [Option<ScaleBlock>; 2],
}

/// The options of kernels before and behind a GEMM.
impl From<&GemmOptions> for LaunchOptions {
    fn from(options: &GemmOptions) -> LaunchOptions {
        LaunchOptions { stream: options.stream.clone(), programmatic: options.programmatic }
    }
}

impl Gemm<'_> {
    /// Runs it on the device of A.
    ///
    /// # Errors
    /// The first rule that an argument breaks, or what the device reports.
    pub fn run(&self, options: &GemmOptions) -> Result<()> {
        self.expect_types()?;
        let scale_blocks = [0, 1].map(|i| self.scale_blocks[i].or(options.scale_blocks[i]));
        let gemm = &Gemm { scale_blocks, ..*self };
        gemm.compare_ks()?;
        // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
        unsafe { run::run(gemm.a.device(), &gemm.describe(), Some(gemm), options) }
    }
}

impl Gemm<'_> {
    /// Refuses FP4 and f32 operands of a function that is not named after them, and others of one that is for f32.
    fn expect_types(&self) -> Result<()> {
        let unscaled = self.sfa.is_none() && self.sfb.is_none();
        if unscaled && self.tf32 != (self.a.dtype() == DType::F32) {
            let expected = match self.tf32 {
                true => "f32, which is multiplied as TF32",
                false => "bf16 or f16: the functions that multiply f32 as TF32 have it in their names",
            };
            let (expected, found) = (expected.to_owned(), self.a.dtype().to_string());
            return Err(Error::DType { argument: "a", expected, found });
        }
        let fp8 = self.sfa.is_some() && !self.fp4;
        let found = [("a", self.a), ("b", self.b)].into_iter().find(|(_, x)| fp8 && x.dtype() == DType::U8);
        found.map_or(Ok(()), |(argument, x)| {
            let expected = "e4m3 or e5m2: the functions for FP4 have it in their names".to_owned();
            Err(Error::DType { argument, expected, found: x.dtype().to_string() })
        })
    }

    /// Refuses numbers of the host that are not those of the device, where these can be read.
    fn compare_ks(&self) -> Result<()> {
        let Grouping::KGrouped { groups, ks_host: Some(host) } = self.grouping else { return Ok(()) };
        if !self.a.device().can_compare() {
            return Ok(());
        }
        let desc = self.describe();
        desc.unpacked()?.map_or(desc, |(as_f32, _)| as_f32).check()?;
        let of_device: Vec<i32> = groups.numbers().to_vec()?;
        let ks = match groups {
            KGroupNumbers::Ks(_) => of_device.clone(),
            KGroupNumbers::Ends { alignment, .. } => ks_of_ends(&of_device, alignment.max(1) as u32),
        };
        if ks.iter().map(|k| usize::try_from(*k).ok()).eq(host.iter().copied().map(Some)) {
            return Ok(());
        }
        Err(Error::Shape {
            argument: "ks_host",
            expected: format!("{of_device:?}, the numbers of `ks`"),
            found: format!("{host:?}"),
        })
    }
}
