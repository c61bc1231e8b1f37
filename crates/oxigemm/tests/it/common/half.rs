//! Problems with 16-bit operands for the simulator, and the exact result.

use super::{C, output};
use oxigemm::plan::GemmConfig;
use oxigemm::{DType, Device, GemmLayout, GemmOptions, Sim, Tensor, half_gemm, random, reference};

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub layout: GemmLayout,
    pub ab_type: DType,
    pub dims: [usize; 3],
    pub d_type: DType,
    pub c: C,
    /// Elements before D and behind each of its rows.
    pub gaps: [usize; 2],
    pub num_sms: Option<u32>,
}

pub const PLAIN: Case = Case {
    layout: GemmLayout::Nt,
    ab_type: DType::Bf16,
    dims: [1, 1, 1],
    d_type: DType::Bf16,
    c: C::None,
    gaps: [0, 0],
    num_sms: None,
};

/// The operands of a case on a simulated device, and the exact result.
pub struct Problem {
    pub case: Case,
    pub device: Device,
    pub a: Tensor,
    pub b: Tensor,
    pub c: Vec<f32>,
    pub exact: Vec<f64>,
}

impl Problem {
    pub fn new(case: Case, sim: &Sim) -> Problem {
        let device = Device::Sim(sim.clone());
        let [m, n, k] = case.dims;
        let values = |seed, len| case.ab_type.decode(&case.ab_type.encode(&random::normals(seed, len)));
        let (a, b) = (values(1, m * k), values(2, n * k));
        // Values that every type has.
        let c: Vec<f32> = random::normals(3, m * n).iter().map(|x| (x * 16.0).round()).collect();
        let added = (!matches!(case.c, C::None)).then_some(&c[..]);
        let exact = reference::gemm_nt(&a, &b, case.dims, added).unwrap();
        let operand = |values: &[f32], [rows, k]: [usize; 2], k_first| {
            let transposed: Vec<f32> = (0..k * rows).map(|i| values[i % rows * k + i / rows]).collect();
            match k_first {
                true => padded(case.ab_type, &transposed, [k, rows], &device),
                false => padded(case.ab_type, values, [rows, k], &device),
            }
        };
        Problem {
            case,
            a: operand(&a, [m, k], case.layout.a_begins_with_k()),
            b: operand(&b, [n, k], case.layout.b_begins_with_k()),
            device,
            c,
            exact,
        }
    }

    /// A matrix like D; its memory is not written to.
    pub fn output(&self) -> Tensor {
        output(self.case.d_type, self.case.dims, self.case.gaps, &self.device)
    }

    pub fn run(&self, choice: Option<GemmConfig>) -> oxigemm::Result<Tensor> {
        let options = GemmOptions { config: choice, num_sms: self.case.num_sms, ..Default::default() };
        let (mut d, mut other) = (self.output(), self.output());
        let c = self.case.c.addend(&self.c, &mut d, &mut other)?;
        half_gemm(self.case.layout, &self.a, &self.b, c, &mut d, &options)?;
        Ok(d)
    }

    /// The bits of D, once they were found right.
    pub fn checked(&self, choice: Option<GemmConfig>, about: &str) -> Vec<u8> {
        let d = self.run(choice).unwrap_or_else(|error| panic!("{about}: {error}"));
        let deviation = (self.case.dims[2] as f64).sqrt();
        let rounding = match self.case.d_type {
            DType::Bf16 => 2f64.powi(-8),
            DType::F16 => 2f64.powi(-11),
            _ => 0.0,
        };
        for (found, exact) in d.to_vec_f32().unwrap().iter().zip(&self.exact) {
            // The rounding of the result, and the truncation of FP32 sums.
            let allowed = (exact.abs() + 1e-3) * rounding + 1e-5 * deviation + exact.abs() * 1e-5;
            assert!((f64::from(*found) - exact).abs() <= allowed, "{about}: {found} and not {exact}");
        }
        d.to_bytes().unwrap()
    }
}

/// A matrix whose rows begin at multiples of 16 bytes; what lies between them is NaN.
pub fn padded(dtype: DType, values: &[f32], [rows, columns]: [usize; 2], device: &Device) -> Tensor {
    let pitch = columns.next_multiple_of(8);
    let mut all = vec![f32::NAN; rows * pitch];
    for (row, values) in values.chunks(columns).enumerate() {
        all[row * pitch..][..columns].copy_from_slice(values);
    }
    Tensor::from_f32(dtype, &all, &[rows, pitch], device).unwrap().narrow(1, 0, columns).unwrap()
}
