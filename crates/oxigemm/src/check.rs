//! The argument checks of the GEMM functions.
//!
//! A check takes plain descriptions ([`Operand`]) and not tensors, so that it serves [`Tensor`](crate::Tensor)s and
//! raw device pointers alike. What it returns is all that planning and launching need to know of the arguments, in
//! a form where arguments that mean the same problem compare equal. On the way to success it allocates nothing.

use crate::device::DeviceId;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::MAX_RANK;

/// The edge of a scaling block: one scale covers 128 of K, and for B also 128 of N.
pub const BLOCK: u32 = 128;

/// TMA takes base addresses and row pitches in multiples of this many bytes.
const TMA_ALIGNMENT: u64 = 16;
/// TMA takes row pitches below this many bytes.
const TMA_PITCH_LIMIT: u64 = 1 << 40;
/// Kernels count tiles of at least 64x16 elements of D in 32 bits; with this bound they cannot overflow.
const D_ELEMENTS_LIMIT: i64 = 1 << 40;

/// One argument of a call: what it is and where it lies.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// The argument's name, for errors.
    pub name: &'static str,
    /// The type of the elements.
    pub dtype: DType,
    /// How many of `dims` and `strides` count.
    pub rank: usize,
    /// The dimensions, outermost first.
    pub dims: [i64; MAX_RANK],
    /// The distance between neighbours along each dimension, in elements.
    pub strides: [i64; MAX_RANK],
    /// The address of the first element.
    pub address: u64,
    /// Where the memory is.
    pub device: DeviceId,
}

impl Operand {
    /// A matrix.
    #[must_use]
    pub const fn matrix(
        name: &'static str,
        dtype: DType,
        dims: [i64; 2],
        strides: [i64; 2],
        address: u64,
        device: DeviceId,
    ) -> Operand {
        let dims = [dims[0], dims[1], 1, 1];
        let strides = [strides[0], strides[1], 1, 1];
        Operand { name, dtype, rank: 2, dims, strides, address, device }
    }
}

/// The arguments of `fp8_gemm_nt`: D = C + A·Bᵀ.
///
/// ```
/// use oxigemm::check::{Accumulate, Checked, Fp8GemmNt};
/// use oxigemm::{DType, Device, Tensor};
///
/// let cpu = Device::Cpu;
/// let a = Tensor::zeros(DType::E4m3, &[64, 512], &cpu)?;
/// let sfa = Tensor::zeros(DType::F32, &[64, 4], &cpu)?;
/// let b = Tensor::zeros(DType::E4m3, &[256, 512], &cpu)?;
/// let sfb = Tensor::zeros(DType::F32, &[2, 4], &cpu)?;
/// let d = Tensor::zeros(DType::Bf16, &[64, 256], &cpu)?;
///
/// let arguments = Fp8GemmNt {
///     a: a.describe("a"),
///     sfa: sfa.describe("sfa"),
///     b: b.describe("b"),
///     sfb: sfb.describe("sfb"),
///     c: Some(d.describe("c")),
///     d: d.describe("d"),
/// };
/// let Checked::Launch(problem) = arguments.check()? else { panic!("there is work to do") };
/// assert_eq!((problem.m, problem.n, problem.k), (64, 256, 512));
/// assert_eq!(problem.c, Accumulate::InPlace);
/// # Ok::<(), oxigemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Fp8GemmNt {
    /// `[M, K]` e4m3, K-major.
    pub a: Operand,
    /// The scales of A: `[M, ceil(K/128)]` f32.
    pub sfa: Operand,
    /// `[N, K]` e4m3, K-major.
    pub b: Operand,
    /// The scales of B: `[ceil(N/128), ceil(K/128)]` f32.
    pub sfb: Operand,
    /// What is added to the product: like D. It may be D itself.
    pub c: Option<Operand>,
    /// The result: `[M, N]` bf16 or f32, row-major.
    pub d: Operand,
}

/// What a call with good arguments has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// Run a kernel.
    Launch(Problem),
    /// Something for which no GEMM kernel is needed.
    Trivial(Trivial),
}

/// A call that multiplies nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trivial {
    /// D has no elements, or the product has none and C is D.
    Nothing,
    /// K is 0 and there is no C: D becomes 0.
    Zero,
    /// K is 0: D becomes C.
    CopyC,
}

/// A checked GEMM. Equal problems take the same plan.
///
/// Pitches and strides are in elements. Where a dimension is 1 its stride has no meaning and is normalized: a pitch
/// to the row length rounded up to 16 bytes, the stride of a scale to 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Rows of A and D; at most `i32::MAX`, like `n` and `k`.
    pub m: u32,
    /// Rows of B, columns of D.
    pub n: u32,
    /// Columns of A and B.
    pub k: u32,
    /// From one row of A to the next.
    pub a_pitch: u64,
    /// From one row of B to the next.
    pub b_pitch: u64,
    /// From one row of D to the next.
    pub d_pitch: u64,
    /// What is added to the product.
    pub c: Accumulate,
    /// The strides of A's scales.
    pub sfa: ScaleStrides,
    /// The strides of B's scales.
    pub sfb: ScaleStrides,
    /// The element type of D (and C): bf16 or f32.
    pub d_type: DType,
}

/// What is added to a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Accumulate {
    /// Nothing.
    None,
    /// The old content of D.
    InPlace,
    /// Another matrix, apart from D.
    From {
        /// From one row of C to the next, in elements.
        pitch: u64,
    },
}

/// The strides of a scale matrix, in elements. The offset of the last scale fits in an `i32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScaleStrides {
    /// From one row of A, or one 128 rows of B, to the next.
    pub mn: u32,
    /// From one 128 of K to the next.
    pub k: u32,
}

impl Problem {
    /// How many 128-wide blocks K has, the tail included.
    #[must_use]
    pub const fn k_blocks(&self) -> u32 {
        self.k.div_ceil(BLOCK)
    }

    /// Multiplications and additions of the product.
    #[must_use]
    pub fn flops(&self) -> f64 {
        2.0 * f64::from(self.m) * f64::from(self.n) * f64::from(self.k)
    }

    /// Bytes that must cross the memory bus at least once: A, B, their scales, D, and C where there is one.
    #[must_use]
    pub fn bytes(&self) -> f64 {
        let [m, n, k] = [self.m, self.n, self.k].map(f64::from);
        let scales = f64::from(self.k_blocks()) * (m + f64::from(self.n.div_ceil(BLOCK)));
        let outputs = if self.c == Accumulate::None { 1.0 } else { 2.0 };
        (m + n) * k + 4.0 * scales + outputs * m * n * self.d_type.size() as f64
    }
}

impl Fp8GemmNt {
    /// Checks every rule of the call.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check(&self) -> Result<Checked> {
        let Fp8GemmNt { a, sfa, b, sfb, c, d } = self;

        a.expect_dtype(&[DType::E4m3])?;
        b.expect_dtype(&[DType::E4m3])?;
        sfa.expect_dtype(&[DType::F32])?;
        sfb.expect_dtype(&[DType::F32])?;
        d.expect_dtype(&[DType::Bf16, DType::F32])?;
        let [m, k] = a.matrix_dims()?;
        let [n, b_k] = b.matrix_dims()?;
        if b_k != k {
            return Err(b.wrong_shape([n, k], "with the K of `a`"));
        }
        let (k_blocks, n_blocks) = (blocks(k), blocks(n));
        sfa.expect_scales([m, k_blocks], "one per row of `a` and 128 of K")?;
        sfb.expect_scales([n_blocks, k_blocks], "one per 128 rows of `b` and 128 of K")?;
        if d.matrix_dims()? != [m, n] {
            return Err(d.wrong_shape([m, n], "the rows of `a` by the rows of `b`"));
        }
        if m * n > D_ELEMENTS_LIMIT {
            return Err(d.too_large(format!("at most {D_ELEMENTS_LIMIT} elements")));
        }
        for operand in [sfa, b, sfb, d] {
            operand.expect_device(a)?;
        }
        if let Some(c) = c {
            c.expect_dtype(&[d.dtype])?;
            if c.matrix_dims()? != [m, n] {
                return Err(c.wrong_shape([m, n], "the shape of `d`"));
            }
            c.expect_device(a)?;
        }
        if m == 0 || n == 0 {
            return Ok(Checked::Trivial(Trivial::Nothing));
        }

        let (d_pitch, d_memory) = d.plain_rows()?;
        let mut accumulate = Accumulate::None;
        if let Some(c) = c {
            let (pitch, memory) = c.plain_rows()?;
            accumulate = if c.address == d.address && pitch == d_pitch {
                Accumulate::InPlace
            } else {
                d.expect_apart(&d_memory, c, &memory)?;
                Accumulate::From { pitch }
            };
        }
        if k == 0 {
            return Ok(Checked::Trivial(match accumulate {
                Accumulate::None => Trivial::Zero,
                Accumulate::InPlace => Trivial::Nothing,
                Accumulate::From { .. } => Trivial::CopyC,
            }));
        }

        let (a_pitch, a_memory) = a.tma_rows()?;
        let (b_pitch, b_memory) = b.tma_rows()?;
        let (sfa_strides, sfa_memory) = sfa.scale_strides()?;
        let (sfb_strides, sfb_memory) = sfb.scale_strides()?;
        let inputs = [(a, a_memory), (b, b_memory), (sfa, sfa_memory), (sfb, sfb_memory)];
        for (input, memory) in &inputs {
            d.expect_apart(&d_memory, input, memory)?;
        }
        Ok(Checked::Launch(Problem {
            // matrix_dims has bounded each of them by i32::MAX.
            m: m as u32,
            n: n as u32,
            k: k as u32,
            a_pitch,
            b_pitch,
            d_pitch,
            c: accumulate,
            sfa: sfa_strides,
            sfb: sfb_strides,
            d_type: d.dtype,
        }))
    }
}

fn blocks(length: i64) -> i64 {
    (length + i64::from(BLOCK) - 1) / i64::from(BLOCK)
}

/// The bytes of a matrix: `width` bytes at `start`, and again every `pitch` up to `end`. Where that is not its form
/// `pitch` is 0 and all of `start..end` counts.
struct Footprint {
    start: u64,
    end: u64,
    pitch: u64,
    width: u64,
}

impl Footprint {
    fn overlaps(&self, other: &Footprint) -> bool {
        if self.start >= other.end || other.start >= self.end {
            return false;
        }
        if self.pitch == 0 || self.pitch != other.pitch {
            return true;
        }
        // Columns of one larger matrix, side by side: compare where in a row the two begin and end.
        let shift = i128::from(self.start) - i128::from(other.start);
        let begin = shift.rem_euclid(i128::from(self.pitch)) as u64;
        begin < other.width || begin + self.width > self.pitch
    }
}

impl Operand {
    fn dims(&self) -> &[i64] {
        &self.dims[..self.rank.min(MAX_RANK)]
    }

    fn expect_dtype(&self, allowed: &[DType]) -> Result<()> {
        if allowed.contains(&self.dtype) {
            return Ok(());
        }
        let names: Vec<&str> = allowed.iter().map(|dtype| dtype.name()).collect();
        Err(Error::DType { argument: self.name, expected: names.join(" or "), found: self.dtype.to_string() })
    }

    fn expect_device(&self, first: &Operand) -> Result<()> {
        if self.device == first.device {
            return Ok(());
        }
        Err(Error::Device {
            argument: self.name,
            expected: format!("{}, where `{}` is", first.device, first.name),
            found: self.device.to_string(),
        })
    }

    /// The two dimensions, each within what a kernel counts with.
    fn matrix_dims(&self) -> Result<[i64; 2]> {
        if self.rank != 2 {
            return Err(Error::Rank {
                argument: self.name,
                expected: "a matrix (2 dimensions)".to_owned(),
                found: format!("{} dimensions, {:?}", self.rank, self.dims()),
            });
        }
        let [rows, columns, ..] = self.dims;
        if rows < 0 || columns < 0 {
            return Err(Error::Shape {
                argument: self.name,
                expected: "dimensions of 0 or more".to_owned(),
                found: format!("{:?}", self.dims()),
            });
        }
        if rows.max(columns) > i64::from(i32::MAX) {
            return Err(self.too_large(format!("dimensions up to {}", i32::MAX)));
        }
        Ok([rows, columns])
    }

    fn expect_scales(&self, expected: [i64; 2], meaning: &str) -> Result<()> {
        if self.matrix_dims()? == expected {
            return Ok(());
        }
        Err(Error::ScaleShape {
            argument: self.name,
            expected: format!("{expected:?}, {meaning}"),
            found: format!("{:?}", self.dims()),
        })
    }

    /// Checks a matrix that TMA reads; gives its pitch in elements and its bytes.
    fn tma_rows(&self) -> Result<(u64, Footprint)> {
        let size = self.dtype.size() as u64;
        let unit = TMA_ALIGNMENT / size;
        let pitch = self.row_pitch()?;
        if !pitch.is_multiple_of(unit) {
            return Err(self.not_tma(format!(
                "the row pitch must be a multiple of {TMA_ALIGNMENT} bytes ({unit} {} elements), found {pitch} elements",
                self.dtype
            )));
        }
        if pitch >= TMA_PITCH_LIMIT / size {
            return Err(self.not_tma(format!(
                "the row pitch must be below {TMA_PITCH_LIMIT} bytes, found {pitch} {} elements",
                self.dtype
            )));
        }
        let footprint = self.rows_footprint(pitch)?;
        self.expect_aligned(TMA_ALIGNMENT)?;
        Ok((pitch, footprint))
    }

    /// Checks a matrix that threads read and write; gives its pitch in elements and its bytes.
    fn plain_rows(&self) -> Result<(u64, Footprint)> {
        let pitch = self.row_pitch()?;
        if pitch > u64::from(u32::MAX) {
            return Err(self.too_large(format!("a row pitch of at most {} elements", u32::MAX)));
        }
        let footprint = self.rows_footprint(pitch)?;
        self.expect_aligned(self.dtype.size() as u64)?;
        Ok((pitch, footprint))
    }

    /// The elements from row to row of a matrix whose rows have no gaps and do not overlap.
    fn row_pitch(&self) -> Result<u64> {
        let ([rows, columns, ..], [row_stride, column_stride, ..]) = (self.dims, self.strides);
        if columns > 1 && column_stride != 1 {
            return Err(self.wrong_strides("a stride of 1 along the last dimension".to_owned()));
        }
        if rows > 1 && row_stride < columns {
            return Err(self.wrong_strides(format!("at least {columns} elements from row to row")));
        }
        let unit = TMA_ALIGNMENT / self.dtype.size() as u64;
        Ok(if rows > 1 { row_stride as u64 } else { (columns as u64).next_multiple_of(unit) })
    }

    fn rows_footprint(&self, pitch: u64) -> Result<Footprint> {
        let size = self.dtype.size() as u64;
        let [rows, columns, ..] = self.dims;
        let (pitch, width) = (pitch * size, columns as u64 * size);
        let end = self.end_of((rows as u128 - 1) * u128::from(pitch) + u128::from(width))?;
        Ok(Footprint { start: self.address, end, pitch, width })
    }

    /// Checks the layout of a scale matrix; gives its strides and its bytes.
    fn scale_strides(&self) -> Result<(ScaleStrides, Footprint)> {
        let size = self.dtype.size() as u64;
        let ([rows, columns, ..], [row_stride, column_stride, ..]) = (self.dims, self.strides);
        if (rows > 1 && row_stride < 1) || (columns > 1 && column_stride < 1) {
            return Err(Error::ScaleLayout {
                argument: self.name,
                expected: "positive strides".to_owned(),
                found: format!("strides {:?} for {:?}", &self.strides[..2], self.dims()),
            });
        }
        let mn = if rows > 1 { row_stride as u64 } else { 1 };
        let k = if columns > 1 { column_stride as u64 } else { 1 };
        let last = (rows as u128 - 1) * u128::from(mn) + (columns as u128 - 1) * u128::from(k);
        if last > i32::MAX as u128 {
            return Err(
                self.too_large(format!("the last scale at most {} elements behind the first", i32::MAX))
            );
        }
        let end = self.end_of((last + 1) * u128::from(size))?;
        self.expect_aligned(size)?;
        let (pitch, width) = match (mn, k) {
            (_, 1) if rows > 1 && mn >= columns as u64 => (mn * size, columns as u64 * size),
            (1, _) if columns > 1 && k >= rows as u64 => (k * size, rows as u64 * size),
            _ => (0, 0),
        };
        let strides = ScaleStrides { mn: mn as u32, k: k as u32 };
        Ok((strides, Footprint { start: self.address, end, pitch, width }))
    }

    /// The address behind the last of `length` bytes.
    fn end_of(&self, length: u128) -> Result<u64> {
        if self.address == 0 {
            return Err(Error::NullPointer {
                argument: self.name,
                expected: format!("a {:?} matrix of {}", self.dims(), self.dtype),
            });
        }
        u64::try_from(u128::from(self.address) + length).map_err(|_| {
            self.too_large(format!("an end within the address space, from {:#x} on", self.address))
        })
    }

    fn expect_aligned(&self, alignment: u64) -> Result<()> {
        if self.address.is_multiple_of(alignment) {
            return Ok(());
        }
        Err(Error::Alignment {
            argument: self.name,
            expected: format!("an address that is a multiple of {alignment} bytes"),
            found: format!("{:#x}", self.address),
        })
    }

    /// Refuses an input that shares bytes with this output.
    fn expect_apart(&self, memory: &Footprint, input: &Operand, input_memory: &Footprint) -> Result<()> {
        if !memory.overlaps(input_memory) {
            return Ok(());
        }
        let exception = if input.name == "c" { ", or exactly the same matrix" } else { "" };
        Err(Error::Overlap {
            argument: input.name,
            with: self.name,
            expected: format!("memory apart from that of `{}`{exception}", self.name),
            found: format!(
                "{:#x}..{:#x} beside {:#x}..{:#x}",
                input_memory.start, input_memory.end, memory.start, memory.end
            ),
        })
    }

    #[cold]
    fn wrong_shape(&self, expected: [i64; 2], meaning: &str) -> Error {
        Error::Shape {
            argument: self.name,
            expected: format!("{expected:?}, {meaning}"),
            found: format!("{:?}", self.dims()),
        }
    }

    #[cold]
    fn wrong_strides(&self, expected: String) -> Error {
        let found = format!("strides {:?} for {:?}", &self.strides[..2], self.dims());
        Error::Stride { argument: self.name, expected, found }
    }

    #[cold]
    fn too_large(&self, expected: String) -> Error {
        let found = format!("{:?} {} with strides {:?}", self.dims(), self.dtype, &self.strides[..2]);
        Error::Overflow { argument: self.name, expected, found }
    }

    #[cold]
    fn not_tma(&self, reason: String) -> Error {
        Error::Tma { argument: self.name, reason }
    }
}
