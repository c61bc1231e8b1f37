//! Products whose rows are grouped, for the simulator: with layouts of all kinds, poison where nothing may be written,
//! and the exact result.

use super::Scales;
use oxigemm::cast::{Quantized, ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
use oxigemm::plan::GemmConfig;
use oxigemm::{
    DType, Device, GemmOptions, GroupedRows, Result, Sim, Stream, Tensor, m_grouped_fp8_gemm_nt_contiguous,
    m_grouped_fp8_gemm_nt_masked, random, reference,
};
use oxigemm_kernels::gemm::scheduler::m_grouped::GroupLayout;

/// As bytes this is NaN in BF16 and FP32.
pub const POISON: u8 = 0xff;

#[derive(Clone, Debug)]
pub struct Case {
    pub layout: GroupLayout,
    /// Counts, ends or ids.
    pub numbers: Vec<i32>,
    pub groups: usize,
    /// Rows of a slab.
    pub rows: usize,
    pub alignment: usize,
    pub n: usize,
    pub k: usize,
    pub d_type: DType,
    pub scales: Scales,
    /// Elements behind each row of D.
    pub gap: usize,
    pub num_sms: Option<u32>,
}

impl Case {
    pub fn masked(counts: &[i32], [rows, n, k]: [usize; 3]) -> Case {
        Case {
            layout: GroupLayout::Counts,
            numbers: counts.to_vec(),
            groups: counts.len(),
            rows,
            alignment: 1,
            n,
            k,
            d_type: DType::Bf16,
            scales: Scales::RowMajor,
            gap: 0,
            num_sms: Some(2),
        }
    }

    pub fn ends(ends: &[i32], alignment: usize, dims: [usize; 3]) -> Case {
        Case { layout: GroupLayout::Ends, alignment, ..Case::masked(ends, dims) }
    }

    pub fn ids(ids: &[i32], groups: usize, alignment: usize, [n, k]: [usize; 2]) -> Case {
        Case { layout: GroupLayout::Ids, groups, alignment, ..Case::masked(ids, [ids.len(), n, k]) }
    }

    pub fn is_masked(&self) -> bool {
        self.layout == GroupLayout::Counts
    }

    pub fn slabs(&self) -> usize {
        if self.is_masked() { self.groups } else { 1 }
    }

    /// The rows of D that belong to each group, over all slabs.
    pub fn found(&self, numbers: &[i32]) -> Vec<std::ops::Range<usize>> {
        let (groups, rows, alignment) = (self.groups as u32, self.rows as u32, self.alignment as u32);
        let found = self.layout.rows(numbers, groups, rows, alignment).into_iter().enumerate();
        let at = |(group, rows): (usize, std::ops::Range<u32>)| {
            let first = if self.is_masked() { group * self.rows } else { 0 };
            first + rows.start as usize..first + rows.end as usize
        };
        found.map(at).collect()
    }
}

/// The ids of groups of these sizes, each padded with -1 to the alignment.
pub fn ids(sizes: &[usize], alignment: usize) -> Vec<i32> {
    let mut ids = Vec::new();
    for (group, &size) in sizes.iter().enumerate() {
        ids.extend(vec![group as i32; size]);
        ids.resize(ids.len().next_multiple_of(alignment), -1);
    }
    ids
}

/// The ends of groups of these sizes.
pub fn ends(sizes: &[usize], alignment: usize) -> Vec<i32> {
    let mut reached = 0usize;
    let end = |size: &usize| {
        // An empty group ends where it would have started, which moves no other.
        reached = if *size == 0 { reached } else { reached.next_multiple_of(alignment) + size };
        reached as i32
    };
    sizes.iter().map(end).collect()
}

/// The operands of a case on a simulated device, and its parts on the host.
#[derive(Clone)]
pub struct Problem {
    pub case: Case,
    pub device: Device,
    pub a: Tensor,
    pub sfa: Tensor,
    pub b: Tensor,
    pub sfb: Tensor,
    pub numbers: Tensor,
    host_a: Quantized,
    host_b: Vec<Quantized>,
}

impl Problem {
    pub fn new(case: Case, sim: &Sim) -> Problem {
        Problem::with_a(case, sim, |_| {})
    }

    /// Rows of no group hold no numbers, and neither do their scales.
    pub fn poisoned(case: Case, sim: &Sim) -> Problem {
        let found = case.found(&case.numbers);
        let blocks = case.k.div_ceil(128);
        Problem::with_a(case, sim, |a| {
            for row in (0..a.rows).filter(|row| !found.iter().any(|rows| rows.contains(row))) {
                a.codes[row * a.k..(row + 1) * a.k].fill(0x7f);
                a.scales[row * blocks..(row + 1) * blocks].fill(f32::NAN);
            }
        })
    }

    fn with_a(case: Case, sim: &Sim, change: impl FnOnce(&mut Quantized)) -> Problem {
        let device = Device::Sim(sim.clone());
        let (slabs, rows, n, k) = (case.slabs(), case.rows, case.n, case.k);
        let all = slabs * rows;
        let mut a = per_token_cast_to_fp8(&random::normals(1, all * k), all, k, ScaleFormat::F32).unwrap();
        change(&mut a);
        let b: Vec<Quantized> = (0..case.groups as u64)
            .map(|group| {
                let values = random::normals(10 + group, n * k);
                per_block_cast_to_fp8(&values, n, k, ScaleFormat::F32).unwrap()
            })
            .collect();
        let blocks = k.div_ceil(128);
        let list = |x: &Quantized| (x.codes.clone(), x.scales.clone());
        let (b_codes, b_scales): (Vec<_>, Vec<_>) = b.iter().map(list).unzip();
        let (b_codes, b_scales) = (b_codes.concat(), b_scales.concat());
        // A matrix of no groups has no leading dimension.
        let shape = |x: Tensor| if case.is_masked() { x } else { x.select(0).unwrap() };
        Problem {
            a: shape(codes(&a.codes, [slabs, rows, k], &device)),
            sfa: shape(scales(&a.scales, [slabs, rows, blocks], case.scales, &device)),
            b: codes(&b_codes, [case.groups, n, k], &device),
            sfb: scales(&b_scales, [case.groups, n.div_ceil(128), blocks], case.scales, &device),
            numbers: Tensor::from_slice(&case.numbers, &[case.numbers.len()], &device).unwrap(),
            host_a: a,
            host_b: b,
            device,
            case,
        }
    }

    /// The sums of all rows in FP32; what belongs to no group is no number.
    pub fn sums(&self) -> Vec<f32> {
        let mut all = self.clone();
        all.case = Case { d_type: DType::F32, gap: 0, ..self.case.clone() };
        let (mut sums, memory) = all.output();
        all.run(&mut sums, None, None).unwrap();
        memory.to_vec_f32().unwrap()
    }

    /// What B of each group means, row by row.
    pub fn b_values(&self) -> Vec<Vec<f32>> {
        self.host_b.iter().map(Quantized::dequantize).collect()
    }

    /// D in poisoned memory, and all of that memory.
    pub fn output(&self) -> (Tensor, Tensor) {
        let Case { rows, n, gap, d_type, .. } = self.case;
        let slabs = self.case.slabs();
        let pitch = n + gap;
        let len = slabs * rows * pitch;
        let poison = vec![POISON; len * d_type.size()];
        let memory = Tensor::from_bytes(d_type, &poison, &[slabs, rows, pitch], &self.device).unwrap();
        let d = memory.narrow(2, 0, n).unwrap();
        (if self.case.is_masked() { d } else { d.select(0).unwrap() }, memory)
    }

    pub fn run(&self, d: &mut Tensor, choice: Option<GemmConfig>, stream: Option<Stream>) -> Result<()> {
        let options =
            GemmOptions { config: choice, num_sms: self.case.num_sms, stream, ..Default::default() };
        let (a, b) = ((&self.a, &self.sfa), (&self.b, &self.sfb));
        let rows = match self.case.layout {
            GroupLayout::Counts => {
                return m_grouped_fp8_gemm_nt_masked(a, b, d, &self.numbers, 20, &options);
            }
            GroupLayout::Ends => GroupedRows::Ends(&self.numbers),
            GroupLayout::Ids => GroupedRows::Ids(&self.numbers),
            GroupLayout::All => panic!("these have numbers"),
        };
        m_grouped_fp8_gemm_nt_contiguous(a, b, d, rows, self.case.alignment, None, &options)
    }

    /// The bits of all of D's memory, once what belongs to groups was found right and the rest untouched.
    pub fn checked(&self, choice: Option<GemmConfig>, about: &str) -> Vec<u8> {
        let (mut d, memory) = self.output();
        self.run(&mut d, choice, None).unwrap_or_else(|error| panic!("{about}: {error}"));
        let bytes = memory.to_bytes().unwrap();
        self.check(&bytes, &self.case.numbers, about);
        bytes
    }

    /// Whether the memory of D holds what these numbers make of it, and poison elsewhere.
    pub fn check(&self, bytes: &[u8], numbers: &[i32], about: &str) {
        let Case { n, k, gap, d_type, .. } = self.case;
        let (size, pitch) = (d_type.size(), n + gap);
        let mut belongs = vec![false; self.case.slabs() * self.case.rows];
        for (group, rows) in self.case.found(numbers).into_iter().enumerate() {
            let wanted: Vec<usize> = rows.clone().collect();
            wanted.iter().for_each(|&row| belongs[row] = true);
            let of_b = &self.host_b[group].as_matrix();
            let exact = reference::fp8_gemm_nt_rows(&self.host_a.as_matrix(), of_b, &wanted).unwrap();
            for (&row, exact) in wanted.iter().zip(exact.chunks(n)) {
                let found = d_type.decode(&bytes[row * pitch * size..][..n * size]);
                for (column, (found, exact)) in found.iter().zip(exact).enumerate() {
                    // The rounding to BF16, and the 13 bits that the tensor core keeps of a sum.
                    let allowed = exact.abs() / 256.0 + 0.03 * (k as f64).sqrt();
                    let error = (f64::from(*found) - exact).abs();
                    assert!(error <= allowed, "{about}: row {row} column {column}: {found} and not {exact}");
                }
            }
        }
        for (row, line) in bytes.chunks(pitch * size).enumerate() {
            let outside = if belongs[row] { &line[n * size..] } else { line };
            assert!(outside.iter().all(|byte| *byte == POISON), "{about}: row {row} was written to");
        }
    }
}

/// Matrices of K codes a row, each row padded to 16 bytes.
fn codes(codes: &[u8], [slabs, rows, k]: [usize; 3], device: &Device) -> Tensor {
    let pitch = k.next_multiple_of(16);
    let mut bytes = vec![0x7f; slabs * rows * pitch];
    for (row, codes) in codes.chunks(k).enumerate() {
        bytes[row * pitch..][..k].copy_from_slice(codes);
    }
    let whole = Tensor::from_bytes(DType::E4m3, &bytes, &[slabs, rows, pitch], device).unwrap();
    whole.narrow(2, 0, k).unwrap()
}

fn scales(values: &[f32], [slabs, rows, blocks]: [usize; 3], layout: Scales, device: &Device) -> Tensor {
    let (before, pitch) = match layout {
        Scales::RowMajor => (0, blocks.next_multiple_of(4)),
        Scales::MnMajor => (0, rows.next_multiple_of(4)),
        Scales::Odd => (1, blocks | 1),
    };
    let lines = if matches!(layout, Scales::MnMajor) { blocks } else { rows };
    let len = slabs * lines * pitch;
    // The copy engine reads whole lines, whose last numbers are no scales.
    let memory =
        Tensor::from_f32(DType::F32, &vec![f32::NAN; before + len], &[before + len], device).unwrap();
    let lines = memory.narrow(0, before, len).unwrap().view(&[slabs, lines, pitch]).unwrap();
    let mut scales = match layout {
        Scales::MnMajor => lines.narrow(2, 0, rows).unwrap().transpose(1, 2).unwrap(),
        Scales::RowMajor | Scales::Odd => lines.narrow(2, 0, blocks).unwrap(),
    };
    scales.write_f32(values).unwrap();
    scales
}
