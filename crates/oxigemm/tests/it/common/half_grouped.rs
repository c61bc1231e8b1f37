//! Products with 16-bit operands whose rows are grouped, for the simulator: poison where nothing may be written, and
//! the exact result.

use super::C;
use super::grouped::{self, POISON};
use oxigemm::plan::GemmConfig;
use oxigemm::{
    Addend, DType, Device, GemmLayout, GemmOptions, GroupedRows, Result, RowGroups, Sim, Stream, Tensor,
    m_grouped_half_gemm, random, reference,
};
use oxigemm_kernels::gemm::scheduler::m_grouped::GroupLayout;

#[derive(Clone, Debug)]
pub struct Case {
    /// The groups, N, K, and the type of D.
    pub of: grouped::Case,
    pub layout: GemmLayout,
    pub ab_type: DType,
    pub c: C,
    /// Where groups are masked.
    pub expected_m: usize,
}

impl Case {
    /// BF16 of layout `nt`, nothing added.
    pub fn new(of: grouped::Case) -> Case {
        Case { of, layout: GemmLayout::Nt, ab_type: DType::Bf16, c: C::None, expected_m: 20 }
    }
}

/// The operands of a case on a simulated device, and their values on the host.
pub struct Problem {
    pub case: Case,
    pub device: Device,
    pub a: Tensor,
    pub b: Tensor,
    pub numbers: Tensor,
    host_a: Vec<f32>,
    host_b: Vec<Vec<f32>>,
    host_c: Vec<f32>,
}

impl Problem {
    pub fn new(case: Case, sim: &Sim) -> Problem {
        Problem::with_a(case, sim, |_, _| {})
    }

    /// Rows of no group hold no numbers.
    pub fn poisoned(case: Case, sim: &Sim) -> Problem {
        let found = case.of.found(&case.of.numbers);
        Problem::with_a(case, sim, |row, a| {
            if !found.iter().any(|rows| rows.contains(&row)) {
                a.fill(f32::NAN);
            }
        })
    }

    fn with_a(case: Case, sim: &Sim, change: impl Fn(usize, &mut [f32])) -> Problem {
        let device = Device::Sim(sim.clone());
        let grouped::Case { groups, rows, n, k, ref numbers, .. } = case.of;
        let slabs = case.of.slabs();
        let values = |seed, len| case.ab_type.decode(&case.ab_type.encode(&random::normals(seed, len)));
        let mut host_a = values(1, slabs * rows * k);
        host_a.chunks_mut(k).enumerate().for_each(|(row, a)| change(row, a));
        let host_b: Vec<Vec<f32>> = (0..groups as u64).map(|group| values(10 + group, n * k)).collect();
        let of_group = |b: &Vec<f32>| match case.layout.b_begins_with_k() {
            true => (0..k * n).map(|i| b[i % n * k + i / n]).collect(),
            false => b.clone(),
        };
        let flat_b: Vec<f32> = host_b.iter().flat_map(of_group).collect();
        let b_dims = if case.layout.b_begins_with_k() { [groups, k, n] } else { [groups, n, k] };
        let a = padded(case.ab_type, &host_a, [slabs, rows, k], &device);
        // Values that every type has.
        let host_c = random::normals(3, slabs * rows * n).iter().map(|x| (x * 16.0).round()).collect();
        Problem {
            a: if case.of.is_masked() { a } else { a.select(0).unwrap() },
            b: padded(case.ab_type, &flat_b, b_dims, &device),
            numbers: Tensor::from_slice(numbers, &[numbers.len()], &device).unwrap(),
            host_a,
            host_b,
            host_c,
            device,
            case,
        }
    }

    /// A matrix like D, holding C or poison, and all of its memory.
    pub fn output(&self, holds_c: bool) -> (Tensor, Tensor) {
        let grouped::Case { rows, n, gap, d_type, .. } = self.case.of;
        let dims = [self.case.of.slabs(), rows, n + gap];
        let poison = vec![POISON; dims.iter().product::<usize>() * d_type.size()];
        let memory = Tensor::from_bytes(d_type, &poison, &dims, &self.device).unwrap();
        let mut d = memory.narrow(2, 0, n).unwrap();
        if holds_c {
            d.write_f32(&self.host_c).unwrap();
        }
        (if self.case.of.is_masked() { d } else { d.select(0).unwrap() }, memory)
    }

    /// Where the groups are.
    pub fn groups(&self) -> RowGroups<'_> {
        let contiguous =
            |rows| RowGroups::Contiguous { rows, alignment: self.case.of.alignment, expected_m: None };
        match self.case.of.layout {
            GroupLayout::Counts => {
                RowGroups::Masked { masked_m: &self.numbers, expected_m: self.case.expected_m }
            }
            GroupLayout::Ends => contiguous(GroupedRows::Ends(&self.numbers)),
            GroupLayout::Ids => contiguous(GroupedRows::Ids(&self.numbers)),
            GroupLayout::All => panic!("these have numbers"),
        }
    }

    pub fn run(&self, d: &mut Tensor, choice: Option<GemmConfig>, stream: Option<Stream>) -> Result<()> {
        let options =
            GemmOptions { config: choice, num_sms: self.case.of.num_sms, stream, ..Default::default() };
        // Nothing is allocated for other cases: some of them are captured.
        let other = matches!(self.case.c, C::Other).then(|| self.output(true).0);
        let c = match self.case.c {
            C::None => Addend::None,
            C::InPlace => Addend::InPlace,
            C::Other => Addend::From(other.as_ref().expect("it was made")),
        };
        m_grouped_half_gemm(self.case.layout, &self.a, &self.b, c, d, self.groups(), &options)
    }

    /// The bits of all of D's memory, once what belongs to groups was found right and the rest untouched.
    pub fn checked(&self, choice: Option<GemmConfig>, about: &str) -> Vec<u8> {
        let (mut d, memory) = self.output(matches!(self.case.c, C::InPlace));
        let before = memory.to_bytes().unwrap();
        self.run(&mut d, choice, None).unwrap_or_else(|error| panic!("{about}: {error}"));
        let bytes = memory.to_bytes().unwrap();
        self.check(&before, &bytes, &self.case.of.numbers, about);
        bytes
    }

    /// Whether the memory of D holds what these numbers make of it, and what it held before elsewhere.
    pub fn check(&self, before: &[u8], bytes: &[u8], numbers: &[i32], about: &str) {
        let grouped::Case { rows, n, k, gap, d_type, .. } = self.case.of;
        let (size, pitch) = (d_type.size(), n + gap);
        let all = self.case.of.slabs() * rows;
        let mut belongs = vec![false; all];
        let rounding = match d_type {
            DType::Bf16 => 2f64.powi(-8),
            DType::F16 => 2f64.powi(-11),
            _ => 0.0,
        };
        for (group, rows) in self.case.of.found(numbers).into_iter().enumerate() {
            let wanted: Vec<usize> = rows.clone().collect();
            wanted.iter().for_each(|&row| belongs[row] = true);
            let dims = [all, n, k];
            let exact = reference::gemm_nt_rows(&self.host_a, &self.host_b[group], dims, &wanted).unwrap();
            for (&row, exact) in wanted.iter().zip(exact.chunks(n)) {
                let found = d_type.decode(&bytes[row * pitch * size..][..n * size]);
                for (column, (found, exact)) in found.iter().zip(exact).enumerate() {
                    let added =
                        if matches!(self.case.c, C::None) { 0.0 } else { self.host_c[row * n + column] };
                    let exact = exact + f64::from(added);
                    // The rounding of the result, and the truncation of FP32 sums.
                    let allowed = (exact.abs() + 1e-3) * rounding
                        + 1e-5 * (k as f64).sqrt()
                        + 1e-5 * (exact.abs() + f64::from(added).abs());
                    let error = (f64::from(*found) - exact).abs();
                    assert!(error <= allowed, "{about}: row {row} column {column}: {found} and not {exact}");
                }
            }
        }
        for (row, (line, old)) in bytes.chunks(pitch * size).zip(before.chunks(pitch * size)).enumerate() {
            let from = if belongs[row] { n * size } else { 0 };
            assert!(line[from..] == old[from..], "{about}: row {row} was written to");
        }
    }
}

/// Matrices whose rows begin at multiples of 16 bytes; what lies between them is NaN.
fn padded(dtype: DType, values: &[f32], [slabs, rows, columns]: [usize; 3], device: &Device) -> Tensor {
    let pitch = columns.next_multiple_of(8);
    let mut all = vec![f32::NAN; slabs * rows * pitch];
    for (row, values) in values.chunks(columns).enumerate() {
        all[row * pitch..][..columns].copy_from_slice(values);
    }
    Tensor::from_f32(dtype, &all, &[slabs, rows, pitch], device).unwrap().narrow(2, 0, columns).unwrap()
}
