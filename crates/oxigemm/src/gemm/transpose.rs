//! Operands that are made K-major first, in memory that the library owns.

use oxigemm_kernels::gemm::transpose::{Args, Job, TILE};

use crate::call::Addresses;
use crate::check::{Groups, Problem};
use crate::error::{Error, Result};
use crate::gemm::{GemmOptions, cuda_stream, key, put, sim_stream};
use crate::runtime::Cuda;
use crate::simulated::Sim;

/// Where in a workspace matrices may begin.
const PLACE: u64 = 1024;

/// An operand that is not K-major: `[slabs, K, columns]` bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    /// The argument's name, for errors.
    pub name: &'static str,
    pub address: u64,
    pub k: u32,
    /// What is contiguous: M or N.
    pub columns: u32,
    /// From one step of K to the next.
    pub pitch: u64,
    pub slabs: u32,
    /// From one slab to the next.
    pub slab: u64,
}

/// One or two operands and their places in a workspace.
#[derive(Clone, Copy, Debug)]
struct Transposition {
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

impl Transposition {
    /// Of A, of B or of both; `None` where neither needs it.
    fn new(sources: [Option<Source>; 2]) -> Result<Option<Transposition>> {
        let mut bytes = 0u64;
        let mut jobs = [Job::default(); 2];
        for (source, job) in sources.iter().flatten().zip(&mut jobs) {
            *job = source.job(bytes)?;
            bytes += (source.result_slab() * u64::from(source.slabs)).next_multiple_of(PLACE);
        }
        Ok((bytes > 0).then_some(Transposition { args: Args { jobs }, bytes }))
    }

    /// What is launched for a workspace at this address.
    fn at(&self, workspace: u64) -> Args {
        Args { jobs: self.args.jobs.map(|job| Job { to: workspace + job.to, ..job }) }
    }

    /// The addresses of the results, of those sources that there are, in order.
    fn results(&self, sources: [Option<Source>; 2], workspace: u64) -> [Option<u64>; 2] {
        let mut jobs = self.args.jobs.iter();
        sources.map(|source| source.and_then(|_| jobs.next()).map(|job| workspace + job.to))
    }
}

/// A checked product of which operands are not K-major.
pub(crate) struct TransposedProduct {
    problem: Problem,
    groups: Option<Groups>,
    sources: [Option<Source>; 2],
    transposition: Transposition,
}

impl TransposedProduct {
    /// For a product with A, B or both transposed; `None` where neither is.
    pub fn new(
        problem: &Problem,
        groups: Option<&Groups>,
        sources: [Option<Source>; 2],
    ) -> Result<Option<TransposedProduct>> {
        let Some(transposition) = Transposition::new(sources)? else { return Ok(None) };
        // As the operands will be.
        let pitch = |i: usize, own: u64| sources[i].map_or(own, |source| source.result_pitch());
        let problem =
            Problem { a_pitch: pitch(0, problem.a_pitch), b_pitch: pitch(1, problem.b_pitch), ..*problem };
        let groups = groups.map(|groups| Groups {
            b_group: sources[1].map_or(groups.b_group, |source| source.result_slab()),
            ..*groups
        });
        Ok(Some(TransposedProduct { problem, groups, sources, transposition }))
    }

    /// Where the operands are, once those are transposed.
    fn addresses(&self, own: Addresses, workspace: u64) -> Addresses {
        let [a, b] = self.transposition.results(self.sources, workspace);
        Addresses { a: a.unwrap_or(own.a), b: b.unwrap_or(own.b), ..own }
    }

    /// Puts both kernels into the stream.
    ///
    /// # Safety
    /// The operands must be at their own addresses of this GPU as they were checked, and stay there until the kernels are
    /// done or, where the stream is being captured, whenever the graph is launched.
    pub unsafe fn launch(&self, cuda: &Cuda, own: Addresses, options: &GemmOptions) -> Result<()> {
        let stream = cuda_stream(cuda, options)?;
        let prepared = cuda.prepared(&key(cuda.limits(), self.problem, self.groups, options))?;
        let workspace = cuda.workspace(stream, self.transposition.bytes)?;
        let args = prepared.arguments(&self.addresses(own, workspace))?;
        // SAFETY: the caller keeps the operands, and the device the workspace. The second kernel waits for the first, and
        // so for all before it.
        unsafe {
            cuda.transpose(&self.transposition.at(workspace), stream, options.programmatic)?;
            prepared.launch(cuda, &args, stream, true)
        }
    }

    /// Does both, or has them captured.
    pub fn simulate(&self, sim: &Sim, own: Addresses, options: &GemmOptions) -> Result<()> {
        let stream = sim_stream(sim, options)?;
        let workspace = sim.workspace(stream, self.transposition.bytes)?;
        let key = key(sim.limits(), self.problem, self.groups, options);
        let multiply = sim.plan(&key, &self.addresses(own, workspace), stream, true)?;
        put(sim, stream, sim.transpose(&self.transposition.at(workspace), options.programmatic)?)?;
        put(sim, stream, multiply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_lie_behind_each_other_at_whole_places() {
        let b = Source { name: "b", address: 0x100, k: 200, columns: 70, pitch: 80, slabs: 3, slab: 16_000 };
        let a = Source { name: "a", address: 0x900, k: 200, columns: 5, pitch: 16, slabs: 1, slab: 0 };
        let one = Transposition::new([None, Some(b)]).unwrap().unwrap();
        assert_eq!(one.bytes, (256u64 * 70 * 3).next_multiple_of(1024));
        assert_eq!(one.results([None, Some(b)], 0x10_0000), [None, Some(0x10_0000)]);
        let both = Transposition::new([Some(a), Some(b)]).unwrap().unwrap();
        let [first, second] = both.at(0x10_0000).jobs;
        assert_eq!((first.to, second.to), (0x10_0000, 0x10_0000 + 2048));
        assert_eq!((first.tiles, second.tiles), (2, 6));
        assert_eq!((second.from_slab, second.to_slab), (1000, 256 * 70 / 16));
        assert!(Transposition::new([None, None]).unwrap().is_none());
    }

    #[test]
    fn what_the_kernel_cannot_count_is_refused() {
        let b = Source { name: "b", address: 0x100, k: 2, columns: 16, pitch: 1 << 33, slabs: 1, slab: 0 };
        let error = Transposition::new([None, Some(b)]).unwrap_err();
        assert!(matches!(error, Error::Overflow { argument: "b", .. }), "{error}");
    }
}
