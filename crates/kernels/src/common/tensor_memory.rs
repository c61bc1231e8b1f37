//! Tensor memory of an SM, shared out among CTAs.

use crate::arch::Arch;
use oxigemm_ptx::tcgen05::TensorMemory;

/// Bytes of dynamic shared memory that the launch of a CTA with so many columns of tensor memory takes at least: as great a
/// part of the SM's shared memory as of its tensor memory.
///
/// A launch is given to an SM that has shared memory for it; nothing looks at tensor memory. An allocation waits for columns
/// that another CTA frees. Where that CTA waits for a peer of its cluster, or for the CTA that it shares a tile with, which
/// waits for columns on another SM, nothing goes on. CTAs that take both in proportion find columns for all of them.
pub(crate) fn least_shared_bytes(columns: u32) -> u32 {
    let limits = Arch::Sm100a.limits();
    limits.shared_per_sm / TensorMemory::COLUMNS * columns - limits.reserved_shared
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ctas_that_fit_an_sm_find_columns() {
        let limits = Arch::Sm100a.limits();
        for columns in [32, 64, 128, 256, 512] {
            let most = limits.shared_per_sm / (least_shared_bytes(columns) + limits.reserved_shared);
            assert_eq!(most * columns, TensorMemory::COLUMNS);
        }
        assert_eq!(least_shared_bytes(TensorMemory::COLUMNS), limits.shared_per_block);
    }
}
