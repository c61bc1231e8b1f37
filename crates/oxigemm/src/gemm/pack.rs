//! Scales as words, for kernels whose tensor core applies them: word `(row, word)` is at
//! `base + 4 * (row * stride_mn + word * stride_k)`, and has four scales of a row along K, the first in the lowest byte.
//!
//! Words are read where they lie, and so are bytes that are whole words. All others are packed by one kernel into a
//! workspace of the stream.

use oxigemm_kernels::KernelId;
use oxigemm_kernels::gemm::OperandKind;
use oxigemm_kernels::gemm::pack_scales::{COLUMNS, Job, blocks, launch};

use crate::check::gemm::scales::ScaleWords;
use crate::check::{Groups, Problem};
use crate::device::backend::Backend;
use crate::device::launch::{KernelArg, KernelLaunch};
use crate::error::{Error, Result};
use crate::launch::geometry;
use crate::tensor::desc::ScaleStrides;
use crate::tensor::dtype::DType;

/// Alignment of what lies in a workspace, in bytes.
const ALIGNMENT: u64 = 1024;

/// Packing of the scales of a checked GEMM.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packing {
    /// Jobs with results at offsets of the workspace; empty where words are read as they lie.
    jobs: [Job; 2],
    bytes: u64,
}

/// Words of one operand: strides, and from one slab to the next.
type Words = (ScaleStrides, u32);

impl Packing {
    /// For a checked GEMM, with the GEMM of the words; `None` where all are read as they lie.
    pub fn new(
        problem: &Problem,
        (family, words): (OperandKind, [ScaleWords; 2]),
    ) -> Result<(Problem, Option<Packing>)> {
        let mut packing = Packing { jobs: [Job::default(); 2], bytes: 0 };
        let mut layouts = [(ScaleStrides::NONE, 0); 2];
        for ((words, job), layout) in words.iter().zip(&mut packing.jobs).zip(&mut layouts) {
            *layout = match words.as_they_lie()? {
                Some(layout) => layout,
                None => {
                    let (layout, packed) = words.packed(packing.bytes)?;
                    *job = packed;
                    packing.bytes += (words.slabs * u64::from(layout.1) * 4).next_multiple_of(ALIGNMENT);
                    layout
                }
            };
        }
        let [first, second] = packing.jobs.map(|job| u64::from(job.blocks));
        if first + second > i32::MAX as u64 {
            return Err(words[0].too_many());
        }
        let [(sfa, sfa_slab), (sfb, sfb_group)] = layouts;
        let groups = problem.groups.map(|groups| Groups { sfa_slab, sfb_group, ..groups });
        let problem = Problem { family, sfa, sfb, groups, ..*problem };
        Ok((problem, (packing.bytes > 0).then_some(packing)))
    }

    /// For a checked GEMM of which these words of B alone are read, with the GEMM of the words.
    pub fn of_b(
        problem: &Problem,
        (family, words): (OperandKind, ScaleWords),
    ) -> Result<(Problem, Option<Packing>)> {
        let mut packing = Packing { jobs: [Job::default(); 2], bytes: 0 };
        let (sfb, sfb_group) = match words.as_they_lie()? {
            Some(layout) => layout,
            None => {
                let (layout, job) = words.packed(0)?;
                packing.jobs[1] = job;
                packing.bytes = words.slabs * u64::from(layout.1) * 4;
                layout
            }
        };
        let groups = problem.groups.map(|groups| Groups { sfb_group, ..groups });
        let problem = Problem { family, sfb, groups, ..*problem };
        Ok((problem, (packing.bytes > 0).then_some(packing)))
    }

    /// Bytes of the workspace.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Offsets of the words of A and B in the workspace, where they are packed.
    pub fn offsets(&self) -> [Option<u64>; 2] {
        self.jobs.map(|job| (job.blocks > 0).then_some(job.to))
    }

    /// Puts the kernel that packs into a stream.
    ///
    /// # Safety
    /// As for [`RewrittenScales::launch`](super::scales::RewrittenScales::launch).
    pub unsafe fn launch<B: Backend>(
        &self,
        backend: &B,
        workspace: u64,
        stream: B::Stream<'_>,
        programmatic: bool,
    ) -> Result<()> {
        let [first, second] = self.jobs.map(|job| Job { to: workspace + job.to, ..job }.values());
        let mut params = [KernelArg::U32(0); 2 * Job::COUNT];
        params[..Job::COUNT].copy_from_slice(&first);
        params[Job::COUNT..].copy_from_slice(&second);
        let kernel = KernelLaunch {
            kernel: KernelId::PackScales(backend.limits().arch),
            geometry: geometry(&launch(&self.jobs)),
            programmatic,
            params,
        };
        // SAFETY: the caller's promise; the arguments are those of the kernel.
        unsafe { backend.launch(&kernel, stream) }
    }
}

impl ScaleWords {
    /// The words of a row.
    fn words(&self) -> u32 {
        self.columns.div_ceil(COLUMNS)
    }

    /// Strides of the words where kernels read them as they lie.
    fn as_they_lie(&self) -> Result<Option<Words>> {
        if self.row_shift != 0 || self.column_shift != 0 || self.from.dtype == DType::F32 {
            return Ok(None);
        }
        let (strides, memory) = self.from.slab().scale_strides()?;
        let (slab, _) = self.from.scale_slabs(strides, memory)?;
        if self.from.dtype == DType::I32 {
            return Ok(Some((strides, slab)));
        }
        // Bytes are words where each row is a number of aligned ones.
        let ScaleStrides { mn, k } = strides;
        let mn = if self.rows > 1 { mn } else { COLUMNS };
        let aligned = [self.columns, mn, slab].iter().all(|x| x.is_multiple_of(COLUMNS));
        let whole = k == 1 && aligned && self.from.address.is_multiple_of(COLUMNS.into());
        Ok(whole.then_some((ScaleStrides { mn: mn / COLUMNS, k: 1 }, slab / COLUMNS)))
    }

    /// Words at an offset of the workspace, MN-major, and the job that packs them.
    fn packed(&self, to: u64) -> Result<(Words, Job)> {
        let fits = |x: Option<u32>| x.ok_or_else(|| self.too_many());
        let pitch = self.rows.next_multiple_of(4);
        let slab = fits(pitch.checked_mul(self.words()).filter(|words| *words <= i32::MAX as u32))?;
        let source = self.from.slab();
        let ScaleStrides { mn, k } = source.scale_strides()?.0;
        let (is_words, is_f32) = (self.from.dtype == DType::I32, self.from.dtype == DType::F32);
        let several = self.from.rank == 3 && self.from.dims[0] > 1;
        let job = Job {
            from: self.from.address,
            to,
            from_slab: if several { self.from.strides[0] as u64 } else { 0 },
            rows: self.rows,
            columns: self.columns,
            row_stride: mn,
            word_stride: if is_words { k } else { fits(k.checked_mul(COLUMNS))? },
            byte_stride: match (is_words, is_f32) {
                (true, _) => 1,
                (false, true) => fits(k.checked_mul(4))?,
                (false, false) => k,
            },
            shift: if is_words || is_f32 { 2 } else { 0 },
            row_shift: self.row_shift,
            column_shift: self.column_shift,
            pitch,
            blocks: fits(u32::try_from(blocks(self.slabs, self.rows, self.columns)).ok())?,
            is_f32: is_f32.into(),
        };
        Ok(((ScaleStrides { mn: 1, k: pitch }, slab), job))
    }

    fn too_many(&self) -> Error {
        Error::Overflow {
            argument: self.from.name,
            expected: "scales that a kernel can count".to_owned(),
            found: "too many, or too far apart".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use oxigemm_kernels::Arch;
    use oxigemm_kernels::gemm::params::{ScaleBlock, ScalesOfB};
    use oxigemm_kernels::gemm::{ElementType, pack_scales};

    use super::super::scales::{RewrittenScales, rewritten};
    use crate::check::gemm::tensors::Gemm;
    use crate::check::{Checked, Problem};
    use crate::device::Device;
    use crate::device::backend::{Backend, with_backend};
    use crate::error::Result;
    use crate::launch::args::Addresses;
    use crate::random;
    use crate::tensor::Tensor;
    use crate::tensor::desc::ScaleStrides;
    use crate::tensor::dtype::DType;

    /// Codes `[rows, columns]` of some numbers, not those that are NaN.
    fn codes(seed: u64, count: usize) -> Vec<u8> {
        (0..count as u64).map(|i| (100 + random::bits(seed, i) % 60) as u8).collect()
    }

    /// Scales of such codes, `[rows, columns]`, as a tensor of a type; MN-major where wanted.
    fn scales(codes: &[u8], [rows, columns]: [usize; 2], dtype: DType, mn: bool, device: &Device) -> Tensor {
        let words = columns.div_ceil(4);
        let (width, bytes): (usize, Vec<u8>) = match dtype {
            DType::F32 => {
                let value = |code: &u8| f32::from_bits(u32::from(*code) << 23 | 0x12_3456);
                (columns, codes.iter().flat_map(|code| value(code).to_le_bytes()).collect())
            }
            DType::I32 => {
                let row = |row: &[u8]| [row, &vec![0; 4 * words - columns]].concat();
                (words, codes.chunks(columns).flat_map(row).collect())
            }
            _ => (columns, codes.to_vec()),
        };
        let tensor = Tensor::from_bytes(dtype, &bytes, &[rows, width], device).unwrap();
        if !mn {
            return tensor;
        }
        let flipped = tensor.transpose(0, 1).unwrap();
        let mut memory = Tensor::zeros(dtype, flipped.dims(), device).unwrap();
        memory.copy_from(&flipped).unwrap();
        memory.transpose(0, 1).unwrap()
    }

    /// The problem of a GEMM on Blackwell, and the workspace with its packed words.
    fn run(gemm: &Gemm<'_>) -> Result<(Problem, Addresses, bool)> {
        let (desc, device) = (gemm.describe(), gemm.a.device());
        let unpacked = desc.unpacked()?;
        let as_f32 = unpacked.as_ref().map_or(&desc, |(desc, _)| desc);
        let Checked::Launch(problem) = as_f32.check()? else { panic!("there is work to do") };
        let codes = unpacked.as_ref().map(|(_, codes)| codes);
        let (problem, packing) = rewritten(Arch::Sm100a, &desc, as_f32, codes, problem)?;
        let own = desc.addresses();
        let Some(packing) = packing else { return Ok((problem, own, false)) };
        assert!(matches!(packing, RewrittenScales::Packed(_)) && !packing.is_optional());
        let workspace = with_backend!(device, backend => {
            let stream = backend.stream(None)?;
            let workspace = backend.workspace(stream, packing.bytes())?;
            // SAFETY: the tensors live on, and the workspace is as large as was asked for.
            unsafe { packing.launch(backend, workspace, stream, false) }.map(|()| workspace)
        })?;
        Ok((problem, packing.addresses(own, workspace), true))
    }

    /// Bytes of the simulator's memory.
    fn read(device: &Device, address: u64, bytes: usize) -> Result<Vec<u8>> {
        let read = Tensor::zeros(DType::U8, &[bytes], device)?;
        let pitch = bytes as u64;
        with_backend!(device, backend => {
            let stream = backend.stream(None)?;
            // SAFETY: the workspace is as large, and apart from this tensor.
            unsafe { backend.copy_rows([read.address(), pitch], [address, pitch], bytes, 1, stream) }
        })?;
        read.to_bytes()
    }

    /// Checks the words of an operand: `expected` gives the byte of a slab, row and column.
    fn expect_words(
        device: &Device,
        address: u64,
        (ScaleStrides { mn, k }, slab): (ScaleStrides, u32),
        [slabs, rows, columns]: [usize; 3],
        expected: impl Fn(usize, usize, usize) -> u8,
    ) -> Result<()> {
        let [mn, k, slab] = [mn, k, slab].map(|stride| stride as usize);
        let word = |s: usize, row: usize, word: usize| 4 * (s * slab + row * mn + word * k);
        let words = columns.div_ceil(4);
        let bytes = read(device, address, word(slabs - 1, rows - 1, words - 1) + 4)?;
        for (s, row) in (0..slabs).flat_map(|s| (0..rows).map(move |row| (s, row))) {
            for column in 0..4 * words {
                let wanted = if column < columns { expected(s, row, column) } else { 0 };
                let found = bytes[word(s, row, column / 4) + column % 4];
                assert_eq!(found, wanted, "slab {s}, row {row}, column {column}");
            }
        }
        Ok(())
    }

    fn operand(rows: usize, k: usize, dtype: DType, device: &Device) -> Tensor {
        let columns = if dtype == DType::U8 { k / 2 } else { k };
        let pitch = columns.next_multiple_of(32);
        Tensor::zeros(dtype, &[rows, pitch], device).unwrap().narrow(1, 0, columns).unwrap()
    }

    /// Every type of scales in every order, of every granularity, becomes the same words.
    #[test]
    fn scales_become_words() -> Result<()> {
        let (m, n, device) = (37, 300, &Device::sim());
        let (e4m3, fp4) = (DType::E4m3, DType::U8);
        for (types, k, block_a, [rows_of_b, block_b]) in [
            ([e4m3; 2], 1184usize, 128usize, [128usize, 128usize]),
            ([e4m3; 2], 640, 128, [1, 128]),
            ([e4m3; 2], 416, 32, [1, 32]),
            ([e4m3; 2], 160, 32, [32, 32]),
            ([fp4; 2], 352, 32, [1, 32]),
            ([e4m3, fp4], 640, 128, [1, 32]),
            ([fp4, e4m3], 1408, 32, [128, 128]),
        ] {
            let finest = usize::min(block_a, block_b);
            let (columns, of_a, of_b) = (k.div_ceil(finest), k.div_ceil(block_a), k.div_ceil(block_b));
            let source_rows = usize::div_ceil(n, rows_of_b);
            let (codes_a, codes_b) = (codes(1, m * of_a), codes(2, source_rows * of_b));
            for (dtype, mn) in
                [DType::F32, DType::U8, DType::I32].into_iter().flat_map(|x| [(x, true), (x, false)])
            {
                let about = format!("{types:?} k {k} {block_a} {rows_of_b}x{block_b}, {dtype} {mn}");
                let (a, b) = (operand(m, k, types[0], device), operand(n, k, types[1], device));
                let sfa = scales(&codes_a, [m, of_a], dtype, mn, device);
                let sfb = scales(&codes_b, [source_rows, of_b], dtype, mn, device);
                let d = Tensor::zeros(DType::Bf16, &[m, n], device)?;
                let hint =
                    |block: usize| Some(if block == 32 { ScaleBlock::Of32 } else { ScaleBlock::Of128 });
                let gemm = Gemm {
                    scale_blocks: [hint(block_a), hint(block_b)],
                    ..Gemm::fp8_fp4((&a, &sfa), (&b, &sfb), &d)
                };
                let (problem, at, packed) = run(&gemm).unwrap_or_else(|error| panic!("{about}: {error}"));
                let family = problem.family;
                assert!(family.is_block_scaled(), "{about}");
                assert_eq!(family.scale_block.size() as usize, finest, "{about}");
                let element = |dtype| if dtype == fp4 { ElementType::E2m1 } else { ElementType::E4m3 };
                assert_eq!([family.a.element, family.b.element], types.map(element), "{about}");
                // Words of the same granularity are read where they lie.
                let same = block_a == block_b && (rows_of_b == 1 || finest == 128);
                assert!(!(dtype == DType::I32 && same && packed), "{about}");
                let blocks = family.scales == Some(ScalesOfB::Blocks);
                assert_eq!(blocks, rows_of_b == 128 && finest == 128, "{about}");
                let (rows, per_row) = if blocks { (source_rows, 1) } else { (n, rows_of_b) };
                expect_words(device, at.sfa, (problem.sfa, 0), [1, m, columns], |_, row, column| {
                    codes_a[row * of_a + column * finest / block_a]
                })?;
                expect_words(device, at.sfb, (problem.sfb, 0), [1, rows, columns], |_, row, column| {
                    codes_b[row / per_row * of_b + column * finest / block_b]
                })?;
            }
        }
        Ok(())
    }

    /// One scale for all of a dimension, of groups that share theirs, and bytes that are whole words.
    #[test]
    fn scales_that_hold_for_all_are_repeated() -> Result<()> {
        let (groups, m, n, k, device) = (3, 9, 70, 256, &Device::sim());
        let a = Tensor::zeros(DType::U8, &[groups, m, k / 2], device)?;
        let b = Tensor::zeros(DType::U8, &[groups, n, k / 2], device)?;
        let d = Tensor::zeros(DType::Bf16, &[groups, m, n], device)?;
        let (codes_a, codes_b) = (codes(1, groups * m * 8), codes(2, n));
        // Eight bytes of a row are two words.
        let sfa = Tensor::from_bytes(DType::U8, &codes_a, &[groups, m, 8], device)?;
        let sfb = scales(&codes_b, [n, 1], DType::F32, false, device).view(&[1, n, 1])?;
        let gemm = Gemm {
            grouping: crate::check::gemm::tensors::Grouping::Batched,
            ..Gemm::fp8_fp4((&a, &sfa), (&b, &sfb), &d)
        };
        let (problem, at, packed) = run(&gemm)?;
        let of = problem.groups.expect("a batch has groups");
        assert!(packed && at.sfa == sfa.address() && problem.sfa == ScaleStrides { mn: 2, k: 1 });
        expect_words(device, at.sfa, (problem.sfa, of.sfa_slab), [groups, m, 8], |slab, row, column| {
            codes_a[(slab * m + row) * 8 + column]
        })?;
        expect_words(device, at.sfb, (problem.sfb, of.sfb_group), [groups, n, 8], |_, row, _| codes_b[row])
    }

    #[test]
    fn the_exponent_of_an_fp32_scale_is_cut_from_it() {
        for (scale, code) in [(1.0, 127), (1.999, 127), (0.9, 126), (f32::MIN_POSITIVE / 2.0, 0)] {
            assert_eq!(pack_scales::exponent(scale), code);
        }
    }
}
