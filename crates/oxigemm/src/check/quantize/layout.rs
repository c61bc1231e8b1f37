//! How scales lie in memory.

use oxigemm_kernels::quantize::{Args, Flags};

use crate::error::{Error, Result};
use crate::tensor::DType;
use crate::tensor::desc::Footprint;
use crate::tensor::desc::Operand;
use crate::tensor::granularity::Granularity;

/// Strides of scales, in elements: as bytes, and four times, they fit in 32 bits.
const STRIDE_LIMIT: u32 = 1 << 28;
/// Rows and columns of a block of scales as tensor memory holds it.
const SCALE_BLOCK: [i64; 2] = [128, 4];

/// What the elements of a tensor of scales are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// An f32 each.
    Numbers,
    /// A byte each.
    Bytes,
    /// Four bytes of a row each.
    Words,
    /// The same, in blocks of 128 rows by one.
    Blocks,
}

/// How scales lie in memory.
pub(super) struct ScaleLayout {
    /// Rows and columns of scales.
    dims: [i64; 2],
    form: Form,
    /// Strides of the elements of the tensor.
    strides: [u32; 2],
}

impl ScaleLayout {
    /// The layout of the scales of a matrix.
    pub fn of(scales: &Operand, granularity: Granularity, dims: [i64; 2]) -> Result<ScaleLayout> {
        let [down, across] = granularity.block(dims[0] as usize, dims[1] as usize).map(|x| x as i64);
        let wanted = [ceil(dims[0], down), ceil(dims[1], across)];
        if !granularity.is_group() {
            scales.expect_dtype(&[DType::F32])?;
        }
        ScaleLayout::scales(scales, wanted)
    }

    /// The layout of as many scales, which are f32 or exponents.
    pub fn scales(scales: &Operand, dims: [i64; 2]) -> Result<ScaleLayout> {
        scales.expect_dtype(&[DType::F32, DType::I32])?;
        ScaleLayout::of_any(scales, dims)
    }

    /// The layout of as many scales, which are e4m3.
    pub fn of_e4m3(scales: &Operand, dims: [i64; 2]) -> Result<ScaleLayout> {
        scales.expect_dtype(&[DType::E4m3, DType::I32])?;
        ScaleLayout::of_any(scales, dims)
    }

    fn of_any(scales: &Operand, dims: [i64; 2]) -> Result<ScaleLayout> {
        let form = match scales.dtype {
            DType::I32 if scales.rank == 4 => Form::Blocks,
            DType::I32 => Form::Words,
            DType::E4m3 => Form::Bytes,
            _ => Form::Numbers,
        };
        let [rows, columns] = dims;
        if form == Form::Blocks {
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
            return Ok(ScaleLayout { dims, form, strides: [128 * row, 128] });
        }
        let (wanted, meaning) = match form {
            Form::Words => ([rows, ceil(columns, 4)], "four packed scales each"),
            _ => ([rows, columns], "one each"),
        };
        scales.expect_every_scale(&wanted, meaning)?;
        if wanted.contains(&0) {
            return Ok(ScaleLayout { dims, form, strides: [1, 1] });
        }
        let (strides, _) = scales.scale_strides()?;
        if strides.mn.max(strides.k) >= STRIDE_LIMIT {
            return Err(scales.too_large(format!("strides below {STRIDE_LIMIT} elements")));
        }
        Ok(ScaleLayout { dims, form, strides: [strides.mn, strides.k] })
    }

    /// The bytes of scales that are written, and so must not overlap each other.
    pub fn written(&self, scales: &Operand) -> Result<Footprint> {
        let [rows, columns, ..] = scales.dims.map(|dim| dim as u64);
        let [mn, k] = self.strides.map(u64::from);
        let repeated = (rows > 1 && mn == 0) || (columns > 1 && k == 0);
        let apart = rows <= 1 || columns <= 1 || mn > (columns - 1) * k || k > (rows - 1) * mn;
        if self.form != Form::Blocks && (repeated || !apart) {
            return Err(Error::ScaleLayout {
                argument: scales.name,
                expected: "scales that do not overlap, as they are written".to_owned(),
                found: format!("strides {:?} for {:?}", &scales.strides[..2], &scales.dims[..2]),
            });
        }
        self.memory(scales)
    }

    /// The bytes of scales that are read.
    pub fn memory(&self, scales: &Operand) -> Result<Footprint> {
        if self.form == Form::Blocks {
            let words = scales.dims.iter().map(|dim| *dim as u128).product::<u128>();
            scales.expect_aligned(4)?;
            return Ok(Footprint::whole(scales.address, scales.end_of(words * 4)?));
        }
        Ok(scales.scale_strides()?.1)
    }

    /// Strides of the elements of the tensor.
    pub fn strides(&self) -> [u32; 2] {
        self.strides
    }

    /// Whether neighbouring rows have neighbouring scales.
    pub fn mn_major(&self) -> bool {
        let [mn, k] = self.strides;
        self.form != Form::Blocks && mn < k
    }

    /// Whether scales are exponents.
    pub fn is_packed(&self) -> bool {
        matches!(self.form, Form::Words | Form::Blocks)
    }

    /// The arguments that tell where scales are.
    pub fn scale_args(&self) -> Args {
        let [rows, columns] = self.dims.map(|dim| dim as u32);
        let [mn, k] = self.strides;
        let fours = columns.next_multiple_of(4);
        match self.form {
            Form::Numbers => Args {
                scale_dims: [rows, columns],
                scale_strides: [4 * mn, 16 * k, 4 * k],
                ..Args::default()
            },
            Form::Bytes => Args {
                scale_dims: [rows, columns],
                scale_strides: [mn, 4 * k, k],
                flags: Flags::BYTES,
                ..Args::default()
            },
            Form::Words => Args {
                scale_dims: [rows, fours],
                scale_strides: [4 * mn, 4 * k, 1],
                flags: Flags::BYTES,
                ..Args::default()
            },
            Form::Blocks => Args {
                scale_dims: [rows.next_multiple_of(128), fours],
                scale_strides: [4 * mn, 4 * k, 1],
                flags: Flags::BYTES | Flags::BLOCKED,
                ..Args::default()
            },
        }
    }

    /// The same with the dimensions of the matrix.
    pub fn args(&self, rows: i64, columns: i64) -> Args {
        Args { dims: [rows as u32, columns as u32], ..self.scale_args() }
    }
}

pub(super) fn ceil(x: i64, divisor: i64) -> i64 {
    (x + divisor - 1) / divisor
}
