//! The argument checks of quantization, of its inverse, and of transforms of scales.

use std::fmt;
use std::str::FromStr;

use oxigemm_kernels::quantize::{Args, Code, Flags, Input};

use super::Operand;
use super::operand::Footprint;
use crate::cast::ScaleFormat;
use crate::dtype::DType;
use crate::error::{Error, Result};

/// Kernels count chunks of eight elements in 31 bits.
const CHUNKS_LIMIT: i64 = 1 << 30;
/// Strides of scales, in elements: as bytes, and four times, they fit in 32 bits.
const STRIDE_LIMIT: u32 = 1 << 28;
/// Rows and columns of a block of scales as tensor memory holds it.
const SCALE_BLOCK: [i64; 2] = [128, 4];

/// Which values share a scale.
///
/// ```
/// use oxigemm::Granularity;
///
/// assert_eq!(Granularity::PerToken.to_string(), "1x128");
/// assert_eq!("128x128".parse(), Ok(Granularity::PerBlock));
/// assert_eq!(Granularity::PerChannel.scale_dims(300, 512), [3, 512]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Granularity {
    /// 128 neighbours of a row: activations.
    #[default]
    PerToken,
    /// 32 neighbours of a row: the blocks of MXFP8.
    PerGroup32,
    /// 128 rows by 128 columns: weights.
    PerBlock,
    /// 128 rows of a column.
    PerChannel,
    /// A row.
    PerRow,
    /// The whole matrix.
    PerTensor,
}

impl Granularity {
    /// All of them.
    pub const ALL: [Granularity; 6] = [
        Granularity::PerToken,
        Granularity::PerGroup32,
        Granularity::PerBlock,
        Granularity::PerChannel,
        Granularity::PerRow,
        Granularity::PerTensor,
    ];

    /// The name that users type and read.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Granularity::PerToken => "1x128",
            Granularity::PerGroup32 => "1x32",
            Granularity::PerBlock => "128x128",
            Granularity::PerChannel => "128x1",
            Granularity::PerRow => "row",
            Granularity::PerTensor => "tensor",
        }
    }

    /// Rows and columns that share a scale, of a matrix of `rows` by `columns`; at least 1.
    #[must_use]
    pub fn block(self, rows: usize, columns: usize) -> [usize; 2] {
        match self {
            Granularity::PerToken => [1, 128],
            Granularity::PerGroup32 => [1, 32],
            Granularity::PerBlock => [128, 128],
            Granularity::PerChannel => [128, 1],
            Granularity::PerRow => [1, columns.max(1)],
            Granularity::PerTensor => [rows.max(1), columns.max(1)],
        }
    }

    /// Rows and columns of the scales of a matrix.
    #[must_use]
    pub fn scale_dims(self, rows: usize, columns: usize) -> [usize; 2] {
        let [down, across] = self.block(rows, columns);
        [rows.div_ceil(down), columns.div_ceil(across)]
    }

    /// Whether a scale belongs to neighbours of one row.
    const fn is_group(self) -> bool {
        matches!(self, Granularity::PerToken | Granularity::PerGroup32)
    }

    /// The powers of two by which rows and columns become those of scales.
    const fn shifts(self) -> [u32; 2] {
        match self {
            Granularity::PerToken => [0, 7],
            Granularity::PerGroup32 => [0, 5],
            Granularity::PerBlock => [7, 7],
            Granularity::PerChannel => [7, 0],
            Granularity::PerRow => [0, 31],
            Granularity::PerTensor => [31, 31],
        }
    }
}

impl fmt::Display for Granularity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Granularity {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Granularity, String> {
        Granularity::ALL.into_iter().find(|granularity| granularity.name() == name).ok_or_else(|| {
            format!("`{name}` is no granularity: expected 1x128, 1x32, 128x128, 128x1, row or tensor")
        })
    }
}

/// Where the values come from that are quantized.
#[derive(Clone, Copy, Debug)]
pub enum QuantizeSource {
    /// From `x`, `[M, K]`.
    Matrix,
    /// They are `silu(gate) * up`, where `x` is `[M, 2K]`: the gates of a row, and then its ups.
    SwiGlu,
    /// From rows of `x`, `[T, K]`, which `[M]` i32 name; a row that is not among them stays as it is.
    Rows(Operand),
    /// They are `x * (1 / sqrt(mean(x * x) + epsilon)) * weight`, where the mean is that of the row.
    RmsNorm {
        /// `[K]`, of the type of `x`.
        weight: Operand,
        /// What is added to the mean: not negative.
        epsilon: f32,
    },
}

/// The arguments of `quantize` and its kind.
#[derive(Clone, Copy, Debug)]
pub struct Quantize {
    /// bf16, f16 or f32, row-major.
    pub x: Operand,
    /// `[M, K]` e4m3 or e5m2, row-major.
    pub codes: Operand,
    /// The scales: see [`quantize`](crate::quantize).
    pub scales: Operand,
    /// Which values share a scale.
    pub granularity: Granularity,
    /// Which scales there may be.
    pub format: ScaleFormat,
    /// Where the values come from.
    pub source: QuantizeSource,
}

/// The arguments of `dequantize`.
#[derive(Clone, Copy, Debug)]
pub struct Dequantize {
    /// `[M, K]` e4m3 or e5m2, row-major.
    pub codes: Operand,
    /// The scales, as `quantize` writes them.
    pub scales: Operand,
    /// `[M, K]` bf16, f16 or f32, row-major.
    pub x: Operand,
    /// Which values share a scale.
    pub granularity: Granularity,
}

/// The arguments of `transform_scales`.
#[derive(Clone, Copy, Debug)]
pub struct TransformScales {
    /// f32, `[MN, K]` or `[G, MN, K]`, any strides.
    pub from: Operand,
    /// The same as f32 of any strides, or packed: `[MN, ceil(K/4)]` i32 of any strides, or blocks of 128 by 4.
    pub to: Operand,
}

/// What a kernel has to be told.
#[derive(Clone, Copy, Debug)]
pub struct CheckedQuantize {
    /// The arguments, but for those of a launch.
    pub args: Args,
    /// The type of the values.
    pub input: Input,
    /// The type of the codes.
    pub code: Code,
    /// Whether neighbouring rows have neighbouring scales.
    pub mn_major: bool,
    /// How many groups of scales there are.
    pub groups: u32,
}

impl Quantize {
    /// Checks every rule of the call; nothing has to be done where there are no codes.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check(&self) -> Result<Option<CheckedQuantize>> {
        let Quantize { x, codes, scales, granularity, format, source } = self;
        let (input, code) = types(x, codes, *granularity)?;
        let [rows, columns] = code_dims(codes, code)?;
        let [x_rows, x_columns] = x.matrix_dims()?;
        match source {
            QuantizeSource::Matrix | QuantizeSource::RmsNorm { .. }
                if [x_rows, x_columns] != [rows, columns] =>
            {
                return Err(x.wrong_shape([rows, columns], "the shape of `codes`"));
            }
            QuantizeSource::SwiGlu if [x_rows, x_columns] != [rows, 2 * columns] => {
                return Err(x.wrong_shape([rows, 2 * columns], "gates and ups for the rows of `codes`"));
            }
            QuantizeSource::Rows(_) if x_columns != columns => {
                return Err(x.wrong_shape([x_rows, columns], "the columns of `codes`"));
            }
            _ => {}
        }
        let fused = !matches!(source, QuantizeSource::Matrix);
        if fused && (*granularity != Granularity::PerToken || codes.dtype != DType::E4m3) {
            codes.expect_dtype(&[DType::E4m3])?;
            return Err(Error::Shape {
                argument: "granularity",
                expected: "1x128, where values are computed or gathered".to_owned(),
                found: granularity.to_string(),
            });
        }
        let layout = ScaleLayout::of(scales, *granularity, [rows, columns])?;
        if layout.packed && *format == ScaleFormat::F32 {
            return Err(Error::DType {
                argument: scales.name,
                expected: "f32, as packed scales are powers of two".to_owned(),
                found: scales.dtype.to_string(),
            });
        }
        for operand in [codes, scales] {
            operand.expect_device(x)?;
        }
        let (list, epsilon) = match source {
            QuantizeSource::Rows(named) => {
                named.expect_dtype(&[DType::I32])?;
                named.expect_list(rows)?;
                (Some(named), 0.0)
            }
            QuantizeSource::RmsNorm { weight, epsilon } => {
                weight.expect_dtype(&[x.dtype])?;
                weight.expect_list(columns)?;
                (Some(weight), *epsilon)
            }
            QuantizeSource::Matrix | QuantizeSource::SwiGlu => (None, 0.0),
        };
        if !(epsilon >= 0.0 && epsilon.is_finite()) {
            return Err(Error::Shape {
                argument: "epsilon",
                expected: "a number that is not negative".to_owned(),
                found: epsilon.to_string(),
            });
        }
        if let Some(list) = list {
            list.expect_device(x)?;
        }
        if rows == 0 || columns == 0 {
            return Ok(None);
        }
        let (x_pitch, x_memory) = match x_rows {
            // Nothing is read, as no row can be named.
            0 => (columns as u64, None),
            _ => x.plain_rows().map(|(pitch, memory)| (pitch, Some(memory)))?,
        };
        let (codes_pitch, codes_memory) = codes.plain_rows()?;
        limit(codes, rows, columns)?;
        let scales_memory = layout.memory(scales)?;
        if let Some(memory) = &x_memory {
            codes.expect_apart(&codes_memory, x, memory)?;
            scales.expect_apart(&scales_memory, x, memory)?;
        }
        scales.expect_apart(&scales_memory, codes, &codes_memory)?;
        let mut aligned = true;
        if let Some(list) = list {
            let (_, memory) = list.list().plain_rows()?;
            codes.expect_apart(&codes_memory, list, &memory)?;
            scales.expect_apart(&scales_memory, list, &memory)?;
            aligned = list.dtype == DType::I32 || list.address.is_multiple_of(16);
        }
        let mut args = layout.args(rows, columns);
        if aligned {
            args.flags |= vectors(x, x_pitch, codes, codes_pitch, code);
        }
        if *format == ScaleFormat::PowerOfTwo {
            args.flags |= Flags::POWER_OF_TWO;
        }
        let args = Args {
            x: x.address,
            codes: codes.address,
            scales: scales.address,
            from: list.map_or(0, |list| list.address),
            epsilon: epsilon.to_bits(),
            // plain_rows has bounded both by u32::MAX.
            x_pitch: x_pitch as u32,
            codes_pitch: codes_pitch as u32,
            source_rows: x_rows as u32,
            ..args
        };
        Ok(Some(CheckedQuantize { args, input, code, mn_major: layout.mn_major(), groups: 1 }))
    }
}

impl Dequantize {
    /// Checks every rule of the call; nothing has to be done where there are no codes.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check(&self) -> Result<Option<CheckedQuantize>> {
        let Dequantize { codes, scales, x, granularity } = self;
        let (input, code) = types(x, codes, *granularity)?;
        let [rows, columns] = code_dims(codes, code)?;
        if x.matrix_dims()? != [rows, columns] {
            return Err(x.wrong_shape([rows, columns], "the shape of `codes`"));
        }
        let layout = ScaleLayout::of(scales, *granularity, [rows, columns])?;
        for operand in [scales, x] {
            operand.expect_device(codes)?;
        }
        if rows == 0 || columns == 0 {
            return Ok(None);
        }
        let (x_pitch, x_memory) = x.plain_rows()?;
        let (codes_pitch, codes_memory) = codes.plain_rows()?;
        limit(codes, rows, columns)?;
        let scales_memory = layout.memory(scales)?;
        x.expect_apart(&x_memory, codes, &codes_memory)?;
        x.expect_apart(&x_memory, scales, &scales_memory)?;
        let args = layout.args(rows, columns);
        let args = Args {
            x: x.address,
            codes: codes.address,
            scales: scales.address,
            x_pitch: x_pitch as u32,
            codes_pitch: codes_pitch as u32,
            shifts: granularity.shifts(),
            flags: args.flags | vectors(x, x_pitch, codes, codes_pitch, code),
            ..args
        };
        Ok(Some(CheckedQuantize { args, input, code, mn_major: layout.mn_major(), groups: 1 }))
    }
}

impl TransformScales {
    /// Checks every rule of the call; nothing has to be done where there are no scales.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check(&self) -> Result<Option<CheckedQuantize>> {
        let TransformScales { from, to } = self;
        from.expect_dtype(&[DType::F32])?;
        let grouped = from.rank == 3;
        let groups = if grouped { from.dims[0] } else { 1 };
        let matrix = if grouped { from.of_group() } else { *from };
        let dims @ [rows, columns] = matrix.matrix_dims()?;
        let group_of_to = if grouped {
            to.expect_rank(3, "a group of scales for each of `from`")?;
            if to.dims[0] != groups {
                return Err(to.wrong_shape([groups, rows, to.dims[2]], "the groups and rows of `from`"));
            }
            to.of_group()
        } else {
            *to
        };
        // What one scale stands for has been settled: each is a group of its own.
        let layout = ScaleLayout::scales(&group_of_to, dims)?;
        to.expect_device(from)?;
        if rows == 0 || columns == 0 || groups == 0 {
            return Ok(None);
        }
        if groups > 65535 {
            return Err(from.too_large("at most 65535 groups".to_owned()));
        }
        let (from_strides, from_memory) = matrix.scale_strides()?;
        let to_memory = layout.memory(&group_of_to)?;
        let group_stride = |operand: &Operand, memory: &Footprint| -> Result<u64> {
            let stride = if grouped && groups > 1 { operand.strides[0] } else { 0 };
            let (size, length) = (operand.dtype.size() as u64, memory.length());
            if grouped && groups > 1 && (stride < 0 || stride as u64 * size < length) {
                return Err(Error::ScaleLayout {
                    argument: operand.name,
                    expected: "groups that do not overlap".to_owned(),
                    found: format!("{stride} elements from group to group"),
                });
            }
            Ok(stride as u64)
        };
        let from_group = group_stride(from, &from_memory)?;
        let to_group = group_stride(to, &to_memory)? * 4;
        if from_group > u64::from(u32::MAX) {
            return Err(from.too_large(format!("at most {} elements from group to group", u32::MAX)));
        }
        let repeat = |memory: Footprint, stride: u64, operand: &Operand| -> Result<Footprint> {
            let end = u128::from(stride) * (groups as u128 - 1) + u128::from(memory.length());
            let end = operand.end_of(end)?;
            Ok(memory.repeated(groups as u64, stride, end))
        };
        let from_memory = repeat(from_memory, from_group * 4, from)?;
        let to_memory = repeat(to_memory, to_group, to)?;
        to.expect_apart(&to_memory, from, &from_memory)?;
        let mut args = layout.scale_args();
        args.dims = [rows as u32, columns as u32];
        if layout.packed {
            args.flags |= Flags::POWER_OF_TWO;
        }
        let args = Args {
            scales: to.address,
            from: from.address,
            from_strides: [from_group as u32, from_strides.mn, from_strides.k],
            group_stride: to_group,
            ..args
        };
        let groups = groups as u32;
        Ok(Some(CheckedQuantize { args, input: Input::F32, code: Code::E4m3, mn_major: false, groups }))
    }
}

/// How scales lie in memory.
struct ScaleLayout {
    /// Rows and columns of scales.
    dims: [i64; 2],
    /// As exponents, four of a row in a word.
    packed: bool,
    /// In blocks of 128 by 4.
    blocked: bool,
    /// Strides of the elements of the tensor.
    strides: [u32; 2],
}

impl ScaleLayout {
    /// The layout of the scales of a matrix.
    fn of(scales: &Operand, granularity: Granularity, dims: [i64; 2]) -> Result<ScaleLayout> {
        let [down, across] = granularity.block(dims[0] as usize, dims[1] as usize).map(|x| x as i64);
        let wanted = [ceil(dims[0], down), ceil(dims[1], across)];
        if !granularity.is_group() {
            scales.expect_dtype(&[DType::F32])?;
        }
        ScaleLayout::scales(scales, wanted)
    }

    /// The layout of as many scales.
    fn scales(scales: &Operand, dims: [i64; 2]) -> Result<ScaleLayout> {
        scales.expect_dtype(&[DType::F32, DType::I32])?;
        let packed = scales.dtype == DType::I32;
        let blocked = packed && scales.rank == 4;
        let [rows, columns] = dims;
        if blocked {
            let wanted = [ceil(rows, SCALE_BLOCK[0]), ceil(columns, SCALE_BLOCK[1]), 32, 4];
            if scales.dims != wanted {
                return Err(Error::ScaleShape {
                    argument: scales.name,
                    expected: format!("{wanted:?}, blocks of 128 rows by 4"),
                    found: format!("{:?}", scales.dims),
                });
            }
            let contiguous = [wanted[1] * 128, 128, 4, 1];
            let wrong = (0..4).any(|i| wanted[i] > 1 && scales.strides[i] != contiguous[i]);
            if wrong {
                return Err(Error::ScaleLayout {
                    argument: scales.name,
                    expected: "blocks without gaps".to_owned(),
                    found: format!("strides {:?}", scales.strides),
                });
            }
            let row = u32::try_from(wanted[1]).ok().filter(|blocks| *blocks < STRIDE_LIMIT / 512);
            let row = row.ok_or_else(|| scales.too_large("fewer columns".to_owned()))?;
            return Ok(ScaleLayout { dims, packed, blocked, strides: [128 * row, 128] });
        }
        let wanted = [rows, if packed { ceil(columns, 4) } else { columns }];
        let meaning = if packed { "four packed scales each" } else { "one each" };
        scales.expect_scales(wanted, meaning)?;
        if wanted.contains(&0) {
            return Ok(ScaleLayout { dims, packed, blocked, strides: [1, 1] });
        }
        let (strides, _) = scales.scale_strides()?;
        if strides.mn.max(strides.k) >= STRIDE_LIMIT {
            return Err(scales.too_large(format!("strides below {STRIDE_LIMIT} elements")));
        }
        Ok(ScaleLayout { dims, packed, blocked, strides: [strides.mn, strides.k] })
    }

    /// The bytes of the scales, which are written and so must not overlap each other.
    fn memory(&self, scales: &Operand) -> Result<Footprint> {
        if self.blocked {
            let words = scales.dims.iter().map(|dim| *dim as u128).product::<u128>();
            scales.expect_aligned(4)?;
            return Ok(Footprint::whole(scales.address, scales.end_of(words * 4)?));
        }
        let [rows, columns, ..] = scales.dims.map(|dim| dim as u64);
        let [mn, k] = self.strides.map(u64::from);
        let apart = rows <= 1 || columns <= 1 || mn > (columns - 1) * k || k > (rows - 1) * mn;
        if !apart {
            return Err(Error::ScaleLayout {
                argument: scales.name,
                expected: "scales that do not overlap".to_owned(),
                found: format!("strides {:?} for {:?}", &scales.strides[..2], &scales.dims[..2]),
            });
        }
        Ok(scales.scale_strides()?.1)
    }

    /// Whether neighbouring rows have neighbouring scales.
    fn mn_major(&self) -> bool {
        let [mn, k] = self.strides;
        !self.blocked && mn < k
    }

    /// The arguments that tell where scales are.
    fn scale_args(&self) -> Args {
        let [rows, columns] = self.dims.map(|dim| dim as u32);
        let [mn, k] = self.strides;
        let fours = columns.next_multiple_of(4);
        match (self.packed, self.blocked) {
            (false, _) => Args {
                scale_dims: [rows, columns],
                scale_strides: [4 * mn, 16 * k, 4 * k],
                ..Args::default()
            },
            (true, false) => Args {
                scale_dims: [rows, fours],
                scale_strides: [4 * mn, 4 * k, 1],
                flags: Flags::BYTES,
                ..Args::default()
            },
            (true, true) => Args {
                scale_dims: [rows.next_multiple_of(128), fours],
                scale_strides: [4 * mn, 4 * k, 1],
                flags: Flags::BYTES | Flags::BLOCKED,
                ..Args::default()
            },
        }
    }

    /// The same with the dimensions of the matrix.
    fn args(&self, rows: i64, columns: i64) -> Args {
        Args { dims: [rows as u32, columns as u32], ..self.scale_args() }
    }
}

/// The types of a matrix and its codes.
fn types(x: &Operand, codes: &Operand, granularity: Granularity) -> Result<(Input, Code)> {
    x.expect_dtype(&[DType::Bf16, DType::F16, DType::F32])?;
    if granularity == Granularity::PerGroup32 {
        codes.expect_dtype(&[DType::E4m3, DType::E5m2, DType::U8])?;
    } else {
        codes.expect_dtype(&[DType::E4m3, DType::E5m2])?;
    }
    let input = match x.dtype {
        DType::Bf16 => Input::Bf16,
        DType::F16 => Input::F16,
        _ => Input::F32,
    };
    let code = match codes.dtype {
        DType::E4m3 => Code::E4m3,
        DType::E5m2 => Code::E5m2,
        _ => Code::E2m1,
    };
    Ok((input, code))
}

/// Rows and columns of codes.
fn code_dims(codes: &Operand, code: Code) -> Result<[i64; 2]> {
    let [rows, bytes] = codes.matrix_dims()?;
    Ok([rows, bytes * i64::from(code.per_byte())])
}

/// The flag of matrices that are moved as vectors of eight elements.
fn vectors(x: &Operand, x_pitch: u64, codes: &Operand, codes_pitch: u64, code: Code) -> u32 {
    let size = x.dtype.size() as u64;
    let chunk = u64::from(8 / code.per_byte());
    let whole = (codes.dims[1] as u64).is_multiple_of(chunk)
        && (x.dims[0] <= 1 || (x_pitch * size).is_multiple_of(16))
        && x.address.is_multiple_of(16)
        && (codes.dims[0] <= 1 || codes_pitch.is_multiple_of(chunk))
        && codes.address.is_multiple_of(chunk);
    if whole { Flags::VECTORS } else { 0 }
}

/// Refuses what kernels cannot count.
fn limit(codes: &Operand, rows: i64, columns: i64) -> Result<()> {
    if rows * ceil(columns, 8) < CHUNKS_LIMIT {
        return Ok(());
    }
    Err(codes.too_large(format!("fewer than {CHUNKS_LIMIT} chunks of eight elements")))
}

fn ceil(x: i64, divisor: i64) -> i64 {
    (x + divisor - 1) / divisor
}
