//! `ldmatrix`, `stmatrix` and warp-level `mma` (PTX manual, "Warp Level Matrix Instructions").

use crate::kernel::Kernel;
use crate::memory::Shared;
use crate::target::Needs;
use crate::value::{F32, Type, U32, Val};

/// Layout of an 8x8 matrix of 16-bit elements in registers: as it lies in memory, or transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Each lane's pair comes from one row.
    Rows,
    /// Each lane's pair comes from one column.
    Transposed,
}

impl Layout {
    fn suffix(self) -> &'static str {
        match self {
            Layout::Rows => "",
            Layout::Transposed => ".trans",
        }
    }
}

impl<'k> Shared<'k> {
    /// Stores 1, 2 or 4 matrices of 8x8 16-bit elements. Lane `l` gives the address of row `l % 8` of matrix
    /// `l / 8` (lanes past the last matrix are ignored), and its pair of each matrix.
    #[track_caller]
    pub fn store_matrices<T: Type, const N: usize>(self, layout: Layout, pairs: [Val<'k, T>; N]) {
        const { assert!((N == 1 || N == 2 || N == 4) && T::BYTES == 4) };
        let list = pairs.map(|p| p.in_register().operand().to_string()).join(", ");
        pairs[0].kernel().emit(
            Needs::SM90,
            format_args!("stmatrix.sync.aligned.m8n8.x{N}{}.shared.b16 {self}, {{{list}}};", layout.suffix()),
        );
    }

    /// Loads 1, 2 or 4 matrices of 8x8 16-bit elements, addressed as in [`store_matrices`](Self::store_matrices).
    #[track_caller]
    pub fn load_matrices<T: Type, const N: usize>(self, layout: Layout) -> [Val<'k, T>; N] {
        const { assert!((N == 1 || N == 2 || N == 4) && T::BYTES == 4) };
        let k = self.address().kernel();
        let out = [(); N].map(|()| k.fresh::<T>());
        let list = out.map(|p| p.operand().to_string()).join(", ");
        k.emit(
            Needs::BASE,
            format_args!("ldmatrix.sync.aligned.m8n8.x{N}{}.shared.b16 {{{list}}}, {self};", layout.suffix()),
        );
        out
    }
}

impl Kernel {
    /// `A · B + C` for 16x8x16 BF16 matrices spread over a warp.
    #[track_caller]
    pub fn mma_bf16<'k>(&'k self, a: [U32<'k>; 4], b: [U32<'k>; 2], c: [F32<'k>; 4]) -> [F32<'k>; 4] {
        let out = [(); 4].map(|()| self.fresh::<f32>());
        let words = |list: &[U32<'k>]| {
            list.iter().map(|w| w.in_register().operand().to_string()).collect::<Vec<_>>().join(", ")
        };
        let floats = |list: [F32<'k>; 4]| list.map(|x| x.in_register().operand().to_string()).join(", ");
        let (a, b, c) = (words(&a), words(&b), floats(c));
        self.op(format_args!(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{{}}}, {{{a}}}, {{{b}}}, {{{c}}};",
            floats(out)
        ));
        out
    }
}
