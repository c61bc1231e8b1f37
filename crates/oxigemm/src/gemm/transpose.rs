//! Transposition of FP8 operands that are not K-major, into a workspace of the stream.
//!
//! Hopper's tensor core multiplies FP8 operands that are contiguous along K. One kernel transposes both operands of a
//! GEMM, and the GEMM follows in the same stream. Blackwell's takes e4m3 of either major, and has kernels for those of
//! dense and k-grouped GEMMs; others are transposed there as well.

use oxigemm_kernels::gemm::transpose::{Args, Job, TILE};
use oxigemm_kernels::gemm::transpose_k_grouped::{result_extent, shared_bytes, threads, tiles_across};
use oxigemm_kernels::{Arch, KernelId};

use crate::check::{GemmDesc, Groups, KGroups, Problem};
use crate::device::backend::Backend;
use crate::device::launch::{Geometry, KernelArg, KernelLaunch};
use crate::error::{Error, Result};
use crate::launch::args::Addresses;
use crate::launch::geometry;

/// Alignment of what lies in a workspace, in bytes.
const ALIGNMENT: u64 = 1024;

/// Transposition of the operands of a checked GEMM.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transposition {
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Operands(Operands),
    KGrouped(KGrouped),
}

impl Transposition {
    /// For a checked GEMM, with the GEMM of the results; `None` where every operand is read as it is.
    pub fn new(problem: &Problem, desc: &GemmDesc) -> Result<Option<(Problem, Transposition)>> {
        if problem.transpose == [false; 2] {
            return Ok(None);
        }
        if let Some(groups) = &problem.k_groups {
            let all = KGrouped::new(problem, groups)?;
            return Ok(Some((all.problem, Transposition { kind: Kind::KGrouped(all) })));
        }
        let a = Source {
            name: "a",
            address: desc.a.address,
            k: problem.k,
            columns: problem.m,
            pitch: problem.a_pitch,
            slabs: 1,
            slab: 0,
        };
        let b = Source {
            name: "b",
            address: desc.b.address,
            columns: problem.n,
            pitch: problem.b_pitch,
            slabs: problem.groups.map_or(1, |groups| groups.count),
            slab: problem.groups.map_or(0, |groups| groups.b_group),
            ..a
        };
        let [of_a, of_b] = problem.transpose;
        let sources = [of_a.then_some(a), of_b.then_some(b)];
        let Some(operands) = Operands::new(sources)? else { return Ok(None) };
        Ok(Some((operands.problem(problem), Transposition { kind: Kind::Operands(operands) })))
    }

    /// Bytes of the workspace.
    pub fn bytes(&self) -> u64 {
        match &self.kind {
            Kind::Operands(operands) => operands.bytes,
            Kind::KGrouped(groups) => groups.bytes,
        }
    }

    /// Addresses of the GEMM, once operands are transposed.
    pub fn addresses(&self, own: Addresses, workspace: u64) -> Addresses {
        match &self.kind {
            Kind::Operands(operands) => {
                let [a, b] = operands.results(workspace);
                Addresses { a: a.unwrap_or(own.a), b: b.unwrap_or(own.b), ..own }
            }
            Kind::KGrouped(KGrouped { a, b, .. }) => {
                Addresses { a: workspace + a, b: workspace + b, groups: workspace, ..own }
            }
        }
    }

    /// Puts the kernel that transposes into a stream.
    ///
    /// # Safety
    /// The operands must be memory of this device as they were checked, and the workspace as large as it is said to be,
    /// until the kernel is done or, where the stream is being captured, whenever the graph is launched.
    pub unsafe fn launch<B: Backend>(
        &self,
        backend: &B,
        own: Addresses,
        workspace: u64,
        stream: B::Stream<'_>,
        programmatic: bool,
    ) -> Result<()> {
        let arch = backend.limits().arch;
        // SAFETY: the caller's promise; the arguments are those of the kernel.
        unsafe {
            match &self.kind {
                Kind::Operands(operands) => {
                    backend.launch(&operands.launch(arch, workspace, programmatic), stream)
                }
                Kind::KGrouped(groups) => {
                    backend.launch(&groups.launch(arch, own, workspace, programmatic), stream)
                }
            }
        }
    }
}

/// An operand that is not K-major: `[slabs, K, columns]` bytes.
#[derive(Clone, Copy, Debug)]
struct Source {
    /// The argument's name, for errors.
    name: &'static str,
    address: u64,
    k: u32,
    /// Contiguous dimension: M or N.
    columns: u32,
    /// From one step of K to the next.
    pitch: u64,
    slabs: u32,
    /// From one slab to the next.
    slab: u64,
}

/// Transposition of A, of B, or of both: where each result lies in the workspace.
#[derive(Clone, Copy, Debug)]
struct Operands {
    sources: [Option<Source>; 2],
    args: Args,
    /// Bytes of the workspace.
    bytes: u64,
}

impl Source {
    /// From one row of the result to the next.
    fn result_pitch(&self) -> u64 {
        u64::from(self.k).next_multiple_of(TILE.into())
    }

    /// From one slab of the result to the next.
    fn result_slab(&self) -> u64 {
        self.result_pitch() * u64::from(self.columns)
    }

    /// The job, with a result at an offset of the workspace.
    fn job(&self, to: u64) -> Result<Job> {
        let refuse = |expected: &str, found: u64| Error::Overflow {
            argument: self.name,
            expected: format!("{expected}, as it is not K-major"),
            found: found.to_string(),
        };
        let tiles =
            u64::from(self.slabs) * u64::from(self.k.div_ceil(TILE)) * u64::from(self.columns.div_ceil(TILE));
        let narrow = |x: u64, what: &str| u32::try_from(x).map_err(|_| refuse(what, x));
        Ok(Job {
            from: self.address,
            to,
            lines: self.k,
            columns: self.columns,
            from_pitch: narrow(self.pitch, "at most 4 GiB from one step of K to the next")?,
            to_pitch: narrow(self.result_pitch(), "a K of less than 4 Gi")?,
            from_slab: narrow(self.slab / 16, "groups of at most 64 GiB")?,
            to_slab: narrow(self.result_slab() / 16, "groups of at most 64 GiB")?,
            tiles: match i32::try_from(tiles) {
                Ok(tiles) => tiles.cast_unsigned(),
                Err(_) => return Err(refuse("at most 2^31 tiles of 128 by 128", tiles)),
            },
        })
    }
}

impl Operands {
    /// Of A, of B or of both; `None` where neither needs it.
    fn new(sources: [Option<Source>; 2]) -> Result<Option<Operands>> {
        let mut bytes = 0u64;
        let mut jobs = [Job::default(); 2];
        for (source, job) in sources.iter().flatten().zip(&mut jobs) {
            *job = source.job(bytes)?;
            bytes += (source.result_slab() * u64::from(source.slabs)).next_multiple_of(ALIGNMENT);
        }
        Ok((bytes > 0).then_some(Operands { sources, args: Args { jobs }, bytes }))
    }

    /// The GEMM of the results.
    fn problem(&self, problem: &Problem) -> Problem {
        let pitch = |i: usize, own: u64| self.sources[i].map_or(own, |source| source.result_pitch());
        let b_group = |groups: Groups| self.sources[1].map_or(groups.b_group, |source| source.result_slab());
        Problem {
            a_pitch: pitch(0, problem.a_pitch),
            b_pitch: pitch(1, problem.b_pitch),
            groups: problem.groups.map(|groups| Groups { b_group: b_group(groups), ..groups }),
            transpose: [false; 2],
            ..*problem
        }
    }

    /// The launch of the kernel that transposes.
    fn launch(&self, arch: Arch, workspace: u64, programmatic: bool) -> KernelLaunch<Args> {
        let params = self.at(workspace);
        KernelLaunch {
            kernel: KernelId::Transpose(arch),
            geometry: geometry(&params.launch()),
            programmatic,
            params,
        }
    }

    /// What is launched for a workspace at this address.
    fn at(&self, workspace: u64) -> Args {
        Args { jobs: self.args.jobs.map(|job| Job { to: workspace + job.to, ..job }) }
    }

    /// The addresses of the results, of those sources that there are, in order.
    fn results(&self, workspace: u64) -> [Option<u64>; 2] {
        let mut jobs = self.args.jobs.iter();
        self.sources.map(|source| source.and_then(|_| jobs.next()).map(|job| workspace + job.to))
    }
}

/// Transposition of both operands of a k-grouped GEMM, which begin with K.
#[derive(Clone, Copy, Debug)]
struct KGrouped {
    /// The GEMM of the results.
    problem: Problem,
    /// Bytes of the workspace: the K of each group as it was found, then A, then B.
    bytes: u64,
    a: u64,
    b: u64,
    groups: KGroups,
    /// The K of all groups, before.
    extent: u32,
    pitches: [u32; 2],
    tiles: u32,
}

impl KGrouped {
    /// For a GEMM whose pitches are from one step of K to the next.
    fn new(problem: &Problem, groups: &KGroups) -> Result<KGrouped> {
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
        let a = (u64::from(groups.count) * 4).next_multiple_of(ALIGNMENT);
        let b = a + (extent * u64::from(problem.m)).next_multiple_of(ALIGNMENT);
        Ok(KGrouped {
            problem: Problem { k, a_pitch: extent, b_pitch: extent, transpose: [false; 2], ..*problem },
            bytes: b + (extent * u64::from(problem.n)).next_multiple_of(ALIGNMENT),
            a,
            b,
            groups: *groups,
            extent: problem.k,
            pitches,
            tiles,
        })
    }

    /// The launch of the kernel that transposes.
    fn launch(
        &self,
        arch: Arch,
        own: Addresses,
        workspace: u64,
        programmatic: bool,
    ) -> KernelLaunch<[KernelArg; 13]> {
        KernelLaunch {
            kernel: KernelId::TransposeKGrouped(arch),
            geometry: Geometry {
                grid: [self.tiles, 1],
                cluster: 1,
                threads: threads(),
                shared_bytes: shared_bytes(self.groups.count),
                cooperative: false,
            },
            programmatic,
            params: [
                KernelArg::U64(own.groups),
                KernelArg::U64(workspace),
                KernelArg::U64(own.a),
                KernelArg::U64(workspace + self.a),
                KernelArg::U32(self.problem.m),
                KernelArg::U32(self.pitches[0]),
                KernelArg::U64(own.b),
                KernelArg::U64(workspace + self.b),
                KernelArg::U32(self.problem.n),
                KernelArg::U32(self.pitches[1]),
                KernelArg::U32(self.groups.count),
                KernelArg::U32(self.extent),
                KernelArg::U32(self.groups.blocks),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Accumulate, KGroups};
    use crate::tensor::desc::ScaleStrides;
    use crate::tensor::dtype::DType;
    use oxigemm_kernels::gemm::OperandKind;

    #[test]
    fn results_are_contiguous_and_aligned() {
        let b = Source { name: "b", address: 0x100, k: 200, columns: 70, pitch: 80, slabs: 3, slab: 16_000 };
        let a = Source { name: "a", address: 0x900, k: 200, columns: 5, pitch: 16, slabs: 1, slab: 0 };
        let one = Operands::new([None, Some(b)]).unwrap().unwrap();
        assert_eq!(one.bytes, (256u64 * 70 * 3).next_multiple_of(1024));
        assert_eq!(one.results(0x10_0000), [None, Some(0x10_0000)]);
        let both = Operands::new([Some(a), Some(b)]).unwrap().unwrap();
        let [first, second] = both.at(0x10_0000).jobs;
        assert_eq!((first.to, second.to), (0x10_0000, 0x10_0000 + 2048));
        assert_eq!((first.tiles, second.tiles), (2, 6));
        assert_eq!((second.from_slab, second.to_slab), (1000, 256 * 70 / 16));
        assert!(Operands::new([None, None]).unwrap().is_none());
    }

    #[test]
    fn what_the_kernel_cannot_count_is_refused() {
        let b = Source { name: "b", address: 0x100, k: 2, columns: 16, pitch: 1 << 33, slabs: 1, slab: 0 };
        let error = Operands::new([None, Some(b)]).unwrap_err();
        assert!(matches!(error, Error::Overflow { argument: "b", .. }), "{error}");
    }

    const PROBLEM: Problem = Problem {
        family: OperandKind::FP8_1D1D,
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
        transpose: [true; 2],
        groups: None,
        k_groups: Some(GROUPS),
        summed: None,
        fused: None,
    };
    const GROUPS: KGroups = KGroups { count: 3, blocks: 4, d_slab: 48, alignment: 0 };

    #[test]
    fn k_grouped_results_follow_the_numbers() {
        let all = KGrouped::new(&PROBLEM, &GROUPS).unwrap();
        // 300 shared out over three groups, each rounded up to 16.
        assert_eq!((all.problem.k, all.problem.a_pitch), (336, 336));
        assert_eq!((all.a, all.b), (1024, 1024 + (336u64 * 48).next_multiple_of(1024)));
        assert_eq!(all.bytes, all.b + (336u64 * 200).next_multiple_of(1024));
        assert_eq!(all.tiles, 4 * (1 + 2));
    }

    #[test]
    fn k_groups_that_the_kernel_cannot_count_are_refused() {
        let wide = Problem { b_pitch: 1 << 33, ..PROBLEM };
        let error = KGrouped::new(&wide, &GROUPS).expect_err("too far apart");
        assert!(matches!(error, Error::Overflow { argument: "b", .. }), "{error}");
        let deep = Problem { k: i32::MAX as u32, ..PROBLEM };
        assert!(KGrouped::new(&deep, &GROUPS).is_err());
    }
}
