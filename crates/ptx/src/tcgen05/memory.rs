//! Tensor memory: allocation, and copies between it, registers and shared memory.

use super::CtaGroup;
use crate::descriptor::Descriptor;
use crate::kernel::Kernel;
use crate::memory::Shared;
use crate::target::Needs;
use crate::value::{Arg, U32};

/// A place in tensor memory: a lane in the upper half of the word, a column in the lower.
#[derive(Clone, Copy)]
pub struct TensorMemory<'k>(U32<'k>);

/// What one `tcgen05.cp` copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CopyShape {
    /// 32 lanes of 16 bytes, the same for each quarter of the lanes: scales.
    Scales,
    /// 128 lanes of 32 bytes.
    Lanes128x256b,
    /// 128 lanes of 16 bytes.
    Lanes128x128b,
}

impl CopyShape {
    fn name(self) -> &'static str {
        match self {
            CopyShape::Scales => "32x128b.warpx4",
            CopyShape::Lanes128x256b => "128x256b",
            CopyShape::Lanes128x128b => "128x128b",
        }
    }
}

impl<'k> TensorMemory<'k> {
    /// Columns of an SM.
    pub const COLUMNS: u32 = 512;

    /// The place with this address, as [`Kernel::tensor_memory_alloc`] wrote it.
    pub fn at(address: U32<'k>) -> Self {
        TensorMemory(address)
    }

    /// The address.
    pub fn address(self) -> U32<'k> {
        self.0
    }

    /// The place this many columns further on.
    #[track_caller]
    pub fn column(self, columns: impl Arg<'k, u32>) -> Self {
        let columns = columns.val(self.0.kernel());
        TensorMemory(self.0 + columns)
    }

    /// The place this many lanes further down.
    #[track_caller]
    pub fn lane(self, lanes: impl Arg<'k, u32>) -> Self {
        let lanes = lanes.val(self.0.kernel());
        TensorMemory(self.0 + (lanes << 16))
    }

    /// Loads `columns` columns: thread `t` of the warp gets those of lane `t` of the warp's quarter of the lanes. The place
    /// is in that quarter. Values may be used after [`Kernel::tensor_memory_wait_loads`].
    #[track_caller]
    pub fn load_rows(self, columns: u32) -> Vec<U32<'k>> {
        let k = self.0.kernel();
        check_columns(k, columns);
        let out: Vec<U32<'k>> = (0..columns).map(|_| k.fresh()).collect();
        let list: Vec<_> = out.iter().map(|r| r.operand().to_string()).collect();
        k.emit(
            Needs::TCGEN05,
            format_args!(
                "tcgen05.ld.sync.aligned.32x32b.x{columns}.b32 {{{}}}, [{}];",
                list.join(", "),
                self.0.in_register().operand()
            ),
        );
        out
    }

    /// Loads 16 lanes by `columns` columns as a fragment: thread `t` of the warp gets, in `[4 i ..]`, columns `8 i + 2 (t % 4)`
    /// and the next, of lanes `t / 4` (first two) and eight further down (last two). This is how `wgmma` lays out 16 rows
    /// of its accumulators. The place is lane 0 or 16 of the warp's quarter of the lanes.
    #[track_caller]
    pub fn load_fragment(self, columns: u32) -> Vec<U32<'k>> {
        let k = self.0.kernel();
        let times = columns / 8;
        k.require(columns == times * 8 && times.is_power_of_two() && times <= 32, || {
            format!("a fragment has 8 to 256 columns, a power of two, not {columns}")
        });
        let out: Vec<U32<'k>> = (0..columns / 2).map(|_| k.fresh()).collect();
        let list: Vec<_> = out.iter().map(|r| r.operand().to_string()).collect();
        k.emit(
            Needs::TCGEN05,
            format_args!(
                "tcgen05.ld.sync.aligned.16x256b.x{times}.b32 {{{}}}, [{}];",
                list.join(", "),
                self.0.in_register().operand()
            ),
        );
        out
    }

    /// Stores a word for each of `words.len()` columns; the reverse of [`load_rows`](Self::load_rows). Complete after
    /// [`Kernel::tensor_memory_wait_stores`].
    #[track_caller]
    pub fn store_rows(self, words: &[U32<'k>]) {
        let (k, columns) = (self.0.kernel(), words.len() as u32);
        check_columns(k, columns);
        let list: Vec<_> = words.iter().map(|w| w.in_register().operand().to_string()).collect();
        k.emit(
            Needs::TCGEN05,
            format_args!(
                "tcgen05.st.sync.aligned.32x32b.x{columns}.b32 [{}], {{{}}};",
                self.0.in_register().operand(),
                list.join(", ")
            ),
        );
    }

    /// Copies from shared memory, asynchronously and before MMAs that this thread issues later; one thread executes it.
    #[track_caller]
    pub fn copy_from(self, group: CtaGroup, shape: CopyShape, from: Descriptor<'k>) {
        let from = from.pack().operand();
        self.0.kernel().emit(
            Needs::TCGEN05,
            format_args!("tcgen05.cp.{group}.{} [{}], {from};", shape.name(), self.0.in_register().operand()),
        );
    }
}

#[track_caller]
fn check_columns(k: &Kernel, columns: u32) {
    k.require(columns.is_power_of_two() && columns <= 128, || {
        format!("tcgen05.ld and .st take 1 to 128 columns, a power of two, not {columns}")
    });
}

impl Kernel {
    /// Takes columns of tensor memory, waiting until they are free, and writes their address to `to`; one warp executes
    /// it, of each CTA of the group.
    #[track_caller]
    pub fn tensor_memory_alloc(&self, group: CtaGroup, to: Shared<'_>, columns: u32) {
        self.check_allocation(columns);
        self.emit(
            Needs::TCGEN05,
            format_args!("tcgen05.alloc.{group}.sync.aligned.shared::cta.b32 {to}, {columns};"),
        );
    }

    /// Gives columns back; one warp executes it, of each CTA of the group, after every use of them.
    #[track_caller]
    pub fn tensor_memory_dealloc(&self, group: CtaGroup, memory: TensorMemory<'_>, columns: u32) {
        self.check_allocation(columns);
        let address = memory.0.in_register().operand();
        self.emit(
            Needs::TCGEN05,
            format_args!("tcgen05.dealloc.{group}.sync.aligned.b32 {address}, {columns};"),
        );
    }

    /// Says that this CTA takes no more columns, so that the next one on the SM may; one warp executes it.
    #[track_caller]
    pub fn tensor_memory_relinquish(&self, group: CtaGroup) {
        self.emit(Needs::TCGEN05, format_args!("tcgen05.relinquish_alloc_permit.{group}.sync.aligned;"));
    }

    /// Waits until the loads of this thread have arrived in its registers.
    #[track_caller]
    pub fn tensor_memory_wait_loads(&self) {
        self.emit(Needs::TCGEN05, format_args!("tcgen05.wait::ld.sync.aligned;"));
    }

    /// Waits until the stores of this thread have arrived in tensor memory.
    #[track_caller]
    pub fn tensor_memory_wait_stores(&self) {
        self.emit(Needs::TCGEN05, format_args!("tcgen05.wait::st.sync.aligned;"));
    }

    #[track_caller]
    fn check_allocation(&self, columns: u32) {
        self.require(columns.is_power_of_two() && (32..=TensorMemory::COLUMNS).contains(&columns), || {
            format!("tensor memory is allocated in 32 to 512 columns, a power of two, not {columns}")
        });
    }
}
