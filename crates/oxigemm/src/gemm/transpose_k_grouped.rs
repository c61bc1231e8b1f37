//! Operands with groups along K that are made K-major first, in memory that the library owns.

use oxigemm_kernels::KernelId;
use oxigemm_kernels::gemm::transpose_k_grouped::{result_extent, shared_bytes, threads, tiles_across};

use crate::call::Addresses;
use crate::check::{KGroups, Problem};
use crate::error::{Error, Result};
use crate::launch::direct::{Argument, Call};

/// Where in a workspace something may begin.
const PLACE: u64 = 1024;

/// A checked product whose operands begin with K, and what is made of it.
pub(crate) struct TransposedGroups {
    /// The product of the results.
    pub problem: Problem,
    /// Bytes of the workspace: the K of each group as it was found, then A, then B.
    pub bytes: u64,
    a: u64,
    b: u64,
    groups: KGroups,
    /// The K of all groups, before.
    extent: u32,
    pitches: [u32; 2],
    tiles: u32,
}

impl TransposedGroups {
    /// For a product whose pitches are from one step of K to the next.
    pub fn new(problem: &Problem, groups: &KGroups) -> Result<TransposedGroups> {
        let refuse = |argument, expected: &str, found: u64| Error::Overflow {
            argument,
            expected: format!("{expected}, as operands are not K-major"),
            found: found.to_string(),
        };
        let pitch = |argument, pitch: u64| {
            u32::try_from(pitch)
                .map_err(|_| refuse(argument, "at most 4 GiB from one step of K to the next", pitch))
        };
        let pitches = [pitch("a", problem.a_pitch)?, pitch("b", problem.b_pitch)?];
        let extent = result_extent(problem.k.into(), groups.count);
        let across = u64::from(tiles_across(problem.m)) + u64::from(tiles_across(problem.n));
        let tiles = u64::from(groups.blocks) * across;
        let fits = |x: u64| u32::try_from(x).ok().filter(|x| *x <= i32::MAX.cast_unsigned());
        let k = fits(extent).ok_or_else(|| refuse("a", "a K of all groups below 2^31", extent))?;
        let tiles = fits(tiles).ok_or_else(|| refuse("a", "at most 2^31 tiles of 128 by 128", tiles))?;
        let a = (u64::from(groups.count) * 4).next_multiple_of(PLACE);
        let b = a + (extent * u64::from(problem.m)).next_multiple_of(PLACE);
        Ok(TransposedGroups {
            problem: Problem { k, a_pitch: extent, b_pitch: extent, ..*problem },
            bytes: b + (extent * u64::from(problem.n)).next_multiple_of(PLACE),
            a,
            b,
            groups: *groups,
            extent: problem.k,
            pitches,
            tiles,
        })
    }

    /// Where the product finds its operands, once they are transposed.
    pub fn addresses(&self, own: Addresses, workspace: u64) -> Addresses {
        Addresses { a: workspace + self.a, b: workspace + self.b, groups: workspace, ..own }
    }

    /// Has `run` run the kernel that transposes.
    pub fn call<R>(
        &self,
        own: Addresses,
        workspace: u64,
        run: impl FnOnce(&Call<'_>) -> Result<R>,
    ) -> Result<R> {
        let arguments = [
            Argument::Address(own.groups),
            Argument::Address(workspace),
            Argument::Address(own.a),
            Argument::Address(workspace + self.a),
            Argument::Number(self.problem.m),
            Argument::Number(self.pitches[0]),
            Argument::Address(own.b),
            Argument::Address(workspace + self.b),
            Argument::Number(self.problem.n),
            Argument::Number(self.pitches[1]),
            Argument::Number(self.groups.count),
            Argument::Number(self.extent),
            Argument::Number(self.groups.blocks),
        ];
        run(&Call {
            kernel: KernelId::TransposeGroups,
            grid: [self.tiles, 1],
            cluster: 1,
            threads: threads(),
            shared_bytes: shared_bytes(self.groups.count),
            arguments: &arguments,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Accumulate, ScaleStrides};
    use crate::dtype::DType;
    use oxigemm_kernels::gemm::launch::OperandKind;

    const PROBLEM: Problem = Problem {
        family: OperandKind::Fp8Rows,
        m: 48,
        n: 200,
        k: 300,
        a_pitch: 48,
        b_pitch: 208,
        d_pitch: 200,
        c: Accumulate::None,
        sfa: ScaleStrides { mn: 1, k: 48 },
        sfb: ScaleStrides { mn: 1, k: 200 },
        d_type: DType::F32,
    };
    const GROUPS: KGroups = KGroups { count: 3, blocks: 4, d_slab: 48 };

    #[test]
    fn results_lie_behind_the_numbers_and_each_other() {
        let all = TransposedGroups::new(&PROBLEM, &GROUPS).unwrap();
        // 300 shared out over three groups, each rounded up to 16.
        assert_eq!((all.problem.k, all.problem.a_pitch), (336, 336));
        assert_eq!((all.a, all.b), (1024, 1024 + (336u64 * 48).next_multiple_of(1024)));
        assert_eq!(all.bytes, all.b + (336u64 * 200).next_multiple_of(1024));
        assert_eq!(all.tiles, 4 * (1 + 2));
    }

    #[test]
    fn what_the_kernel_cannot_count_is_refused() {
        let wide = Problem { b_pitch: 1 << 33, ..PROBLEM };
        let error = TransposedGroups::new(&wide, &GROUPS).err().expect("too far apart");
        assert!(matches!(error, Error::Overflow { argument: "b", .. }), "{error}");
        let deep = Problem { k: i32::MAX as u32, ..PROBLEM };
        assert!(TransposedGroups::new(&deep, &GROUPS).is_err());
    }
}
