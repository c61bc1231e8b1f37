//! A mixture whose experts lie on several GPUs, which reach each other's memory.

use oxigemm_kernels::exchange::buffer::{self, HEADER, Layout, MAX_RANKS, STATUS, Shape, Trouble};
use oxigemm_kernels::exchange::meet::{self, Barrier};
use oxigemm_kernels::exchange::{Step as Exchange, THREADS};
use oxigemm_kernels::quantize::moe_permute::MAX_EXPERTS;

use super::input::{has_block_scales, run_step};
use crate::device::Device;
use crate::device::launch::KernelParams;
use crate::error::{Error, Result};
use crate::launch::LaunchOptions;
use crate::moe_experts::BLOCK;
use crate::tensor::{DType, Tensor};

/// Seconds after which a rank counts as missing.
const TIMEOUT: f64 = 60.0;

/// Sizes that all ranks of a group agree about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoeGroupShape {
    /// How many ranks there are: 1 to 32.
    pub ranks: usize,
    /// The most tokens of a rank.
    pub tokens: usize,
    /// Choices of a token.
    pub topk: usize,
    /// Experts of a rank, at most 1024: rank r has those from `r * experts` on.
    pub experts: usize,
    /// Columns of a token: a multiple of 16.
    pub columns: usize,
    /// How tokens travel: as e4m3 with scales of 1x128, or as bf16.
    pub dtype: DType,
    /// Whether scales of e4m3 are i32 with four UE8M0 scales of 32 columns each, and not f32 of 128: for FP4 weights on
    /// Blackwell. Who makes the calls writes tokens by itself then.
    pub packed_scales: bool,
}

impl MoeGroupShape {
    /// How many bytes the symmetric buffer of a rank has.
    ///
    /// ```
    /// use oxigemm::{DType, MoeGroupShape};
    ///
    /// let shape =
    ///     MoeGroupShape { ranks: 8, tokens: 128, topk: 8, experts: 32, columns: 7168, dtype: DType::E4m3, packed_scales: false };
    /// assert!(shape.buffer_bytes()? < 18 << 20);
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Value`] for sizes that no group has.
    pub fn buffer_bytes(&self) -> Result<usize> {
        Ok(self.shape()?.layout().bytes as usize)
    }

    /// Where the parts of a buffer begin that a rank's own tokens lie in: tokens, scales, ids and weights.
    ///
    /// ```
    /// use oxigemm::{DType, MoeGroupShape};
    ///
    /// let shape =
    ///     MoeGroupShape { ranks: 2, tokens: 8, topk: 2, experts: 4, columns: 256, dtype: DType::Bf16, packed_scales: false };
    /// let [x, scales, ids, weights] = shape.offsets()?;
    /// assert_eq!([scales - x, ids - scales, weights - ids], [8 * 256 * 2, 0, 256]);
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`buffer_bytes`](Self::buffer_bytes).
    pub fn offsets(&self) -> Result<[usize; 4]> {
        let Layout { x, scales, ids, weights, .. } = self.shape()?.layout();
        Ok([x, scales, ids, weights].map(|offset| offset as usize))
    }

    pub(super) fn shape(&self) -> Result<Shape> {
        let wrong = |argument, expected: &str, found: usize| {
            Err(Error::Value { argument, expected: expected.to_owned(), found: found.to_string() })
        };
        let MoeGroupShape { ranks, tokens, topk, experts, columns, dtype, packed_scales } = *self;
        if ranks == 0 || ranks > MAX_RANKS as usize {
            return wrong("ranks", "1 to 32 ranks", ranks);
        }
        if !columns.is_multiple_of(16) || columns == 0 || columns > 1 << 20 {
            return wrong("columns", "a multiple of 16 up to 2^20", columns);
        }
        if experts == 0 || experts > MAX_EXPERTS as usize {
            return wrong("experts", &format!("1 to {MAX_EXPERTS} experts of a rank"), experts);
        }
        if tokens.saturating_mul(ranks).saturating_mul(topk.max(1)) >= 1 << 30 {
            return wrong("tokens", "fewer than 2^30 choices of all ranks", tokens);
        }
        let (element, scales) = match dtype {
            DType::E4m3 => (1, columns.div_ceil(BLOCK)),
            DType::Bf16 => (2, 0),
            other => {
                let expected = "e4m3 or bf16".to_owned();
                return Err(Error::DType { argument: "dtype", expected, found: other.to_string() });
            }
        };
        if packed_scales && (dtype != DType::E4m3 || !columns.is_multiple_of(BLOCK)) {
            let expected = "e4m3 with a multiple of 128 columns".to_owned();
            let found = format!("{dtype} with {columns}");
            return Err(Error::Value { argument: "packed_scales", expected, found });
        }
        let [ranks, tokens, top_k, experts] = [ranks, tokens, topk, experts].map(|size| size as u32);
        Ok(Shape { ranks, tokens, top_k, experts, columns: columns as u32, element, scales: scales as u32 })
    }
}

/// One rank of a group of GPUs that reach each other's memory, with its symmetric buffer.
///
/// The library brings no transport. Each rank allocates a buffer of [`MoeGroupShape::buffer_bytes`] that all ranks can
/// read and write (torch's symmetric memory, NCCL windows, CUDA IPC), and tells the others where it is. Peer addresses
/// are those of *this* rank's address space.
#[derive(Clone, Debug)]
pub struct MoeGroup {
    pub(super) shape: Shape,
    /// The type of tokens' scales.
    pub(super) scales: DType,
    pub(super) layout: Layout,
    pub(super) rank: u32,
    pub(super) memory: Tensor,
    /// Nanoseconds.
    timeout: u64,
}

impl MoeGroup {
    /// The rank of a device. `buffers` are the addresses of the symmetric buffers of all ranks, its own included; its
    /// own is prepared here. All ranks have to be here before any of them makes a call: let the hosts meet once.
    ///
    /// ```
    /// use oxigemm::{DType, Device, MoeGroup, MoeGroupShape, Tensor};
    ///
    /// let device = Device::sim();
    /// let shape = MoeGroupShape { ranks: 1, tokens: 4, topk: 2, experts: 8, columns: 128, dtype: DType::Bf16, packed_scales: false };
    /// let buffer = Tensor::zeros(DType::U8, &[shape.buffer_bytes()?], &device)?;
    /// // SAFETY: the buffer outlives the group.
    /// let group = unsafe { MoeGroup::new(&device, &shape, 0, &[buffer.address()])? };
    /// group.check()?;
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    ///
    /// # Safety
    /// Each address must be that of a buffer of so many bytes that this device can read and write, aligned to 256
    /// bytes, and that stays alive as long as any rank works with it. Nothing else may write to them but the tensors
    /// that this type gives.
    ///
    /// # Errors
    /// Sizes that no group has, a rank that is none, or what the device reports. The CPU is refused.
    pub unsafe fn new(
        device: &Device,
        shape: &MoeGroupShape,
        rank: usize,
        buffers: &[u64],
    ) -> Result<MoeGroup> {
        shape.shape()?;
        if buffers.len() != shape.ranks {
            let (expected, found) =
                (format!("[{}], one for each rank", shape.ranks), format!("{:?}", [buffers.len()]));
            return Err(Error::Shape { argument: "buffers", expected, found });
        }
        // Whether it is a rank is for `attach` to say.
        let own = buffers.get(rank).copied().unwrap_or(buffers[0]);
        // SAFETY: the caller keeps the same contract.
        let group = unsafe { MoeGroup::attach(device, shape, rank, own)? };
        for address in buffers {
            expect_aligned("buffers", *address)?;
        }
        group.memory.part(0, DType::U8, &[HEADER as usize])?.write_bytes(&buffer::header(buffers))?;
        Ok(group)
    }

    /// [`new`](Self::new) for who has its own buffer as a tensor, of u8: its address has to be that of `buffers[rank]`, which
    /// the others write to.
    ///
    /// ```
    /// use oxigemm::{DType, Device, MoeGroup, MoeGroupShape, Tensor};
    ///
    /// let shape = MoeGroupShape { ranks: 1, tokens: 4, topk: 2, experts: 8, columns: 128, dtype: DType::Bf16, packed_scales: false };
    /// let buffer = Tensor::zeros(DType::U8, &[shape.buffer_bytes()?], &Device::sim())?;
    /// // SAFETY: the buffer outlives the groups.
    /// let group = |buffers: &[u64]| unsafe { MoeGroup::with_buffer(&buffer, &shape, 0, buffers) };
    /// group(&[buffer.address()])?.check()?;
    /// assert_eq!(group(&[buffer.address() + 256]).unwrap_err().argument(), Some("buffers"));
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    ///
    /// # Safety
    /// As [`new`](Self::new).
    ///
    /// # Errors
    /// As [`new`](Self::new); a buffer that is too short, or another one than `buffers` has for this rank.
    pub unsafe fn with_buffer(
        buffer: &Tensor,
        shape: &MoeGroupShape,
        rank: usize,
        buffers: &[u64],
    ) -> Result<MoeGroup> {
        let (own, bytes) = (buffer.describe("buffer"), shape.buffer_bytes()?);
        own.expect_dtype(&[DType::U8])?;
        if buffer.len() < bytes {
            return Err(own.wrong_shape(format!("[{bytes}] or more"), "as `buffer_bytes` says"));
        }
        own.expect_contiguous()?;
        // How many there are, and whether it is a rank, is for `new` to say.
        if let Some(address) = buffers.get(rank).filter(|address| **address != own.address) {
            let expected = format!("{:#x} for rank {rank}, where `buffer` is", own.address);
            return Err(Error::Value { argument: "buffers", expected, found: format!("{address:#x}") });
        }
        // SAFETY: the caller keeps the same contract.
        unsafe { MoeGroup::new(buffer.device(), shape, rank, buffers) }
    }

    /// The rank of a device whose buffer, at this address, [`new`](Self::new) has prepared before: for who keeps only
    /// the buffer between calls.
    ///
    /// # Safety
    /// As [`new`](Self::new).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub unsafe fn attach(
        device: &Device,
        shape: &MoeGroupShape,
        rank: usize,
        buffer: u64,
    ) -> Result<MoeGroup> {
        if matches!(device, Device::Cpu) {
            let (expected, found) = ("a GPU or the simulator".to_owned(), "cpu".to_owned());
            return Err(Error::Device { argument: "device", expected, found });
        }
        let dims = shape.shape()?;
        if rank >= shape.ranks {
            let expected = format!("less than {}, the number of ranks", shape.ranks);
            return Err(Error::Value { argument: "rank", expected, found: rank.to_string() });
        }
        expect_aligned("buffers", buffer)?;
        let layout = dims.layout();
        // SAFETY: the caller keeps the same contract.
        let memory =
            unsafe { Tensor::from_raw_parts(DType::U8, &[layout.bytes as usize], &[1], buffer, device)? };
        let scales = if shape.packed_scales { DType::I32 } else { DType::F32 };
        if shape.packed_scales && !has_block_scales(device)? {
            let expected = "false, as this GPU's tensor core has no scales of 32".to_owned();
            return Err(Error::Value { argument: "packed_scales", expected, found: "true".to_owned() });
        }
        let mut group = MoeGroup { shape: dims, scales, layout, rank: rank as u32, memory, timeout: 0 };
        group.set_timeout(TIMEOUT);
        Ok(group)
    }

    /// After how many seconds without a rank a barrier gives up; 60 at first.
    pub fn set_timeout(&mut self, seconds: f64) {
        // What is too much for a number is as good as no limit.
        self.timeout = (seconds * 1e9) as u64;
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// Tokens of this rank, `[tokens, columns]`: where [`moe_publish`](super::moe_publish) writes them, or who calls
    /// [`moe_forward_group`](super::moe_forward_group) by itself.
    ///
    /// # Errors
    /// None for a group that exists.
    pub fn x(&self) -> Result<Tensor> {
        let dtype = if self.is_half() { DType::Bf16 } else { DType::E4m3 };
        self.part(self.layout.x, dtype, self.shape.columns)
    }

    /// Their scales, `[tokens, ceil(columns / 128)]` f32 or i32; none of bf16.
    ///
    /// # Errors
    /// As [`x`](Self::x).
    pub fn scales(&self) -> Result<Tensor> {
        self.part(self.layout.scales, self.scales, self.shape.scales)
    }

    /// Their weights, `[tokens, topk]` f32.
    ///
    /// # Errors
    /// As [`x`](Self::x).
    pub fn weights(&self) -> Result<Tensor> {
        self.part(self.layout.weights, DType::F32, self.shape.top_k)
    }

    /// The address of their ids, `[tokens, topk]` i64: experts of all ranks. Another number is no expert.
    #[must_use]
    pub fn ids(&self) -> u64 {
        self.memory.address() + self.layout.ids
    }

    /// Whether all has gone well so far. It waits for the device, so it is for after a batch, not for each call.
    ///
    /// Ranks that have lost each other stay so, and all results are zero: make a new group, on the same buffers if you
    /// like, once no rank is in a call.
    ///
    /// # Errors
    /// [`Error::Group`], which names the rank that is missing, has failed or has other sizes; more rows than there was
    /// room for, after which the group goes on.
    pub fn check(&self) -> Result<()> {
        let status = self.memory.part(STATUS as usize, DType::I32, &[1])?.to_bytes()?;
        let status = u32::from_le_bytes(status.try_into().expect("four bytes"));
        Trouble::of(status).map_or(Ok(()), |trouble| Err(Error::Group { reason: self.reason(trouble) }))
    }

    /// What went wrong, and what to do.
    fn reason(&self, trouble: Trouble) -> String {
        let (own, seconds) = (self.rank, self.timeout as f64 / 1e9);
        let and_now = "make a new group";
        match trouble {
            // Another rank has waited, as long as that one wants to.
            Trouble::Missing(rank) if rank == own => {
                format!(
                    "rank {rank}, this rank, did not come to a barrier before another one gave up; {and_now}"
                )
            }
            // Who has waited for it may be this rank or another one.
            Trouble::Missing(rank) => {
                format!("rank {rank} did not come to a barrier in time (here {seconds} s); {and_now}")
            }
            Trouble::Failed(rank) if rank == own => {
                format!("rank {rank}, this rank, failed between the barriers of a call; {and_now}")
            }
            Trouble::Failed(rank) => {
                format!("rank {rank} failed between the barriers of a call; {and_now}")
            }
            Trouble::Disagrees(rank) => format!(
                "rank {rank} has other sizes than rank {own}, which has {:?}; make new groups, of one shape",
                self.shape
            ),
            Trouble::Full => format!(
                "rank {own} had more rows than the limit of a call: choices behind it were dropped; raise `most_rows`"
            ),
        }
    }

    pub(super) fn is_half(&self) -> bool {
        self.shape.element == 2
    }

    pub(super) fn part(&self, start: u64, dtype: DType, columns: u32) -> Result<Tensor> {
        self.memory.part(start as usize, dtype, &[self.shape.tokens as usize, columns as usize])
    }

    /// Tokens of all ranks, and choices of each.
    pub(super) fn choices(&self) -> [usize; 2] {
        [self.shape.all_tokens() as usize, self.shape.top_k as usize]
    }

    /// # Safety
    /// What the arguments are addresses of must be as the kernel says.
    pub(super) unsafe fn launch<P: KernelParams>(
        &self,
        step: Exchange,
        (ctas, params): (u32, P),
        options: &LaunchOptions,
    ) -> Result<()> {
        let threads = if step == Exchange::Meet { MAX_RANKS } else { THREADS };
        // SAFETY: the caller keeps the memory.
        unsafe { run_step(self.memory.device(), step, (ctas, threads), params, options) }
    }

    /// Comes to a barrier of a call with so many tokens.
    pub(super) fn meet(&self, tokens: usize, barrier: Barrier, options: &LaunchOptions) -> Result<()> {
        let args = meet::Args {
            own: self.memory.address(),
            rank: self.rank,
            ranks: self.shape.ranks,
            tokens: tokens as u32,
            digest: self.shape.digest() ^ u32::from(self.scales == DType::I32),
            parity: barrier.parity(),
            timeout: self.timeout,
        };
        // SAFETY: who made the group keeps the buffers.
        unsafe { self.launch(Exchange::Meet, (1, args.values()), options) }
    }

    pub(super) fn expect_tokens(&self, tokens: usize) -> Result<()> {
        let most = self.shape.tokens;
        if tokens > most as usize {
            let expected = format!("at most {most} tokens, the `tokens` of the group");
            return Err(Error::Value { argument: "tokens", expected, found: tokens.to_string() });
        }
        Ok(())
    }
}

/// Buffers begin where their parts may.
fn expect_aligned(argument: &'static str, address: u64) -> Result<()> {
    if address != 0 && address.is_multiple_of(256) {
        return Ok(());
    }
    let expected = "addresses that are multiples of 256 bytes".to_owned();
    Err(Error::Alignment { argument, expected, found: format!("{address:#x}") })
}
