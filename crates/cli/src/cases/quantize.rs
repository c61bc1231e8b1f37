//! Quantizations: random matrices, the call, and whether its result is the CPU's.

use std::fmt;

use oxigemm::cast::ScaleFormat;
use oxigemm::{
    DType, Device, Granularity, LaunchOptions, Tensor, TensorScale, TransposedCopy, dequantize,
    dequantize_nvfp4, gather_quantize, quantize, quantize_by_scale, quantize_nvfp4, quantize_with_transpose,
    random, rms_norm_quantize, swiglu_quantize, transform_scales,
};
use oxigemm_kernels::quantize::per_tensor_single::MAX_ELEMENTS;
use oxigemm_testkit::Failure;
use serde::Serialize;

/// What is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum QuantizeOp {
    /// Values to codes and scales.
    #[default]
    Quantize,
    /// SwiGLU, and its values to codes and scales.
    Swiglu,
    /// Rows that a list names to codes and scales.
    Gather,
    /// RMSNorm, and its values to codes and scales.
    Rmsnorm,
    /// Codes and scales to values.
    Dequantize,
    /// Scales, one for every `m` and `k`, from row-major to another layout.
    Transform,
    /// Values to NVFP4, with a scale of all that is given.
    Nvfp4,
    /// Values to NVFP4, with a scale of all that is computed.
    Nvfp4Computed,
    /// NVFP4 to values.
    Nvfp4Dequantize,
    /// Values, and their transpose, to codes and scales of 1x128 or 128x128.
    Both,
    /// Values to codes by one scale that is given.
    ByScale,
}

impl QuantizeOp {
    /// Whether codes are e2m1, scales e4m3 of 1x16, and there is a scale of all.
    pub fn is_nvfp4(self) -> bool {
        matches!(self, QuantizeOp::Nvfp4 | QuantizeOp::Nvfp4Computed | QuantizeOp::Nvfp4Dequantize)
    }
}

/// How scales lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ScaleLayout {
    /// Row-major.
    #[default]
    Row,
    /// MN-major, in columns that TMA can address.
    Mn,
    /// As exponents, four in a word, MN-major.
    Packed,
    /// The same in blocks of 128 by 4.
    Blocked,
}

impl ScaleLayout {
    pub const ALL: [ScaleLayout; 4] =
        [ScaleLayout::Row, ScaleLayout::Mn, ScaleLayout::Packed, ScaleLayout::Blocked];

    pub fn is_packed(self) -> bool {
        matches!(self, ScaleLayout::Packed | ScaleLayout::Blocked)
    }

    /// All of the memory, and the scales in it.
    fn memory(
        self,
        plain: DType,
        [rows, columns]: [usize; 2],
        place: &Place,
    ) -> oxigemm::Result<[Tensor; 2]> {
        let fours = columns.div_ceil(4);
        let (dtype, dims) = match self {
            ScaleLayout::Row => (plain, vec![rows, columns]),
            ScaleLayout::Mn => (plain, vec![columns, rows.next_multiple_of(16 / plain.size())]),
            ScaleLayout::Packed => (DType::I32, vec![fours, rows.next_multiple_of(4)]),
            ScaleLayout::Blocked => (DType::I32, vec![rows.div_ceil(128), fours, 32, 4]),
        };
        let [memory, matrix] = place.tensor(dtype, &dims)?;
        let scales = match self {
            ScaleLayout::Row | ScaleLayout::Blocked => matrix,
            ScaleLayout::Mn | ScaleLayout::Packed => matrix.transpose(0, 1)?.narrow(0, 0, rows)?,
        };
        Ok([memory, scales])
    }
}

/// Where operands are put.
struct Place<'a> {
    device: &'a Device,
    /// Each ends where memory of a multiple of these bytes does.
    page: usize,
}

impl Place<'_> {
    /// Memory of bytes that no result has by chance, and a tensor in it.
    fn tensor(&self, dtype: DType, dims: &[usize]) -> oxigemm::Result<[Tensor; 2]> {
        let count = dims.iter().product::<usize>();
        let bytes = (count * dtype.size()).next_multiple_of(self.page);
        let all = bytes / dtype.size();
        let memory = Tensor::from_bytes(dtype, &vec![0xa5; bytes], &[all], self.device)?;
        let tensor = memory.narrow(0, all - count, count)?.view(dims)?;
        Ok([memory, tensor])
    }

    /// A tensor of values.
    fn values(&self, dtype: DType, dims: &[usize], values: &[f32]) -> oxigemm::Result<Tensor> {
        let [_, mut tensor] = self.tensor(dtype, dims)?;
        tensor.write_f32(values)?;
        Ok(tensor)
    }
}

/// The numbers that are quantized, and the scales that are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Numbers {
    /// What is drawn.
    #[default]
    Drawn,
    /// The same, with this at two places.
    With(f32),
    /// Zeros alone.
    Zeros,
}

impl Numbers {
    /// What becomes of numbers that were drawn.
    fn of(self, mut drawn: Vec<f32>) -> Vec<f32> {
        match self {
            Numbers::Drawn => {}
            // Of SwiGLU one is a gate and the other an up.
            Numbers::With(number) => {
                for place in [drawn.len() / 3, drawn.len() * 5 / 6] {
                    drawn[place] = number;
                }
            }
            Numbers::Zeros => drawn.fill(0.0),
        }
        drawn
    }
}

/// What is computed.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct QuantizeSpec {
    pub op: QuantizeOp,
    pub m: usize,
    pub k: usize,
    #[serde(serialize_with = "as_text")]
    pub input: DType,
    #[serde(serialize_with = "as_text")]
    pub code: DType,
    #[serde(serialize_with = "as_text")]
    pub granularity: Granularity,
    pub power_of_two: bool,
    pub scales: ScaleLayout,
    /// Elements before the first of a matrix and behind each of its rows.
    pub gaps: [usize; 2],
    pub numbers: Numbers,
    /// Whether a gather reads every row once; else it names any rows, some twice, and some that do not exist.
    pub each_row_once: bool,
    /// Operands end where memory of a multiple of these bytes does; with 1 they fill it.
    pub page: usize,
    pub seed: u64,
}

fn as_text<S: serde::Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

impl fmt::Display for QuantizeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QuantizeSpec { op, m, k, input, code, granularity, scales, gaps, seed, .. } = self;
        let format = if self.power_of_two { " power of two" } else { "" };
        let [op, scales] = [format!("{op:?}"), format!("{scales:?}")].map(|name| name.to_lowercase());
        match self.op.is_nvfp4() {
            true => write!(f, "{op} {input} m{m} k{k} scales {scales}")?,
            false => write!(f, "{op} {granularity} {input} {code} m{m} k{k} scales {scales}{format}")?,
        }
        if *gaps != [0, 0] {
            write!(f, " gaps {gaps:?}")?;
        }
        match self.numbers {
            Numbers::Drawn => {}
            Numbers::With(number) => write!(f, " with {number}")?,
            Numbers::Zeros => f.write_str(" of zeros")?,
        }
        if self.page > 1 {
            write!(f, " at the end of pages of {}", self.page)?;
        }
        if *seed != 0 {
            write!(f, " seed {seed}")?;
        }
        Ok(())
    }
}

impl QuantizeSpec {
    /// Bytes that cross the memory bus at least once; of a whole tensor that no grid can hold, values twice.
    pub fn bytes(&self) -> f64 {
        let elements = self.m as f64 * self.k as f64;
        let [rows, columns] = self.scale_dims();
        let in_bytes = self.scales.is_packed() || self.op.is_nvfp4();
        let scales = rows as f64 * columns as f64 * if in_bytes { 1.0 } else { 4.0 };
        let reads = match self.op {
            QuantizeOp::Swiglu | QuantizeOp::Nvfp4Computed => 2.0,
            QuantizeOp::Quantize
                if self.granularity == Granularity::PerTensor && self.m * self.k > MAX_ELEMENTS =>
            {
                2.0
            }
            _ => 1.0,
        };
        let codes = (self.m * self.code_bytes()) as f64;
        match self.op {
            QuantizeOp::Transform => 4.0 * elements + scales,
            QuantizeOp::Both => {
                let [rows, columns] = self.transposed_scale_dims();
                elements * self.input.size() as f64 + 2.0 * codes + scales + 4.0 * (rows * columns) as f64
            }
            _ => elements * reads * self.input.size() as f64 + codes + scales,
        }
    }

    /// Bytes of a row of codes.
    fn code_bytes(&self) -> usize {
        if self.code == DType::U8 { self.k / 2 } else { self.k }
    }

    fn scale_dims(&self) -> [usize; 2] {
        match self.op {
            QuantizeOp::Transform => [self.m, self.k],
            op if op.is_nvfp4() => [self.m, self.k.div_ceil(16)],
            _ => self.granularity.scale_dims(self.m, self.k),
        }
    }

    /// Rows and columns of the scales of the transpose, where it has any.
    fn transposed_scale_dims(&self) -> [usize; 2] {
        match (self.op, self.granularity) {
            (QuantizeOp::Both, Granularity::PerToken) => self.granularity.scale_dims(self.k, self.m),
            _ => [0, 0],
        }
    }

    /// The rows that a gather names, of so many.
    fn named_rows(&self, rows: usize) -> Vec<i32> {
        let bits = |i: usize| random::bits(self.seed ^ 5, i as u64);
        if !self.each_row_once {
            return (0..self.m).map(|i| (bits(i) % (rows as u64 + 2)) as i32 - 1).collect();
        }
        let mut left: Vec<i32> = (0..self.m as i32).collect();
        let next = |_| left.swap_remove((bits(left.len()) % left.len() as u64) as usize);
        (0..self.m).map(next).collect()
    }

    /// Puts the operands on a device.
    pub fn on(&self, device: &Device) -> Result<QuantizeTask, Failure> {
        let QuantizeSpec { op, m, k, input, code, gaps: [before, behind], numbers, seed, .. } = *self;
        let place = Place { device, page: self.page };
        let matrix = |dtype, rows: usize, columns: usize| -> oxigemm::Result<[Tensor; 2]> {
            let [memory, rows] = place.tensor(dtype, &[rows, before + columns + behind])?;
            Ok([memory, rows.narrow(1, before, columns)?])
        };
        let [x_rows, x_columns] = match op {
            QuantizeOp::Swiglu => [m, 2 * k],
            QuantizeOp::Gather if !self.each_row_once => [m.div_ceil(2), k],
            QuantizeOp::Transform => [0, 0],
            _ => [m, k],
        };
        let [mut x_memory, mut x] = matrix(input, x_rows, x_columns)?;
        let [codes_memory, mut codes] = match op {
            QuantizeOp::Transform => matrix(code, 0, 0)?,
            _ => matrix(code, m, self.code_bytes())?,
        };
        let plain = if op.is_nvfp4() { DType::E4m3 } else { DType::F32 };
        let [scales_memory, mut scales] = self.scales.memory(plain, self.scale_dims(), &place)?;
        // Some blocks of what is drawn saturate below it, and some vanish.
        let tensor_scale = place.values(DType::F32, &[1], &[0.01])?;
        let [transposed_memory, transposed] = match op {
            QuantizeOp::Both => matrix(code, k, m)?,
            _ => matrix(code, 0, 0)?,
        };
        let [transposed_scales_memory, transposed_scales] =
            self.scales.memory(DType::F32, self.transposed_scale_dims(), &place)?;
        let mut from = Tensor::zeros(DType::F32, &[0, 0], device)?;
        match op {
            QuantizeOp::Dequantize => {
                let bytes: Vec<u8> = (0..codes.len()).map(|i| random::bits(seed, i as u64) as u8).collect();
                codes.write_bytes(&bytes)?;
                let powers = self.scale_dims().iter().product::<usize>();
                let powers: Vec<f32> = (0..powers)
                    .map(|i| 2f32.powi((random::bits(seed, !(i as u64)) % 40) as i32 - 20))
                    .collect();
                let on_host = Place { device: &Device::Cpu, page: 1 };
                let row_major = on_host.values(DType::F32, &self.scale_dims(), &numbers.of(powers))?;
                let [_, mut on_host] = self.scales.memory(plain, self.scale_dims(), &on_host)?;
                transform_scales(&row_major, &mut on_host, &LaunchOptions::default())?;
                scales.write_bytes(&on_host.to_bytes()?)?;
            }
            QuantizeOp::Transform => {
                let powers: Vec<f32> =
                    (0..m * k).map(|i| 2f32.powi((random::bits(seed, i as u64) % 40) as i32 - 20)).collect();
                from = place.values(DType::F32, &[m, k], &numbers.of(powers))?;
            }
            // SwiGLU of large values is infinite, or as good as 0.
            QuantizeOp::Swiglu => x.write_f32(&numbers.of(repeated_normals(seed, x.len())))?,
            QuantizeOp::Nvfp4Dequantize => {
                let bytes = |count, salt| {
                    (0..count).map(|i| random::bits(seed ^ salt, i as u64) as u8).collect::<Vec<u8>>()
                };
                codes.write_bytes(&bytes(codes.len(), 0))?;
                scales.write_bytes(&bytes(scales.len() * scales.dtype().size(), 7))?;
            }
            QuantizeOp::ByScale => {
                x.write_f32(&numbers.of(of_many_magnitudes(seed, x.len())))?;
                // Some of what is drawn saturates, and some vanishes.
                scales.write_f32(&[0.01])?;
            }
            QuantizeOp::Quantize
            | QuantizeOp::Gather
            | QuantizeOp::Rmsnorm
            | QuantizeOp::Nvfp4
            | QuantizeOp::Nvfp4Computed
            | QuantizeOp::Both => {
                x.write_f32(&numbers.of(of_many_magnitudes(seed, x.len())))?;
            }
        }
        if matches!(op, QuantizeOp::Dequantize | QuantizeOp::Nvfp4Dequantize) {
            [x_memory, x] = matrix(input, m, k)?;
        }
        let named = self.named_rows(x_rows);
        let [_, mut names] = place.tensor(DType::I32, &[m])?;
        names.write_bytes(&named.iter().flat_map(|row| row.to_le_bytes()).collect::<Vec<u8>>())?;
        let weight = place.values(input, &[k], &random::normals(seed ^ 6, k))?;
        Ok(QuantizeTask {
            spec: *self,
            x,
            codes,
            scales,
            named: names,
            weight,
            from,
            tensor_scale,
            transposed,
            transposed_scales,
            memory: [x_memory, codes_memory, scales_memory, transposed_memory, transposed_scales_memory],
        })
    }
}

/// Normal numbers; of many, the first again and again, because it takes long to draw them.
fn repeated_normals(seed: u64, count: usize) -> Vec<f32> {
    /// A prime, so that rows differ.
    const PERIOD: usize = 999_983;
    let drawn = random::normals(seed, count.min(PERIOD));
    drawn.iter().copied().cycle().take(count).collect()
}

/// Numbers whose magnitude changes every 1000.
fn of_many_magnitudes(seed: u64, count: usize) -> Vec<f32> {
    let mut values = repeated_normals(seed, count);
    for (i, values) in values.chunks_mut(1000).enumerate() {
        let magnitude = 10f32.powi((random::bits(seed, i as u64) % 7) as i32 - 4);
        values.iter_mut().for_each(|value| *value *= magnitude);
    }
    values
}

/// A spec with its operands on a device.
pub struct QuantizeTask {
    spec: QuantizeSpec,
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    named: Tensor,
    weight: Tensor,
    from: Tensor,
    tensor_scale: Tensor,
    transposed: Tensor,
    transposed_scales: Tensor,
    /// What the matrices and the scales are parts of.
    memory: [Tensor; 5],
}

impl QuantizeTask {
    /// Runs it.
    pub fn run(&mut self, options: &LaunchOptions) -> oxigemm::Result<()> {
        let QuantizeTask { spec, x, codes, scales, named, weight, from, tensor_scale, .. } = self;
        let (transposed, transposed_scales) = (&mut self.transposed, &mut self.transposed_scales);
        let format = match spec.power_of_two || spec.scales.is_packed() {
            true => ScaleFormat::PowerOfTwo,
            false => ScaleFormat::F32,
        };
        match spec.op {
            QuantizeOp::Quantize => quantize(x, codes, scales, spec.granularity, format, options),
            QuantizeOp::Swiglu => swiglu_quantize(x, codes, scales, format, options),
            QuantizeOp::Gather => gather_quantize(x, named, codes, scales, format, options),
            QuantizeOp::Rmsnorm => rms_norm_quantize(x, weight, 1e-6, codes, scales, format, options),
            QuantizeOp::Dequantize => dequantize(codes, scales, x, spec.granularity, options),
            QuantizeOp::Transform => transform_scales(from, scales, options),
            QuantizeOp::Nvfp4 => quantize_nvfp4(x, codes, scales, TensorScale::Given(tensor_scale), options),
            QuantizeOp::Nvfp4Computed => {
                quantize_nvfp4(x, codes, scales, TensorScale::Computed(tensor_scale), options)
            }
            QuantizeOp::Nvfp4Dequantize => dequantize_nvfp4(codes, scales, tensor_scale, x, options),
            QuantizeOp::ByScale => quantize_by_scale(x, scales, codes, options),
            QuantizeOp::Both => {
                let own = (spec.granularity == Granularity::PerToken).then_some(transposed_scales);
                let copy = TransposedCopy { codes: transposed, scales: own };
                quantize_with_transpose(x, codes, scales, copy, spec.granularity, format, options)
            }
        }
    }

    /// Everything that was written, with what lies around it.
    pub fn bytes(&self) -> Result<Vec<Vec<u8>>, Failure> {
        let [x, codes, scales, transposed, transposed_scales] = &self.memory;
        let written = match self.spec.op {
            QuantizeOp::Dequantize | QuantizeOp::Nvfp4Dequantize => vec![x],
            QuantizeOp::Transform => vec![scales],
            QuantizeOp::Nvfp4Computed => vec![codes, scales, &self.tensor_scale],
            QuantizeOp::Both => vec![codes, scales, transposed, transposed_scales],
            _ => vec![codes, scales],
        };
        written.into_iter().map(|tensor| Ok(tensor.to_bytes()?)).collect()
    }

    /// Compares the result with the CPU's: how much of it differs, and whether that is right.
    ///
    /// Every byte is the same, but for the codes of SwiGLU, whose exponential is the GPU's own: there one in a hundred
    /// may be a neighbour of the CPU's, and a scale a few units in the last place off. What is not finite is so on
    /// both.
    pub fn judge(&self) -> Result<Judgement, Failure> {
        let mut reference = self.spec.on(&Device::Cpu)?;
        reference.run(&LaunchOptions::default())?;
        let (found, expected) = (self.bytes()?, reference.bytes()?);
        let pairs = || found.iter().flatten().zip(expected.iter().flatten());
        let differ = pairs().filter(|(a, b)| a != b).count();
        let right = match (self.spec.op, &found[..], &expected[..]) {
            (QuantizeOp::Swiglu, [codes, scales], [codes_expected, scales_expected]) => {
                let steps = codes.iter().zip(codes_expected).map(|(a, b)| e4m3_steps(*a, *b));
                let few = steps.clone().filter(|step| *step > 0).count() * 100 <= codes.len();
                few && steps.max().unwrap_or(0) <= 1 && self.scales_are_near(scales, scales_expected)
            }
            _ => differ == 0,
        };
        Ok(Judgement { bytes: pairs().count(), differ, right })
    }

    fn scales_are_near(&self, found: &[u8], expected: &[u8]) -> bool {
        if self.spec.scales.is_packed() {
            return found.iter().zip(expected).all(|(a, b)| a.abs_diff(*b) <= 1);
        }
        let values = |bytes| DType::F32.decode(bytes);
        let near = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a - b).abs() <= b.abs() * 1e-6;
        values(found)
            .into_iter()
            .zip(values(expected))
            .all(|(a, b)| near(a, b) && a.is_finite() == b.is_finite())
    }
}

/// How many codes lie between two; NaN is near to no other.
fn e4m3_steps(a: u8, b: u8) -> u8 {
    let nan = |code: u8| code & 0x7f == 0x7f;
    if nan(a) != nan(b) { u8::MAX } else { a.abs_diff(b) }
}

/// How a result compares with the CPU's.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Judgement {
    pub bytes: usize,
    pub differ: usize,
    pub right: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gather(each_row_once: bool) -> QuantizeSpec {
        QuantizeSpec {
            op: QuantizeOp::Gather,
            m: 200,
            k: 128,
            input: DType::Bf16,
            code: DType::E4m3,
            granularity: Granularity::PerToken,
            power_of_two: false,
            scales: ScaleLayout::Row,
            gaps: [0, 0],
            numbers: Numbers::Drawn,
            each_row_once,
            page: 1,
            seed: 3,
        }
    }

    /// Rows that are read twice would come from the L2 cache.
    #[test]
    fn a_benchmark_gathers_every_row_once() {
        let mut named = gather(true).named_rows(200);
        assert!(named.windows(2).any(|pair| pair[1] != pair[0] + 1), "rows in order");
        named.sort_unstable();
        assert!(named.into_iter().eq(0..200));
        assert_eq!(gather(true).on(&Device::Cpu).unwrap().x.dims(), [200, 128], "as many rows as are named");
    }

    #[test]
    fn a_check_gathers_rows_twice_and_rows_that_do_not_exist() {
        let named = gather(false).named_rows(100);
        assert!(named.contains(&-1) && named.contains(&100));
        assert!(named.iter().collect::<std::collections::HashSet<_>>().len() < 200);
    }
}
