//! Products whose sums are finished: what the single steps give for the same sums, rounded once.

use super::{C, Scales, output};
use oxigemm::cast::{Quantized, ScaleFormat, per_token_cast_to_fp8};
use oxigemm::plan::{self, GemmConfig};
use oxigemm::reference::Finish;
use oxigemm::{
    Activation, Addend, DType, Device, Epilogue, FusedOutput, GemmOptions, HeadSplits, Result, Tensor,
};

pub const ACTIVATIONS: [Activation; 5] =
    [Activation::None, Activation::Relu, Activation::Gelu, Activation::GeluTanh, Activation::Silu];

/// What is fused, beside a product.
#[derive(Clone, Copy, Debug)]
pub struct What {
    pub activation: Activation,
    pub gated: bool,
    pub bias: Option<DType>,
    pub factors: [f32; 2],
    pub heads: Option<HeadSplits>,
    /// Scales of D: how they lie and what they are.
    pub quantized: Option<(Scales, ScaleFormat)>,
}

pub const NOTHING: What = What {
    activation: Activation::None,
    gated: false,
    bias: None,
    factors: [1.0, 1.0],
    heads: None,
    quantized: None,
};

impl What {
    pub fn epilogue<'a>(&self, bias: Option<&'a Tensor>) -> Epilogue<'a> {
        let What { activation, gated, factors: [alpha, beta], heads, .. } = *self;
        Epilogue { alpha, bias, activation, gated, beta, heads }
    }
}

/// How far rounding to a type may move a number, in parts of it.
pub fn rounding(d_type: DType) -> f64 {
    match d_type {
        DType::F32 => 1e-5,
        DType::F16 => 2f64.powi(-11) + 3e-5,
        _ => 1.0 / 256.0,
    }
}

/// A product whose sums are known.
pub struct Finished<'a> {
    pub what: What,
    /// Rows of A and of B.
    pub dims: [usize; 2],
    pub d_type: DType,
    pub c: C,
    /// The values of C, of which the first count.
    pub added: &'a [f32],
    /// Elements before D and behind each of its rows.
    pub gaps: [usize; 2],
    pub device: &'a Device,
    pub bias: Option<&'a Tensor>,
    pub sums: &'a [f64],
}

impl Finished<'_> {
    /// Columns that are computed.
    fn columns(&self) -> usize {
        self.dims[1] / if self.what.gated { 2 } else { 1 }
    }

    /// What the single steps give.
    fn expected(&self) -> Vec<f64> {
        let bias = self.bias.map(|bias| bias.to_vec_f32().unwrap());
        let What { activation, gated, factors: [alpha, beta], .. } = self.what;
        let finish = Finish { alpha, beta, bias: bias.as_deref(), activation, gated };
        let (m, columns) = (self.dims[0], self.columns());
        let c = (!matches!(self.c, C::None)).then(|| &self.added[..m * columns]);
        finish.apply(self.sums, self.dims[1], c).unwrap()
    }

    /// The bits of D and of its scales, once they were found right.
    pub fn checked(
        &self,
        about: &str,
        run: impl FnOnce(Addend<'_>, FusedOutput<'_>) -> Result<()>,
    ) -> Vec<u8> {
        match self.what.quantized {
            None => self.checked_matrix(about, run),
            Some(scales) => self.checked_codes(scales, about, run),
        }
    }

    fn checked_matrix(
        &self,
        about: &str,
        run: impl FnOnce(Addend<'_>, FusedOutput<'_>) -> Result<()>,
    ) -> Vec<u8> {
        let Finished { dims: [m, _], d_type, c, gaps, device, added, .. } = *self;
        let columns = self.columns();
        let HeadSplits { left, mid, right } =
            self.what.heads.unwrap_or(HeadSplits { left: columns as u32, mid: 0, right: 0 });
        let computed = (left + right) as usize;
        let width = columns / computed * (computed + mid as usize);
        // The column of D that each column is.
        let places: Vec<usize> = (0..columns)
            .map(|j| {
                let (head, within) = (j / computed, j % computed);
                j + mid as usize * (head + usize::from(within >= left as usize))
            })
            .collect();
        let skipped = -77.0;
        let spread = |values: &[f32]| {
            let mut all = vec![skipped; m * width];
            for (i, value) in values.iter().enumerate() {
                all[i / columns * width + places[i % columns]] = *value;
            }
            all
        };
        let new = || output(d_type, [m, width, 0], gaps, device);
        let (mut d, mut other) = (new(), new());
        d.write_f32(&vec![skipped; m * width]).unwrap();
        let addend = c.addend(&spread(&added[..m * columns]), &mut d, &mut other).unwrap();
        run(addend, FusedOutput::Matrix(&mut d)).unwrap_or_else(|error| panic!("{about}: {error}"));
        let found = d.to_vec_f32().unwrap();
        let rounding = rounding(d_type);
        let expected = self.expected();
        let largest = expected.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
        for (i, expected) in expected.iter().enumerate() {
            let found = f64::from(found[i / columns * width + places[i % columns]]);
            let allowed = rounding * expected.abs() + 1e-6 * largest + 1e-5;
            assert!(
                (found - expected).abs() <= allowed,
                "{about}: element {i} is {found} and not {expected}"
            );
        }
        let untouched = found.iter().filter(|x| **x == skipped).count();
        assert!(untouched >= m * (width - columns), "{about}: skipped columns were written to");
        d.to_bytes().unwrap()
    }

    fn checked_codes(
        &self,
        (layout, format): (Scales, ScaleFormat),
        about: &str,
        run: impl FnOnce(Addend<'_>, FusedOutput<'_>) -> Result<()>,
    ) -> Vec<u8> {
        let (device, [m, _], columns) = (self.device, self.dims, self.columns());
        let behind = self.gaps[1] * 16;
        let mut d = output(DType::E4m3, [m, columns, 0], [0, behind], device);
        let blocks = columns.div_ceil(128);
        let mut scales = match layout {
            Scales::RowMajor => output(DType::F32, [m, blocks, 0], [0, 0], device),
            Scales::MnMajor => output(DType::F32, [blocks, m, 0], [0, 3], device).transpose(0, 1).unwrap(),
            Scales::Odd => output(DType::F32, [m, blocks, 0], [1, 2], device),
        };
        let to = FusedOutput::Fp8 { d: &mut d, scales: &mut scales, format };
        run(Addend::None, to).unwrap_or_else(|error| panic!("{about}: {error}"));
        let found = Quantized::from_tensors(&d, &scales, 1).unwrap();
        let expected = self.expected();
        let exact = per_token_cast_to_fp8(
            &expected.iter().map(|x| *x as f32).collect::<Vec<_>>(),
            m,
            columns,
            format,
        )
        .unwrap();
        for (i, (found, exact)) in found.scales.iter().zip(&exact.scales).enumerate() {
            // Where the largest element is a power of two, the next one may be taken.
            let close = (found / exact - 1.0).abs() < 1e-4;
            let power = format == ScaleFormat::PowerOfTwo && [0.5, 2.0].contains(&(found / exact));
            assert!(close || power, "{about}: scale {i} is {found} and not {exact}");
        }
        let values = found.dequantize();
        for (i, (found_value, expected)) in values.iter().zip(&expected).enumerate() {
            let scale = f64::from(found.scales[i / columns * blocks + i % columns / 128]);
            // Half of the distance of e4m3 numbers, in normal ones or in the smallest.
            let allowed = (expected.abs() / 16.0).max(scale * 2f64.powi(-10)) * 1.001 + 1e-6;
            let error = (f64::from(*found_value) - expected).abs();
            assert!(error <= allowed, "{about}: element {i} is {found_value} and not {expected}");
        }
        let mut bytes = d.to_bytes().unwrap();
        bytes.extend(scales.to_bytes().unwrap());
        bytes
    }
}

/// How the product alone gives the very sums that a choice finishes: with K split alike. `plain` is the name of a few-row kernel. Without a
/// choice, K is not split.
pub fn same_sums(choice: Option<GemmConfig>, plain: &str) -> GemmOptions {
    match choice {
        Some(GemmConfig { split_k: split, .. }) if split > 1 => {
            let choice = plan::parse(&format!("{plain}_k{split}_s2"));
            assert!(choice.is_some(), "{plain}");
            GemmOptions { config: choice, ..Default::default() }
        }
        _ => GemmOptions { batch_invariant: true, ..Default::default() },
    }
}
