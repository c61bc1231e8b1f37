//! Problems for the simulator, with layouts of all kinds and the exact result. Each test uses a part of it.

pub mod fused;
pub mod fused_grouped;
pub mod grouped;
pub mod half;
pub mod half_grouped;

use oxigemm::cast::{Quantized, ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
use oxigemm::plan::GemmConfig;
use oxigemm::sim::{Options, Policy};
use oxigemm::{Addend, DType, Device, GemmOptions, Sim, Tensor, fp8_gemm_nt, random, reference};

/// How a matrix of scales lies in memory.
#[derive(Clone, Copy, Debug)]
pub enum Scales {
    /// K is contiguous, rows aligned to 16 bytes.
    RowMajor,
    /// M (or N) is contiguous, columns aligned to 16 bytes.
    MnMajor,
    /// K is contiguous, with an odd pitch and an odd address.
    Odd,
}

#[derive(Clone, Copy, Debug)]
pub enum C {
    None,
    InPlace,
    Other,
}

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub dims: [usize; 3],
    pub d_type: DType,
    pub c: C,
    pub scales: Scales,
    /// Elements before D and behind each of its rows.
    pub gaps: [usize; 2],
    pub num_sms: Option<u32>,
}

pub const PLAIN: Case = Case {
    dims: [1, 1, 1],
    d_type: DType::Bf16,
    c: C::None,
    scales: Scales::RowMajor,
    gaps: [0, 0],
    num_sms: None,
};

/// The operands of a case on a simulated device, and the exact result.
pub struct Problem {
    pub case: Case,
    pub device: Device,
    pub a: Tensor,
    pub sfa: Tensor,
    pub b: Tensor,
    pub sfb: Tensor,
    pub c: Vec<f32>,
    pub exact: Vec<f64>,
}

impl Problem {
    pub fn new(case: Case, sim: &Sim) -> Problem {
        let device = Device::Sim(sim.clone());
        let [m, n, k] = case.dims;
        let a = per_token_cast_to_fp8(&random::normals(1, m * k), m, k, ScaleFormat::F32).unwrap();
        let b = per_block_cast_to_fp8(&random::normals(2, n * k), n, k, ScaleFormat::F32).unwrap();
        // Values that BF16 has, so that both types of C hold the same.
        let c: Vec<f32> = random::normals(3, m * n).iter().map(|x| (x * 16.0).round()).collect();
        let mut exact = reference::fp8_gemm_nt(&a.as_matrix(), &b.as_matrix(), None).unwrap();
        if !matches!(case.c, C::None) {
            exact.iter_mut().zip(&c).for_each(|(sum, c)| *sum += f64::from(*c));
        }
        Problem {
            case,
            a: codes(&a, &device),
            sfa: scales(&a, case.scales, &device),
            b: codes(&b, &device),
            sfb: scales(&b, case.scales, &device),
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
        fp8_gemm_nt((&self.a, &self.sfa), (&self.b, &self.sfb), c, &mut d, &options)?;
        Ok(d)
    }

    /// The bits of D, once they were found right.
    pub fn checked(&self, choice: Option<GemmConfig>, about: &str) -> Vec<u8> {
        let d = self.run(choice).unwrap_or_else(|error| panic!("{about}: {error}"));
        let deviation = (self.case.dims[2] as f64).sqrt();
        for (found, exact) in d.to_vec_f32().unwrap().iter().zip(&self.exact) {
            // The rounding to BF16, and the 13 bits that the tensor core keeps of a sum.
            let allowed = exact.abs() / 256.0 + 0.03 * deviation;
            assert!((f64::from(*found) - exact).abs() <= allowed, "{about}: {found} and not {exact}");
        }
        d.to_bytes().unwrap()
    }
}

impl C {
    /// The addend with these values: in D, in a matrix like it, or none.
    pub fn addend<'a>(
        self,
        values: &[f32],
        d: &mut Tensor,
        other: &'a mut Tensor,
    ) -> oxigemm::Result<Addend<'a>> {
        Ok(match self {
            C::None => Addend::None,
            C::InPlace => {
                d.write_f32(values)?;
                Addend::InPlace
            }
            C::Other => {
                other.write_f32(values)?;
                Addend::From(other)
            }
        })
    }
}

/// A matrix with elements before it and behind each of its rows; its memory is not written to.
pub fn output(dtype: DType, [m, n, _]: [usize; 3], [before, behind]: [usize; 2], device: &Device) -> Tensor {
    let pitch = n + behind;
    let memory = Tensor::empty(dtype, &[before + m * pitch], device).unwrap();
    memory.narrow(0, before, m * pitch).unwrap().view(&[m, pitch]).unwrap().narrow(1, 0, n).unwrap()
}

/// Runs something under some schedules, which must all give the same bits. It is told what it runs, for its messages.
pub fn same_bits(
    what: &str,
    schedules: impl Iterator<Item = Options>,
    sim: &Sim,
    run: impl Fn(&str) -> Vec<u8>,
) {
    let mut first: Option<Vec<u8>> = None;
    for options in schedules {
        let about = format!("{what} {:?} {}", options.policy, options.seed);
        sim.set_options(options);
        let found = run(&about);
        assert_eq!(*first.get_or_insert_with(|| found.clone()), found, "{about}: other bits");
    }
}

/// Rows of K codes, each padded to 16 bytes.
pub fn codes(x: &Quantized, device: &Device) -> Tensor {
    let pitch = x.k.next_multiple_of(16);
    let mut bytes = vec![0x7f; x.rows * pitch];
    for (row, codes) in x.codes.chunks(x.k).enumerate() {
        bytes[row * pitch..][..x.k].copy_from_slice(codes);
    }
    let whole = Tensor::from_bytes(x.dtype, &bytes, &[x.rows, pitch], device).unwrap();
    whole.narrow(1, 0, x.k).unwrap()
}

fn scales(x: &Quantized, layout: Scales, device: &Device) -> Tensor {
    let [rows, blocks] = x.scale_dims();
    let (before, pitch) = match layout {
        Scales::RowMajor => (0, blocks.next_multiple_of(4)),
        Scales::MnMajor => (0, rows.next_multiple_of(4)),
        Scales::Odd => (1, blocks | 1),
    };
    let lines = if matches!(layout, Scales::MnMajor) { blocks } else { rows };
    let memory = Tensor::empty(DType::F32, &[before + lines * pitch], device).unwrap();
    let lines = memory.narrow(0, before, lines * pitch).unwrap().view(&[lines, pitch]).unwrap();
    let mut scales = match layout {
        Scales::MnMajor => lines.narrow(1, 0, rows).unwrap().transpose(0, 1).unwrap(),
        Scales::RowMajor | Scales::Odd => lines.narrow(1, 0, blocks).unwrap(),
    };
    scales.write_f32(&x.scales).unwrap();
    scales
}

/// Eager, lazy, and eight random schedules.
pub fn schedules() -> impl Iterator<Item = Options> {
    let options = |policy, seed| Options { policy, seed, ..Options::default() };
    [options(Policy::Eager, 0), options(Policy::Lazy, 0)]
        .into_iter()
        .chain((0..8).map(move |seed| options(Policy::Random, seed)))
}

/// Eager, lazy, and three random schedules: for a kernel that takes long.
pub fn some_schedules() -> impl Iterator<Item = Options> {
    schedules().take(5)
}

/// A schedule of each policy: for a kernel that differs only in types from one that has run under all [`schedules`]. The random
/// one goes by a seed.
pub fn policies(seed: usize) -> impl Iterator<Item = Options> {
    schedules().take(2).chain(schedules().skip(2 + seed % 8).take(1))
}
