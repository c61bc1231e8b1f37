//! Small cases of Blackwell's kernels, which all the same make every role loop: more tiles than accumulators, more stages
//! than a pipeline has.

use oxigemm::check::Logits;
use oxigemm::plan::{GemmConfig, OperandKind};
use oxigemm::{
    Activation, Addend, DType, Device, GemmLayout, GemmOptions, KGroupNumbers, ScaleBlock, Tensor,
    k_grouped_fp4_gemm_nt_contiguous, k_grouped_fp8_gemm_nt_contiguous, k_grouped_fp8_gemm_tn_contiguous,
    random, tf32_hc_prenorm_gemm,
};
use oxigemm_kernels::KernelId;
use oxigemm_kernels::attention::sm100::{self as logits, Keys};
use oxigemm_kernels::attention::{self, Heads};
use oxigemm_kernels::gemm::epilogue::fusion::Fusion;
use oxigemm_kernels::gemm::operand::f16::Major;
use oxigemm_kernels::gemm::scheduler::m_grouped::Grouping;
use oxigemm_kernels::gemm::{ElementType, GemmKernel};
use oxigemm_testkit::plan::operands_of;
use oxigemm_testkit::{
    AddendKind, Effort, EpilogueSpec, Failure, Gemm, GemmCase, GroupLayout, MGroups, ScaleOrder,
};

use super::attention::{
    PagedHost, PagedOperands, PagedSpec, PrefillHost, PrefillOperands, PrefillSpec, Ranges,
};
use super::hyper_connection::{HcHost, HcOperands, HcSpec};

/// One call by one kernel.
#[derive(Clone, Debug)]
pub enum Case {
    /// A GEMM of the test kit.
    Gemm(Box<GemmCase>, GemmConfig, Option<u32>),
    /// A k-grouped GEMM whose scales the tensor core applies: rows, columns, and the K of every group.
    KGrouped(GemmConfig, [usize; 2], Vec<usize>),
    /// A GEMM before the norm of a hyper-connection, on so many SMs.
    HyperConnection(HcSpec, u32),
    /// Logits of keys in one matrix, on so many SMs.
    Prefill(PrefillSpec, u32),
    /// Logits of keys in pages.
    Paged(PagedSpec),
}

/// Cases that together execute every instruction of a kernel; nothing where it has none of its own.
pub fn cases(id: KernelId) -> Vec<Case> {
    match id {
        KernelId::Gemm(kernel) => cases_of_gemm(&kernel),
        KernelId::Attention(attention::Config::Sm100(config)) => logits(&config),
        KernelId::HyperConnection(config) => {
            let n = config.columns as usize;
            // Parts of two rows of tiles and of splits of K for each of three CTAs.
            vec![
                Case::HyperConnection(HcSpec::new([140, n, 64 * 20 - 24], Some(3), 1), 3),
                Case::HyperConnection(HcSpec::new([3, n, 64 * 4], None, 2), 2),
            ]
        }
        _ => Vec::new(),
    }
}

/// Tiles of both accumulators, more of them than stages for each CTA, and more units than there are places for, with -inf
/// around them and pages that end within a tile.
fn logits(config: &logits::Config) -> Vec<Case> {
    let Heads { heads, dim } = config.heads;
    let (heads, format) = ([heads, dim].map(|x| x as usize), config.format);
    let queries = 3 * config.unit_queries() as usize + 1;
    match config.keys {
        Keys::Matrix => {
            let wide = PrefillSpec { format, ..PrefillSpec::new(heads, [queries, 700], Ranges::Causal) };
            let wild = PrefillSpec {
                form: Logits::Compressed,
                dtype: DType::Bf16,
                // Padded heads.
                heads: heads[0] - 8,
                queries: 9,
                keys: 300,
                ranges: Ranges::Wild,
                ..wide
            };
            vec![Case::Prefill(wide, 1), Case::Prefill(wild, 3)]
        }
        Keys::Pages => {
            let lengths = vec![1500, 0, 3, 300, 128];
            let long = PagedSpec { format, parts: Some(1), ..PagedSpec::new(heads, 3, lengths) };
            let wild = PagedSpec {
                format,
                dtype: DType::Bf16,
                page_keys: 16,
                parts: Some(3),
                per_query: true,
                wild: true,
                ..PagedSpec::new([heads[0] - 8, heads[1]], 2, vec![90, 200, 17, 1, -5, 64])
            };
            vec![Case::Paged(long), Case::Paged(wild)]
        }
    }
}

fn cases_of_gemm(kernel: &GemmKernel) -> Vec<Case> {
    let is_nvfp4 = operands_of(kernel).0.is_nvfp4();
    match (kernel.grouping(), kernel.fusion()) {
        // The calls of the test kit have a factor, which is an epilogue. Tests of the library run these kernels.
        (Grouping::Dense, Fusion::None) if is_nvfp4 => Vec::new(),
        _ if kernel.is_split_k() => split_k(kernel),
        (Grouping::Dense, Fusion::None) => dense(kernel),
        (Grouping::Dense, fusion) => fused(kernel, fusion),
        (Grouping::Rows, fusion) => m_grouped(kernel, fusion),
        (Grouping::K, _) => k_grouped(kernel),
    }
}

/// Rows of a cluster's tile, columns of it, and elements of K of a stage.
fn tile(kernel: &GemmKernel) -> [usize; 3] {
    let rows = kernel.tile()[0] * GemmConfig::of(*kernel).cluster[0];
    [rows, kernel.tile_columns(), kernel.operands().block_k()].map(|x| x as usize)
}

/// A K of so many stages and a remainder: of FP4 beside FP8, a whole stage.
fn depth(kernel: &GemmKernel, stages: usize) -> usize {
    let (kind, block_k) = (kernel.operands(), kernel.operands().block_k() as usize);
    stages * block_k + if kind.a.element == kind.b.element { 32 } else { block_k }
}

/// The SMs of one cluster, where a grid can be held back to them.
fn few_sms(config: &GemmConfig) -> Option<u32> {
    (!config.covers_d()).then_some(config.cluster_blocks())
}

/// By one cluster.
fn by_one(kernel: &GemmKernel, gemm: GemmCase) -> Case {
    let config = GemmConfig::of(*kernel);
    let gemm = GemmCase { e5m2: kernel.operands().e5m2(), ..gemm };
    Case::Gemm(Box::new(gemm), config, few_sms(&config))
}

fn dense(kernel: &GemmKernel) -> Vec<Case> {
    let ((types, layout), [rows, columns, _]) = (operands_of(kernel), tile(kernel));
    // Six tiles of two stages: each accumulator is read, written and read again, and so is each stage.
    let plain = GemmCase::dense(types, layout, [2 * rows + 5, columns + 8, depth(kernel, 1)]);
    let order = |order| if types.has_scales() { order } else { ScaleOrder::Row };
    let added = GemmCase {
        d_type: DType::F32,
        addend: AddendKind::Inplace,
        sfa: order(ScaleOrder::Mn),
        n: columns - 8,
        k: depth(kernel, 3),
        ..plain.clone()
    };
    let odd = GemmCase {
        d_padding: 1,
        addend: AddendKind::Other,
        m: rows - 61,
        ..GemmCase { d_type: DType::F32, n: columns + 5, ..plain.clone() }
    };
    [plain, added, odd].map(|gemm| by_one(kernel, gemm)).to_vec()
}

/// A rounded and a quantized epilogue; of NVFP4, whose tensor scales are its epilogue, none.
fn epilogues(kernel: &GemmKernel) -> Vec<Option<EpilogueSpec>> {
    let types = operands_of(kernel).0;
    if types.is_nvfp4() {
        return vec![None];
    }
    let rounded = EpilogueSpec {
        activation: Activation::Silu,
        gated: kernel.fusion() == Fusion::Gated,
        bias: Some(DType::Bf16),
        ..EpilogueSpec::NONE
    };
    let quantized =
        EpilogueSpec { quantized: Some((ScaleOrder::Row, oxigemm::cast::ScaleFormat::F32)), ..rounded };
    [rounded, quantized].map(|epilogue| Some(epilogue.beside(&types))).to_vec()
}

fn fused(kernel: &GemmKernel, fusion: Fusion) -> Vec<Case> {
    let ((types, layout), [rows, ..]) = (operands_of(kernel), tile(kernel));
    let n = 128 * fusion.accumulators() as usize;
    // With a gate there is one accumulator.
    let tiles = if fusion == Fusion::Gated { 1 } else { 4 };
    let of = |rows| GemmCase::dense(types, layout, [rows, n, depth(kernel, 1)]);
    let mut cases: Vec<Case> = epilogues(kernel)
        .into_iter()
        .map(|epilogue| by_one(kernel, GemmCase { epilogue, ..of(tiles * rows + 5) }))
        .collect();
    let added = GemmCase { d_type: DType::F32, addend: AddendKind::Inplace, ..of(rows - 61) };
    let epilogue = epilogues(kernel).swap_remove(0);
    cases.push(by_one(kernel, GemmCase { epilogue, ..added }));
    cases
}

fn m_grouped(kernel: &GemmKernel, fusion: Fusion) -> Vec<Case> {
    let ((types, layout), [rows, columns, _]) = (operands_of(kernel), tile(kernel));
    let n = if fusion == Fusion::None { columns - 8 } else { 128 * fusion.accumulators() as usize };
    let of = |layout_of_groups, sizes: Vec<usize>| {
        let groups = MGroups::new(layout_of_groups, sizes);
        let alignment = if layout_of_groups == GroupLayout::Ends { 16 } else { 1 };
        let groups = MGroups { alignment, ..groups };
        GemmCase { layout, ..GemmCase::m_grouped(types, groups, [n, depth(kernel, 3)]) }
    };
    let layouts = [GroupLayout::Counts, GroupLayout::Ids, GroupLayout::Ends];
    let sizes = [vec![rows / 2 + 2, 0, rows + 1], vec![rows + 3, 0, 17, 2, 1], vec![1, rows, 17, 3, 40]];
    let mut epilogues =
        if fusion == Fusion::None { vec![None] } else { epilogues(kernel) }.into_iter().cycle();
    let mut d_types = [types.d_types[0], DType::F32, types.d_types[0]].into_iter();
    let mut case = |layout, sizes| GemmCase {
        epilogue: epilogues.next().flatten(),
        d_type: d_types.next().unwrap_or(DType::F32),
        ..of(layout, sizes)
    };
    layouts.into_iter().zip(sizes).map(|(layout, sizes)| by_one(kernel, case(layout, sizes))).collect()
}

fn k_grouped(kernel: &GemmKernel) -> Vec<Case> {
    let [rows, columns, block_k] = tile(kernel);
    let dims = [rows - 61, columns - 8];
    // Groups without K, of whole stages, with a tail, and of more stages than a pipeline has.
    if kernel.operands().is_block_scaled() {
        let ks = vec![0, 2 * block_k, 96, 0, 6 * block_k + 32];
        return vec![Case::KGrouped(GemmConfig::of(*kernel), dims, ks)];
    }
    let (types, layout) = operands_of(kernel);
    let case = GemmCase::k_grouped(types, layout, vec![0, 1, 128, 72, 0, 389], dims);
    let halves = GemmCase { d_type: types.d_types[0], d_row_padding: 1, ..case.clone() };
    let added = GemmCase { addend: AddendKind::Inplace, ..case };
    [halves, added].map(|gemm| by_one(kernel, gemm)).to_vec()
}

fn split_k(kernel: &GemmKernel) -> Vec<Case> {
    let ((types, layout), fusion) = (operands_of(kernel), kernel.fusion());
    let (rows, n) = (kernel.tile()[0] as usize, 128 * fusion.accumulators() as usize);
    let of = |rows, stages| match kernel.is_summed() {
        true => GemmCase::summed(types, 2, [rows, n, depth(kernel, stages / 2)]),
        false => GemmCase::dense(types, layout, [rows, n, depth(kernel, stages)]),
    };
    let by = |gemm, epilogue, split_k, stages| {
        let config = GemmConfig { split_k, stages, ..GemmConfig::of(*kernel) };
        let gemm = GemmCase { epilogue, e5m2: kernel.operands().e5m2(), ..gemm };
        Case::Gemm(Box::new(gemm), config, None)
    };
    let epilogues = if fusion == Fusion::None { vec![None] } else { epilogues(kernel) };
    let (first, last) = (epilogues[0], epilogues[epilogues.len() - 1]);
    let wide = GemmCase { d_type: DType::F32, addend: AddendKind::Inplace, ..of(rows + 5, 6) };
    let mut cases = vec![by(of(rows, 6), first, 1, 3), by(of(rows - 3, 6), last, 2, 2)];
    cases.push(by(wide, first, 4, 2));
    cases
}

/// A case with its operands on a device, to be run again and again.
pub struct Loaded {
    work: Work,
    options: GemmOptions,
    /// What the outputs were before, where the test kit does not restore them.
    before: Vec<Vec<u8>>,
}

enum Work {
    Gemm(Box<Gemm>),
    KGrouped(KGrouped),
    HyperConnection(HcHost, HcOperands),
    Prefill(PrefillHost, PrefillOperands),
    Paged(PagedHost, PagedOperands),
}

impl Case {
    /// Draws operands and puts them on a device. Launches are programmatic.
    pub fn on(&self, device: &Device) -> Result<Loaded, Failure> {
        let options = GemmOptions { programmatic: true, ..GemmOptions::default() };
        let (work, options) = match self {
            Case::Gemm(gemm, config, num_sms) => (
                Work::Gemm(Box::new(gemm.on(device)?)),
                GemmOptions { config: Some(*config), num_sms: *num_sms, ..options },
            ),
            Case::KGrouped(config, dims, ks) => {
                let num_sms = few_sms(config);
                let work = KGrouped::on(config.kernel.operands(), *dims, ks, device)?;
                (Work::KGrouped(work), GemmOptions { config: Some(*config), num_sms, ..options })
            }
            Case::HyperConnection(spec, sms) => {
                let host = HcHost::draw(*spec);
                let operands = host.upload(device)?;
                (Work::HyperConnection(host, operands), GemmOptions { num_sms: Some(*sms), ..options })
            }
            Case::Prefill(spec, sms) => {
                let host = PrefillHost::draw(*spec);
                let operands = host.upload(device)?;
                (Work::Prefill(host, operands), GemmOptions { num_sms: Some(*sms), ..options })
            }
            Case::Paged(spec) => {
                let host = PagedHost::draw(spec.clone());
                let mut operands = host.upload(device)?;
                operands.plan(&options)?;
                (Work::Paged(host, operands), options)
            }
        };
        let mut loaded = Loaded { work, options, before: Vec::new() };
        loaded.before = loaded.others().iter().map(|d| d.to_bytes()).collect::<Result<_, _>>()?;
        Ok(loaded)
    }
}

impl Loaded {
    /// The outputs of what is no GEMM of the test kit.
    fn others(&mut self) -> Vec<&mut Tensor> {
        match &mut self.work {
            Work::Gemm(_) => Vec::new(),
            Work::KGrouped(gemm) => vec![&mut gemm.d],
            Work::HyperConnection(_, operands) => vec![&mut operands.d, &mut operands.sqr_sum],
            Work::Prefill(_, operands) => vec![&mut operands.logits],
            Work::Paged(_, operands) => vec![&mut operands.logits],
        }
    }

    /// Runs it, from the same output as ever.
    pub fn run(&mut self) -> Result<oxigemm::Result<()>, Failure> {
        if let Work::Gemm(gemm) = &mut self.work {
            gemm.poison()?;
            gemm.restore()?;
        }
        let before = std::mem::take(&mut self.before);
        for (output, bytes) in self.others().into_iter().zip(&before) {
            output.write_bytes(bytes)?;
        }
        self.before = before;
        Ok(self.launch())
    }

    fn launch(&mut self) -> oxigemm::Result<()> {
        match &mut self.work {
            Work::Gemm(gemm) => gemm.run(&self.options),
            Work::KGrouped(gemm) => gemm.run(&self.options),
            Work::HyperConnection(_, HcOperands { a, b, d, sqr_sum }) => {
                tf32_hc_prenorm_gemm(a, b, d, sqr_sum, &self.options)
            }
            Work::Prefill(_, operands) => operands.run(&self.options),
            Work::Paged(_, operands) => operands.run(&self.options),
        }
    }

    /// Runs it again, and touches memory in no other way.
    pub fn run_again(&mut self) -> oxigemm::Result<()> {
        self.launch()
    }

    /// The bytes of the result.
    pub fn bits(&mut self) -> Result<Vec<u8>, Failure> {
        if let Work::Gemm(gemm) = &self.work {
            return gemm.bits();
        }
        Ok(self.others().iter().map(|d| d.to_bytes()).collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// Whether the result is right.
    pub fn is_right(&mut self) -> Result<bool, Failure> {
        match &mut self.work {
            Work::Gemm(gemm) => Ok(gemm.judge(Effort::QUICK)?.right && gemm.surroundings_untouched()?),
            Work::KGrouped(gemm) => gemm.is_right(),
            Work::HyperConnection(host, operands) => Ok(host.judge(operands)?.right),
            Work::Prefill(host, operands) => Ok(host.judge(operands)?.right),
            Work::Paged(host, operands) => Ok(host.judge(operands)?.right),
        }
    }
}

/// A k-grouped GEMM of FP8 or FP4 operands with scales.
struct KGrouped {
    kind: OperandKind,
    dims: [usize; 2],
    ks: Vec<usize>,
    operands: [Tensor; 4],
    numbers: Tensor,
    d: Tensor,
}

impl KGrouped {
    fn on(kind: OperandKind, dims: [usize; 2], ks: &[usize], device: &Device) -> Result<KGrouped, Failure> {
        let numbers: Vec<i32> = ks.iter().map(|k| *k as i32).collect();
        let fp4 = kind.a.element == ElementType::E2m1;
        let (extent, block) = (ks.iter().sum::<usize>(), kind.scale_block.size() as usize);
        let k_first = kind.a.major == Major::MN;
        let operand = |seed, rows: usize| -> Result<[Tensor; 2], Failure> {
            // Groups whose K is a multiple of 32 follow each other without gaps.
            let (dtype, codes) = match fp4 {
                true => {
                    let codes = (0..(rows * extent / 2) as u64).map(|i| random::bits(seed, i) as u8);
                    (DType::U8, codes.collect())
                }
                false => (DType::E4m3, DType::E4m3.encode(&random::normals(seed, rows * extent))),
            };
            // K first, rows are whole vectors of 16 bytes apart.
            let pitch = rows.next_multiple_of(16);
            let codes = match k_first {
                true => {
                    let codes = DType::E4m3.encode(&random::normals(seed, pitch * extent));
                    Tensor::from_bytes(dtype, &codes, &[extent, pitch], device)?.narrow(1, 0, rows)?
                }
                false => Tensor::from_bytes(dtype, &codes, &[codes.len()], device)?,
            };
            let blocks: usize = ks.iter().map(|k| k.div_ceil(block)).sum();
            let scales: Vec<u8> =
                (0..(rows * blocks) as u64).map(|i| 120 + random::bits(seed + 1, i) as u8 % 16).collect();
            let dims = if k_first { [blocks, rows] } else { [rows, blocks] };
            Ok([codes, Tensor::from_bytes(DType::U8, &scales, &dims, device)?])
        };
        let ([a, sfa], [b, sfb]) = (operand(11, dims[0])?, operand(21, dims[1])?);
        Ok(KGrouped {
            kind,
            dims,
            ks: ks.to_vec(),
            operands: [a, sfa, b, sfb],
            numbers: Tensor::from_slice(&numbers, &[ks.len()], device)?,
            d: Tensor::zeros(DType::F32, &[ks.len(), dims[0], dims[1]], device)?,
        })
    }

    fn run(&mut self, options: &GemmOptions) -> oxigemm::Result<()> {
        let block: ScaleBlock = self.kind.scale_block;
        let options = &GemmOptions { scale_blocks: [Some(block); 2], ..options.clone() };
        let [a, sfa, b, sfb] = &self.operands;
        let (a, b, numbers) = ((a, sfa), (b, sfb), KGroupNumbers::Ks(&self.numbers));
        let (none, ks, d) = (Addend::None, Some(&self.ks[..]), &mut self.d);
        match (self.kind.a.element, self.kind.a.major) {
            (ElementType::E2m1, _) => k_grouped_fp4_gemm_nt_contiguous(a, b, none, d, numbers, ks, options),
            (_, Major::MN) => k_grouped_fp8_gemm_tn_contiguous(a, b, none, d, numbers, ks, options),
            (_, Major::K) => k_grouped_fp8_gemm_nt_contiguous(a, b, none, d, numbers, ks, options),
        }
    }

    /// Whether D is what the CPU makes of the same operands.
    fn is_right(&self) -> Result<bool, Failure> {
        let mut reference = KGrouped::on(self.kind, self.dims, &self.ks, &Device::Cpu)?;
        reference.run(&GemmOptions::default())?;
        let (found, expected) = (self.d.to_vec_f32()?, reference.d.to_vec_f32()?);
        let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
            found.iter().zip(&expected).map(|(x, y)| of(f64::from(*x), f64::from(*y)).powi(2)).sum()
        };
        Ok((sum(&|x, y| x - y) / sum(&|_, y| y)).sqrt() < 1e-6)
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Case::Gemm(gemm, ..) => gemm.fmt(f),
            Case::KGrouped(config, [m, n], ks) => {
                let layout = if config.kernel.operands().a.major == Major::K {
                    GemmLayout::Nt
                } else {
                    GemmLayout::Tn
                };
                write!(f, "k-grouped {layout} {m}x{n}, groups of K {ks:?}")
            }
            Case::HyperConnection(spec, sms) => write!(f, "{spec} on {sms} SMs"),
            Case::Prefill(spec, sms) => write!(f, "{spec} on {sms} SMs"),
            Case::Paged(spec) => spec.fmt(f),
        }
    }
}
