//! GEMMs before the norm of a hyper-connection: random operands, the call, and whether its result is right.

use std::fmt;

use oxigemm::metrics::calc_diff;
use oxigemm::{DType, Device, GemmOptions, Tensor, random, reference, tf32_hc_prenorm_gemm};
use rayon::prelude::*;

use oxigemm_testkit::memory::dense;
use oxigemm_testkit::{Failure, Verdict};

/// The largest distance from the exact product with weights of TF32. (The peer's tests allow 1e-8, from torch's.)
const DIFF_LIMIT: f64 = 1e-9;
/// Rows of a large case that are looked at.
const SAMPLED: usize = 64;

/// A GEMM.
#[derive(Clone, Copy, Debug)]
pub struct HcSpec {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub splits: Option<usize>,
    /// Whether operands end where their memory does.
    pub at_end: bool,
    pub seed: u64,
}

impl HcSpec {
    pub fn new([m, n, k]: [usize; 3], splits: Option<usize>, seed: u64) -> HcSpec {
        HcSpec { m, n, k, splits, at_end: false, seed }
    }

    /// Bytes that cross the memory bus at least once.
    pub fn bytes(&self) -> f64 {
        let splits = self.splits.unwrap_or(1);
        (self.m * self.k * 2 + self.n * self.k * 4 + splits * self.m * (self.n + 1) * 4) as f64
    }
}

impl fmt::Display for HcSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hc m{} n{} k{}", self.m, self.n, self.k)?;
        self.splits.map_or(Ok(()), |splits| write!(f, " splits{splits}"))?;
        f.write_str(if self.at_end { " at the end of memory" } else { "" })
    }
}

/// A GEMM with its operands.
pub struct HcHost {
    pub spec: HcSpec,
    a: Vec<u8>,
    b: Vec<f32>,
}

/// The same on a device.
pub struct HcOperands {
    pub a: Tensor,
    pub b: Tensor,
    pub d: Tensor,
    pub sqr_sum: Tensor,
}

impl HcHost {
    pub fn draw(spec: HcSpec) -> HcHost {
        let a = DType::Bf16.encode(&random::normals(spec.seed, spec.m * spec.k));
        HcHost { spec, a, b: random::normals(spec.seed.wrapping_add(1), spec.n * spec.k) }
    }

    pub fn upload(&self, device: &Device) -> Result<HcOperands, Failure> {
        let HcSpec { m, n, k, splits, at_end, .. } = self.spec;
        let [d, sqr_sum] = match splits {
            None => [vec![m, n], vec![m]],
            Some(splits) => [vec![splits, m, n], vec![splits, m]],
        };
        let zeros = |dims: &[usize]| {
            let bytes = vec![0; dims.iter().product::<usize>() * DType::F32.size()];
            dense(DType::F32, &bytes, dims, at_end, device)
        };
        Ok(HcOperands {
            a: dense(DType::Bf16, &self.a, &[m, k], at_end, device)?,
            b: dense(DType::F32, &DType::F32.encode(&self.b), &[n, k], at_end, device)?,
            d: zeros(&d)?,
            sqr_sum: zeros(&sqr_sum)?,
        })
    }

    /// Compares some rows, whose splits are added.
    pub fn judge(&self, operands: &HcOperands) -> Result<Verdict, Failure> {
        let HcSpec { m, n, k, splits, seed, .. } = self.spec;
        let (d, squares) = (operands.d.to_vec_f32()?, operands.sqr_sum.to_vec_f32()?);
        let rows: Vec<usize> = match m {
            0..=SAMPLED => (0..m).collect(),
            _ => (0..SAMPLED as u64)
                .map(|i| (random::bits(seed.wrapping_add(9), i) % m as u64) as usize)
                .collect(),
        };
        let splits = splits.unwrap_or(1);
        let weights: Vec<f32> = self.b.iter().map(|&w| reference::tf32(w)).collect();
        let exact: Vec<Vec<f64>> = rows
            .par_iter()
            .map(|&row| {
                let x = DType::Bf16.decode(&self.a[row * k * 2..][..k * 2]);
                let product =
                    |w: &[f32]| x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum::<f64>();
                let square: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
                weights.chunks(k).map(product).chain([square]).collect()
            })
            .collect();
        let sum = |values: &[f32], per_row: usize, row: usize, column: usize| -> f64 {
            (0..splits).map(|split| f64::from(values[(split * m + row) * per_row + column])).sum()
        };
        let (mut found, mut wanted, mut worst) = ([vec![], vec![]], [vec![], vec![]], 0.0f64);
        for (&row, exact) in rows.iter().zip(&exact) {
            for (column, &exact) in exact.iter().enumerate() {
                let is_square = column == n;
                let value = if is_square { sum(&squares, 1, row, 0) } else { sum(&d, n, row, column) };
                // What FP32 accumulators are truncated to, in parts of an element's deviation, or of the sum of
                // squares.
                let allowed = if is_square { 1e-5 * exact } else { 1e-4 * (k as f64).sqrt() };
                let error = (value - exact).abs() / allowed;
                worst = if error > worst || error.is_nan() { error } else { worst };
                found[usize::from(is_square)].push(value);
                wanted[usize::from(is_square)].push(exact);
            }
        }
        let diff =
            found.iter().zip(&wanted).map(|(found, wanted)| calc_diff(found, wanted)).fold(0.0, f64::max);
        let right = worst <= 1.0 && diff < DIFF_LIMIT;
        Ok(Verdict { diff, diff_unquantized: diff, worst_element: worst, rows: rows.len(), right })
    }
}

impl HcOperands {
    pub fn run(&mut self, options: &GemmOptions) -> oxigemm::Result<()> {
        tf32_hc_prenorm_gemm(&self.a, &self.b, &mut self.d, &mut self.sqr_sum, options)
    }
}
