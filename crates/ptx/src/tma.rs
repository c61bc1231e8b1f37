//! TMA: bulk and tensor copies, and tensor maps (PTX manual, "cp.async.bulk.tensor" and neighbours).

use crate::kernel::Kernel;
use crate::mbarrier::MBarrier;
use crate::memory::{Global, Shared};
use crate::target::{Needs, PtxVersion};
use crate::value::{Arg, Pred, U16, U32, U64};

/// Tensor map: the description of a tensor in global memory that TMA reads.
#[derive(Clone, Copy)]
pub struct TensorMap<'k> {
    address: U64<'k>,
}

/// How an access should treat the L2 cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// Leave the cache first: data that is read once.
    First,
    /// The default.
    Normal,
    /// Stay: data that every block reads.
    Last,
}

/// A cache policy in a register, made by [`Kernel::cache_policy`].
#[derive(Clone, Copy)]
pub struct CachePolicy<'k>(pub(crate) U64<'k>);

impl<'k> CachePolicy<'k> {
    /// This policy where a condition holds, else another.
    #[track_caller]
    pub fn when(self, condition: Pred<'k>, otherwise: CachePolicy<'k>) -> CachePolicy<'k> {
        CachePolicy(condition.select(self.0, otherwise.0))
    }
}

/// Options of a tensor load beside its coordinates.
#[derive(Clone, Copy, Default)]
pub struct LoadOptions<'k> {
    /// Deliver to the same offset in every block of the cluster whose bit is set.
    pub multicast: Option<U16<'k>>,
    /// The L2 policy.
    pub cache: Option<CachePolicy<'k>>,
    /// The CTAs are a pair: `barrier` may be that of the first one, named by its cluster address.
    pub pair: bool,
}

/// The arithmetic of a reducing store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreReduction {
    /// Adds to what is there.
    Add,
    /// Keeps the smaller.
    Min,
    /// Keeps the larger.
    Max,
}

impl StoreReduction {
    fn name(self) -> &'static str {
        match self {
            StoreReduction::Add => "add",
            StoreReduction::Min => "min",
            StoreReduction::Max => "max",
        }
    }
}

/// A field of a tensor map that a kernel may replace in a copy of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapField {
    /// The tensor's address (64 bits).
    GlobalAddress,
    /// The size of one dimension (32 bits).
    Dim(u32),
    /// The stride of one dimension (64 bits); index 0 is the stride of dimension 1.
    Stride(u32),
}

impl Kernel {
    /// Declares a tensor map parameter, passed by value.
    #[track_caller]
    pub fn param_tensor_map(&self, name: &str) -> TensorMap<'_> {
        TensorMap { address: self.param_opaque(name, 128, 64) }
    }

    /// A policy that applies to a whole access.
    #[track_caller]
    pub fn cache_policy(&self, eviction: Eviction) -> CachePolicy<'_> {
        let out = self.fresh::<u64>();
        let name = match eviction {
            Eviction::First => "evict_first",
            Eviction::Normal => "evict_normal",
            Eviction::Last => "evict_last",
        };
        let dst = out.operand();
        self.emit(
            Needs::from_sm(80, 7, 4),
            format_args!("createpolicy.fractional.L2::{name}.b64 {dst}, 0f3F800000;"),
        );
        CachePolicy(out)
    }

    /// Ends the group of bulk stores issued by this thread so far.
    #[track_caller]
    pub fn bulk_commit(&self) {
        self.emit(Needs::SM90, format_args!("cp.async.bulk.commit_group;"));
    }

    /// Waits until at most `pending` of this thread's groups are unfinished.
    #[track_caller]
    pub fn bulk_wait(&self, pending: u32) {
        self.emit(Needs::SM90, format_args!("cp.async.bulk.wait_group {pending};"));
    }

    /// Waits until at most `pending` of this thread's groups still read their source, which may then be reused.
    #[track_caller]
    pub fn bulk_wait_read(&self, pending: u32) {
        self.emit(Needs::SM90, format_args!("cp.async.bulk.wait_group.read {pending};"));
    }
}

impl<'k> TensorMap<'k> {
    /// A tensor map in global memory.
    #[track_caller]
    pub fn in_global(map: Global<'k>) -> Self {
        TensorMap { address: map.generic() }
    }

    fn kernel(self) -> &'k Kernel {
        self.address.kernel()
    }

    #[track_caller]
    fn tile(self, at: &[U32<'k>]) -> String {
        let k = self.kernel();
        k.require((1..=5).contains(&at.len()), || {
            format!("a tensor map has 1 to 5 coordinates, not {}", at.len())
        });
        let list: Vec<_> = at.iter().map(|c| c.in_register().operand().to_string()).collect();
        format!("[{}, {{{}}}]", self.address.operand(), list.join(", "))
    }

    /// Fetches the map itself, so that the first copy does not wait for it.
    #[track_caller]
    pub fn prefetch(self) {
        let k = self.kernel();
        k.emit(Needs::SM90, format_args!("prefetch.tensormap [{}];", self.address.operand()));
    }

    /// Copies the tile at these coordinates (innermost first) into shared memory. Elements outside the tensor
    /// become zero. The bytes of the whole tile count towards `barrier`.
    #[track_caller]
    pub fn load(self, at: &[U32<'k>], to: Shared<'k>, barrier: MBarrier<'k>, options: LoadOptions<'k>) {
        let k = self.kernel();
        let tile = self.tile(at);
        let (mut flags, mut operands) = (String::new(), String::new());
        let (needs, pair) = if options.pair { (Needs::TCGEN05, ".cta_group::2") } else { (Needs::SM90, "") };
        if let Some(mask) = options.multicast {
            flags += ".multicast::cluster";
            operands += &format!(", {}", mask.in_register().operand());
        }
        if let Some(CachePolicy(policy)) = options.cache {
            flags += ".L2::cache_hint";
            operands += &format!(", {}", policy.operand());
        }
        k.emit(
            needs,
            format_args!(
                "cp.async.bulk.tensor.{}d{pair}.shared::cluster.global.mbarrier::complete_tx::bytes{flags} {to}, {tile}, {}{operands};",
                at.len(),
                barrier.0
            ),
        );
    }

    /// Copies a tile from shared memory. Elements outside the tensor are dropped.
    #[track_caller]
    pub fn store(self, at: &[U32<'k>], from: Shared<'k>) {
        let tile = self.tile(at);
        self.kernel().emit(
            Needs::SM90,
            format_args!("cp.async.bulk.tensor.{}d.global.shared::cta.bulk_group {tile}, {from};", at.len()),
        );
    }

    /// Combines a tile of shared memory with the tensor.
    #[track_caller]
    pub fn store_reducing(self, reduction: StoreReduction, at: &[U32<'k>], from: Shared<'k>) {
        let tile = self.tile(at);
        self.kernel().emit(
            Needs::SM90,
            format_args!(
                "cp.reduce.async.bulk.tensor.{}d.global.shared::cta.{}.tile.bulk_group {tile}, {from};",
                at.len(),
                reduction.name()
            ),
        );
    }

    /// Brings a tile into the L2 cache.
    #[track_caller]
    pub fn prefetch_tile(self, at: &[U32<'k>]) {
        let tile = self.tile(at);
        self.kernel().emit(
            Needs::SM90,
            format_args!("cp.async.bulk.prefetch.tensor.{}d.L2.global.tile {tile};", at.len()),
        );
    }

    /// One of its sixteen words of 64 bits, so that a kernel can make a copy.
    #[track_caller]
    pub fn word(self, index: U32<'k>) -> U64<'k> {
        let (k, at) = (self.kernel(), self.address + index.widening_mul(8));
        let word = k.fresh::<u64>();
        k.emit(Needs::SM90, format_args!("ld.b64 {}, [{}];", word.operand(), at.operand()));
        word
    }

    /// Makes a map that was changed in global memory visible to the TMA operations of this thread.
    #[track_caller]
    pub fn acquire(self) {
        self.kernel().emit(
            Needs::from_sm(90, 8, 3),
            format_args!("fence.proxy.tensormap::generic.acquire.gpu [{}], 128;", self.address.operand()),
        );
    }
}

impl<'k> Shared<'k> {
    /// Replaces a field of the tensor map at this address (128 bytes of shared memory).
    #[track_caller]
    pub fn replace_map_field(self, field: MapField, value: U64<'k>) {
        let k = value.kernel();
        let (name, ordinal, wide) = match field {
            MapField::GlobalAddress => ("global_address", String::new(), true),
            MapField::Dim(i) => ("global_dim", format!(", {i}"), false),
            MapField::Stride(i) => ("global_stride", format!(", {i}"), true),
        };
        let (width, value) =
            if wide { ("b64", value.in_register().operand()) } else { ("b32", value.to_u32().operand()) };
        k.emit(
            // Assemblers before that of PTX 8.5 took strides in units of 16 bytes.
            Needs {
                version: PtxVersion(8, if matches!(field, MapField::Stride(_)) { 5 } else { 3 }),
                ..Needs::SM90A_ON
            },
            format_args!("tensormap.replace.tile.{name}.shared::cta.b1024.{width} {self}{ordinal}, {value};"),
        );
    }

    /// Copies the tensor map at this address to global memory and releases it to the TMA units of the device.
    #[track_caller]
    pub fn publish_map(self, to: Global<'k>) {
        let k = to.address().kernel();
        k.emit(
            Needs::from_sm(90, 8, 3),
            format_args!(
                "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned {to}, {self}, 128;"
            ),
        );
    }

    /// Copies bytes of global memory here; they count towards `barrier`. All multiples of 16.
    #[track_caller]
    pub fn bulk_load(self, from: Global<'k>, bytes: impl Arg<'k, u32>, barrier: MBarrier<'k>) {
        self.bulk_load_by(from, bytes, barrier, None);
    }

    /// The same, with a policy for the L2 cache.
    #[track_caller]
    pub fn bulk_load_by(
        self,
        from: Global<'k>,
        bytes: impl Arg<'k, u32>,
        barrier: MBarrier<'k>,
        policy: Option<CachePolicy<'k>>,
    ) {
        let k = from.address().kernel();
        let bytes = bytes.val(k).operand();
        let (flag, hint) = match policy {
            Some(CachePolicy(policy)) => (".L2::cache_hint", format!(", {}", policy.operand())),
            None => ("", String::new()),
        };
        k.emit(
            Needs::SM90,
            format_args!(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes{flag} {self}, {from}, {bytes}, {}{hint};",
                barrier.0
            ),
        );
    }

    /// Copies bytes from here to global memory, as part of this thread's bulk group. All multiples of 16.
    #[track_caller]
    pub fn bulk_store(self, to: Global<'k>, bytes: impl Arg<'k, u32>) {
        let k = to.address().kernel();
        let bytes = bytes.val(k).operand();
        k.emit(
            Needs::SM90,
            format_args!("cp.async.bulk.global.shared::cta.bulk_group {to}, {self}, {bytes};"),
        );
    }
}
