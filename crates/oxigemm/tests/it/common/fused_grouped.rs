//! Products whose rows are grouped and whose sums are finished: what the single steps give for the same sums, rounded once,
//! and nothing else written to.

use super::fused::rounding;
use super::grouped::{Case, POISON};
use super::{C, Scales, same_bits, schedules};
use oxigemm::cast::{ScaleFormat, per_token_cast_to_fp8};
use oxigemm::plan::{self, GemmConfig};
use oxigemm::reference::Finish;
use oxigemm::{
    Activation, Addend, DType, Device, Epilogue, FusedOutput, GemmOptions, GroupedRows, HeadSplits, Result,
    RowGroups, Sim, Tensor, random,
};
use oxigemm_kernels::gemm::scheduler::m_grouped::GroupLayout;

/// A product whose rows are grouped, with its operands on a device.
pub trait Product {
    fn case(&self) -> &Case;
    fn device(&self) -> &Device;
    /// Where the groups are.
    fn numbers(&self) -> &Tensor;
    /// What the product alone gives, in FP32.
    fn sums(&self) -> Vec<f32>;
    fn run_fused(
        &self,
        c: Addend<'_>,
        d: FusedOutput<'_>,
        groups: RowGroups<'_>,
        epilogue: &Epilogue<'_>,
        options: &GemmOptions,
    ) -> Result<()>;
}

/// What is fused, beside a product.
#[derive(Clone, Copy, Debug)]
pub struct What {
    pub activation: Activation,
    pub gated: bool,
    /// Its type, and whether each group has its own.
    pub bias: Option<(DType, bool)>,
    pub factors: [f32; 2],
    pub heads: Option<HeadSplits>,
    pub c: C,
    /// Scales of D: how they lie and what they are.
    pub quantized: Option<(Scales, ScaleFormat)>,
}

pub const NOTHING: What = What {
    activation: Activation::None,
    gated: false,
    bias: None,
    factors: [1.0, 1.0],
    heads: None,
    c: C::None,
    quantized: None,
};
pub const SWIGLU: What = What { activation: Activation::Silu, gated: true, ..NOTHING };
pub const CODES: What = What { quantized: Some((Scales::RowMajor, ScaleFormat::F32)), ..SWIGLU };

/// A tensor for the rows of all slabs, and the memory that it is a part of.
pub struct Rows {
    pub tensor: Tensor,
    pub memory: Tensor,
}

/// A product with what is fused, and the sums that the product alone gives.
pub struct Fused<P> {
    pub what: What,
    pub problem: P,
    pub bias: Option<Tensor>,
    pub sums: Vec<f32>,
}

impl<P: Product> Fused<P> {
    pub fn new(problem: P, what: What) -> Fused<P> {
        let sums = problem.sums();
        let (case, device) = (problem.case(), problem.device());
        let bias = what.bias.map(|(dtype, each)| {
            let dims = if each { vec![case.groups, case.n] } else { vec![case.n] };
            let values: Vec<f32> =
                random::normals(7, dims.iter().product()).iter().map(|x| x * 4.0).collect();
            Tensor::from_f32(dtype, &values, &dims, device).unwrap()
        });
        Fused { what, problem, bias, sums }
    }

    fn case(&self) -> &Case {
        self.problem.case()
    }

    pub fn epilogue(&self) -> Epilogue<'_> {
        let What { activation, gated, factors: [alpha, beta], heads, .. } = self.what;
        Epilogue { alpha, bias: self.bias.as_ref(), activation, gated, beta, heads }
    }

    pub fn groups(&self) -> RowGroups<'_> {
        let contiguous =
            |rows| RowGroups::Contiguous { rows, alignment: self.case().alignment, expected_m: None };
        match self.case().layout {
            GroupLayout::Counts => RowGroups::Masked { masked_m: self.problem.numbers(), expected_m: 20 },
            GroupLayout::Ends => contiguous(GroupedRows::Ends(self.problem.numbers())),
            GroupLayout::Ids => contiguous(GroupedRows::Ids(self.problem.numbers())),
            GroupLayout::All => panic!("these have numbers"),
        }
    }

    /// Columns that are computed, and which column of D each is, of how many.
    fn columns(&self) -> (usize, Vec<usize>, usize) {
        let columns = self.case().n / if self.what.gated { 2 } else { 1 };
        let HeadSplits { left, mid, right } =
            self.what.heads.unwrap_or(HeadSplits { left: columns as u32, mid: 0, right: 0 });
        let (computed, mid) = ((left + right) as usize, mid as usize);
        let place = |j: usize| j + mid * (j / computed + usize::from(j % computed >= left as usize));
        (columns, (0..columns).map(place).collect(), columns / computed * (computed + mid))
    }

    /// Poisoned rows of so many columns, and of gaps behind them.
    pub fn rows(&self, dtype: DType, columns: usize, gap: usize) -> Rows {
        let (case, pitch) = (self.case(), columns + gap);
        let dims = [case.slabs(), case.rows, pitch];
        let poison = vec![POISON; dims.iter().product::<usize>() * dtype.size()];
        let memory = Tensor::from_bytes(dtype, &poison, &dims, self.problem.device()).unwrap();
        Rows { tensor: self.shaped(memory.narrow(2, 0, columns).unwrap()), memory }
    }

    /// Without a leading dimension where there are no slabs.
    pub fn shaped(&self, x: Tensor) -> Tensor {
        if self.case().is_masked() { x } else { x.select(0).unwrap() }
    }

    /// What the single steps give for the rows of every group, and which row each is.
    fn expected(&self, c: Option<&[f32]>) -> Vec<(usize, Vec<f64>)> {
        let What { activation, gated, factors: [alpha, beta], .. } = self.what;
        let (n, (columns, ..)) = (self.case().n, self.columns());
        let bias = self.bias.as_ref().map(|bias| bias.to_vec_f32().unwrap());
        let mut all = Vec::new();
        for (group, rows) in self.case().found(&self.case().numbers).into_iter().enumerate() {
            let own = self.what.bias.is_some_and(|(_, each)| each);
            let bias = bias.as_ref().map(|bias| &bias[if own { group * n } else { 0 }..][..n]);
            let finish = Finish { alpha, beta, bias, activation, gated };
            for row in rows {
                let sums: Vec<f64> = self.sums[row * n..][..n].iter().map(|x| f64::from(*x)).collect();
                let c = c.map(|c| &c[row * columns..][..columns]);
                all.push((row, finish.apply(&sums, n, c).unwrap()));
            }
        }
        all
    }

    pub fn run(&self, c: Addend<'_>, d: FusedOutput<'_>, choice: Option<GemmConfig>) -> Result<()> {
        let options = GemmOptions { config: choice, num_sms: self.case().num_sms, ..Default::default() };
        self.problem.run_fused(c, d, self.groups(), &self.epilogue(), &options)
    }

    /// The bits of D's memory and of that of its scales, once they were found right.
    pub fn checked(&self, choice: Option<GemmConfig>, about: &str) -> Vec<u8> {
        match self.what.quantized {
            None => self.checked_matrix(choice, about),
            Some((layout, format)) => self.checked_codes(choice, layout, format, about),
        }
    }

    fn checked_matrix(&self, choice: Option<GemmConfig>, about: &str) -> Vec<u8> {
        let (case, (columns, places, width)) = (self.case(), self.columns());
        let size = case.d_type.size();
        let (mut d, mut other) = (self.rows(case.d_type, width, case.gap), self.rows(case.d_type, width, 3));
        let values: Vec<f32> = random::normals(5, case.slabs() * case.rows * columns)
            .iter()
            .map(|x| (x * 8.0).round())
            .collect();
        let spread = |rows: &mut Rows| {
            let mut all = rows.tensor.to_vec_f32().unwrap();
            for (i, value) in values.iter().enumerate() {
                all[i / columns * width + places[i % columns]] = *value;
            }
            rows.tensor.write_f32(&all).unwrap();
        };
        let c = match self.what.c {
            C::None => Addend::None,
            C::InPlace => {
                spread(&mut d);
                Addend::InPlace
            }
            C::Other => {
                spread(&mut other);
                Addend::From(&other.tensor)
            }
        };
        let before = d.memory.to_bytes().unwrap();
        self.run(c, FusedOutput::Matrix(&mut d.tensor), choice)
            .unwrap_or_else(|error| panic!("{about}: {error}"));
        let bytes = d.memory.to_bytes().unwrap();
        let mut rest = bytes.clone();
        let rounding = rounding(case.d_type);
        let expected = self.expected((!matches!(self.what.c, C::None)).then_some(&values));
        let largest =
            expected.iter().flat_map(|(_, row)| row).fold(0.0f64, |largest, x| largest.max(x.abs()));
        for (row, expected) in expected {
            for (column, expected) in expected.into_iter().enumerate() {
                let at = (row * (width + case.gap) + places[column]) * size;
                let found = f64::from(case.d_type.decode(&bytes[at..at + size])[0]);
                let allowed = rounding * expected.abs() + 1e-6 * largest + 1e-5;
                assert!(
                    (found - expected).abs() <= allowed,
                    "{about}: row {row} column {column} is {found} and not {expected}"
                );
                rest[at..at + size].copy_from_slice(&before[at..at + size]);
            }
        }
        assert!(rest == before, "{about}: something else was written to");
        bytes
    }

    /// Poisoned scales of D.
    pub fn scales(&self, layout: Scales, blocks: usize) -> Rows {
        let case = self.case();
        match layout {
            Scales::RowMajor => self.rows(DType::F32, blocks, 0),
            Scales::Odd => self.rows(DType::F32, blocks, 3),
            Scales::MnMajor => {
                let dims = [case.slabs(), blocks, case.rows + 3];
                let poison = vec![POISON; dims.iter().product::<usize>() * 4];
                let memory = Tensor::from_bytes(DType::F32, &poison, &dims, self.problem.device()).unwrap();
                let lines = memory.narrow(2, 0, case.rows).unwrap().transpose(1, 2).unwrap();
                Rows { tensor: self.shaped(lines), memory }
            }
        }
    }

    fn checked_codes(
        &self,
        choice: Option<GemmConfig>,
        layout: Scales,
        format: ScaleFormat,
        about: &str,
    ) -> Vec<u8> {
        let (columns, ..) = self.columns();
        let blocks = columns.div_ceil(128);
        let (mut d, mut scales) =
            (self.rows(DType::E4m3, columns, 16 * self.case().gap), self.scales(layout, blocks));
        let to = FusedOutput::Fp8 { d: &mut d.tensor, scales: &mut scales.tensor, format };
        self.run(Addend::None, to, choice).unwrap_or_else(|error| panic!("{about}: {error}"));
        let (codes, found) = (d.tensor.to_bytes().unwrap(), scales.tensor.to_vec_f32().unwrap());
        let expected = self.expected(None);
        for (row, expected) in &expected {
            let values: Vec<f32> = expected.iter().map(|x| *x as f32).collect();
            let exact = per_token_cast_to_fp8(&values, 1, columns, format).unwrap();
            let found = &found[row * blocks..][..blocks];
            for (found, exact) in found.iter().zip(&exact.scales) {
                // Where the largest element is a power of two, the next one may be taken.
                let close = (found / exact - 1.0).abs() < 1e-4;
                let power = format == ScaleFormat::PowerOfTwo && [0.5, 2.0].contains(&(found / exact));
                assert!(close || power, "{about}: a scale of row {row} is {found} and not {exact}");
            }
            let codes = DType::E4m3.decode(&codes[row * columns..][..columns]);
            for (column, (code, expected)) in codes.iter().zip(expected).enumerate() {
                let scale = f64::from(found[column / 128]);
                // Half of the distance of e4m3 numbers, in normal ones or in the smallest.
                let allowed = (expected.abs() / 16.0).max(scale * 2f64.powi(-10)) * 1.001 + 1e-6;
                let found = f64::from(*code) * scale;
                assert!(
                    (found - expected).abs() <= allowed,
                    "{about}: row {row} column {column} is {found} and not {expected}"
                );
            }
        }
        let is_written: Vec<bool> = (0..self.case().slabs() * self.case().rows)
            .map(|row| expected.iter().any(|(written, _)| *written == row))
            .collect();
        let kept = |bytes: &[u8], width: usize| {
            bytes.chunks(width).zip(&is_written).all(|(row, w)| *w || row.iter().all(|x| *x == POISON))
        };
        assert!(kept(&codes, columns), "{about}: codes of no group were written");
        assert!(
            kept(&scales.tensor.to_bytes().unwrap(), blocks * 4),
            "{about}: scales of no group were written"
        );
        let (mut bytes, of_scales) = (d.memory.to_bytes().unwrap(), scales.memory.to_bytes().unwrap());
        let written = is_written.iter().filter(|written| **written).count();
        // Gaps between rows are poison too; e4m3 has one code that is, and no result.
        let poison = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == POISON).count();
        assert!(poison(&bytes) >= bytes.len() - written * columns, "{about}: gaps of D were written to");
        bytes.extend(of_scales);
        bytes
    }
}

pub fn every_schedule_gives_the_same_bits<P: Product>(
    fused: &Fused<P>,
    choice: Option<GemmConfig>,
    step: usize,
    sim: &Sim,
) {
    let name = choice.map_or(String::new(), |choice| plan::name(&choice));
    let about = format!("{name} {:?} {:?}", fused.case(), fused.what);
    same_bits(&about, schedules().step_by(step), sim, |about| fused.checked(choice, about));
}
