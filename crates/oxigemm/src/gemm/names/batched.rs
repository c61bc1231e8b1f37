//! Batched GEMMs, with any strides from one matrix to the next.

use super::super::GemmOptions;
use super::expect_type;
use super::fp8::fp8_gemm_tn;
use crate::check::gemm::tensors::{Addend, Gemm, Grouping};
use crate::check::{BLOCK, GemmLayout};
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use crate::tensor::dtype::DType;

/// Batched GEMM with FP8 operands and scales: `D[g] = A[g]·B[g]ᵀ`.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[G, M, K]` | e4m3 | rows of K; pitch, batch stride and address multiples of 16 bytes |
/// | scales of `a` | `[G, M, ceil(K/128)]` | f32 | any strides |
/// | `b` | `[G, N, K]` | e4m3 | as `a` |
/// | scales of `b` | `[G, ceil(N/128), ceil(K/128)]` | f32 | any strides |
/// | `d` | `[G, M, N]` | bf16 or f32 | rows of N, any pitch and batch stride |
///
/// Where scales have 1 instead of more along a dimension, that one holds for all. Matrices may follow each other or lie
/// row beside row: views that were transposed need no copy. Where G, M or N is 0 nothing is done; K must not be 0.
/// A batch has at most 1024 GEMMs.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::{DType, Device, GemmOptions, Tensor, fp8_bgemm_nt};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (batch, m, n, k) = (2, 3, 8, 16);
/// let a = Tensor::from_f32(DType::E4m3, &vec![0.5; batch * m * k], &[batch, m, k], &device)?;
/// let b = [vec![1.0; n * k], vec![2.0; n * k]].concat();
/// let b = Tensor::from_f32(DType::E4m3, &b, &[batch, n, k], &device)?;
/// let one = Tensor::from_slice(&[1.0f32], &[1], &device)?;
/// let mut d = Tensor::zeros(DType::F32, &[batch, m, n], &device)?;
/// fp8_bgemm_nt((&a, &one), (&b, &one), &mut d, &GemmOptions::default())?;
/// assert_eq!(d.to_vec_f32()?, [vec![8.0; m * n], vec![16.0; m * n]].concat());
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn fp8_bgemm_nt(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    d: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    Gemm { grouping: Grouping::Batched, ..Gemm::fp8(a, b, d) }.run(options)
}

/// Batched GEMM, `D[g] = A[g]·B[g]`: as [`fp8_bgemm_nt`], but B is `[G, K, N]`, contiguous along either
/// of the last dimensions, and its scales are `[G, ceil(K/128), ceil(N/128)]`.
///
/// A B that is contiguous along N is transposed first, for the whole batch: see [`fp8_gemm`](crate::fp8_gemm) for where
/// to. That reads and writes all of B once more: keep it K-major where possible.
///
/// # Errors
/// As [`fp8_bgemm_nt`], of shapes as they are there; that the stream is being captured and its workspace would have to
/// grow.
pub fn fp8_bgemm_nn(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    d: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    let grouping = Grouping::Batched;
    Gemm { layout: GemmLayout::Nn, transpose: true, grouping, ..Gemm::fp8(a, b, d) }.run(options)
}

/// Einstein sums that are batched GEMMs with FP8 operands, without a copy of A or D.
///
/// | expression | a batch over | of GEMMs |
/// |---|---|---|
/// | `bhr,hdr->bhd` | `h` | A `[b, r]` with B `[d, r]`: [`fp8_bgemm_nt`] |
/// | `bhd,hdr->bhr` | `h` | A `[b, d]` with B `[d, r]`: [`fp8_bgemm_nn`] |
/// | `bhd,bhr->hdr` | `h` | A `[b, d]` with B `[b, r]`: [`fp8_gemm_tn`](crate::fp8_gemm_tn), a launch for each head |
///
/// The scales of A have its dimensions, and those of B its own, with one for 128 where K is, and of B one for 128 of
/// both: `[b, h, ceil(r/128)]` and `[h, ceil(d/128), ceil(r/128)]` for the first. The last, the gradient of weights, has
/// one for 128 of K alone: `[ceil(b/128), h, d]` and `[ceil(b/128), h, r]`.
///
/// # Errors
/// An expression that is none of these, and as those functions.
///
/// ```
/// use oxigemm::{DType, Device, GemmOptions, Tensor, fp8_einsum};
///
/// let device = Device::cpu();
/// let (b, h, r, d) = (3, 2, 16, 8);
/// let x = Tensor::from_f32(DType::E4m3, &vec![0.5; b * h * r], &[b, h, r], &device)?;
/// let w = Tensor::from_f32(DType::E4m3, &vec![2.0; h * d * r], &[h, d, r], &device)?;
/// let scales = Tensor::from_slice(&[1.0f32, 3.0], &[h, 1, 1], &device)?; // one for each head
/// let one = Tensor::from_slice(&[1.0f32], &[1, 1, 1], &device)?;
/// let mut y = Tensor::zeros(DType::Bf16, &[b, h, d], &device)?;
/// fp8_einsum("bhr,hdr->bhd", (&x, &one), (&w, &scales), &mut y, &GemmOptions::default())?;
/// assert_eq!(y.to_vec_f32()?[..2 * d], [[16.0; 8], [48.0; 8]].concat());
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn fp8_einsum(
    expression: &str,
    (a, sfa): (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    d: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    let function = match expression {
        "bhr,hdr->bhd" => fp8_bgemm_nt,
        "bhd,hdr->bhr" => fp8_bgemm_nn,
        "bhd,bhr->hdr" => {
            expect_shapes(expression, a, b.0, &[("d", d)])?;
            return weight_gradients((a, sfa), b, d, options);
        }
        other => {
            return Err(Error::Shape {
                argument: "expression",
                expected: "bhr,hdr->bhd, bhd,hdr->bhr or bhd,bhr->hdr".to_owned(),
                found: other.to_owned(),
            });
        }
    };
    expect_shapes(expression, a, b.0, &[("d", d)])?;
    expect_scales_by_head(sfa, a)?;
    let (a, sfa) = (by_head("a", a)?, by_head("sfa", sfa)?);
    function((&a, &sfa), b, &mut by_head("d", d)?, options)
}

/// `D[h] = A[:, h]ᵀ·B[:, h]`, a GEMM for each head.
fn weight_gradients(
    (a, sfa): (&Tensor, &Tensor),
    (b, sfb): (&Tensor, &Tensor),
    d: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    let heads = d.dims()[0];
    let (a, b) = (by_head("a", a)?, by_head("b", b)?);
    let scales = [("sfa", sfa), ("sfb", sfb)].map(|(argument, scales)| {
        let scales = by_head(argument, scales)?;
        match scales.dims()[0] == heads {
            true => Ok(scales),
            false => Err(Error::ScaleShape {
                argument,
                expected: format!("{heads} heads in the second dimension"),
                found: format!("{:?}", scales.transpose(0, 1)?.dims()),
            }),
        }
    });
    let [sfa, sfb] = scales;
    let (sfa, sfb) = (sfa?, sfb?);
    for head in 0..heads {
        let [a, sfa, b, sfb] = [&a, &sfa, &b, &sfb].map(|x| x.select(head));
        fp8_gemm_tn((&a?, &sfa?), (&b?, &sfb?), Addend::None, &mut d.select(head)?, options)?;
    }
    Ok(())
}

/// Batched GEMM with 16-bit operands: `D[g] = C[g] + A[g]·B[g]`.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[G, M, K]` | bf16 or f16 | rows of K; pitch, batch stride and address multiples of 16 bytes |
/// | `b` | `[G, N, K]`, of `nn` `[G, K, N]` | as `a` | contiguous along either of the last two; as `a` |
/// | `c`, `d` | `[G, M, N]` | that of `a`, or f32; the same | rows of N, any pitch; the same batch stride |
///
/// The layout is `nt` or `nn`. Matrices may follow each other or lie row beside row: views that were transposed need
/// no copy. Where G, M or N is 0 nothing is done; K must not be 0. A batch has at most 1024 GEMMs.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::{Addend, DType, Device, GemmLayout, GemmOptions, Tensor, half_bgemm};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (batch, m, n, k) = (2, 3, 8, 16);
/// let a = Tensor::from_f32(DType::Bf16, &vec![0.5; batch * m * k], &[batch, m, k], &device)?;
/// let b = [vec![1.0; n * k], vec![2.0; n * k]].concat();
/// let b = Tensor::from_f32(DType::Bf16, &b, &[batch, n, k], &device)?;
/// let mut d = Tensor::zeros(DType::F32, &[batch, m, n], &device)?;
/// half_bgemm(GemmLayout::Nt, &a, &b, Addend::None, &mut d, &GemmOptions::default())?;
/// assert_eq!(d.to_vec_f32()?, [vec![8.0; m * n], vec![16.0; m * n]].concat());
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn half_bgemm(
    layout: GemmLayout,
    a: &Tensor,
    b: &Tensor,
    c: Addend<'_>,
    d: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    Gemm { layout, c, grouping: Grouping::Batched, ..Gemm::half(a, b, d) }.run(options)
}

/// The functions by their names, each for one type and layout.
macro_rules! named {
    ($($name:ident: $dtype:ident $layout:ident, $formula:literal, $b:literal;)*) => {$(
        #[doc = concat!("D = C + ", $formula, " for every product of a batch, A `[G, M, K]` and B `", $b, "`:")]
        /// [`half_bgemm`] with its type and layout.
        ///
        /// # Errors
        #[doc = "As [`half_bgemm`]; operands of another type are refused."]
        pub fn $name(
            a: &Tensor,
            b: &Tensor,
            c: Addend<'_>,
            d: &mut Tensor,
            options: &GemmOptions,
        ) -> Result<()> {
            expect_type(a, DType::$dtype)?;
            half_bgemm(GemmLayout::$layout, a, b, c, d, options)
        }
    )*};
}

named! {
    bf16_bgemm_nt: Bf16 Nt, "A·Bᵀ", "[G, N, K]";
    bf16_bgemm_nn: Bf16 Nn, "A·B", "[G, K, N]";
    fp16_bgemm_nt: F16 Nt, "A·Bᵀ", "[G, N, K]";
    fp16_bgemm_nn: F16 Nn, "A·B", "[G, K, N]";
}

/// D = C + the sum of all `A[b]·B[b]ᵀ` with 16-bit operands: [`einsum`](crate::einsum) of `bmk,bnk->mn`.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[B, M, K]` | bf16 or f16 | rows of K; pitch, batch stride and address multiples of 16 bytes |
/// | `b` | `[B, N, K]` | as `a` | as `a` |
/// | `c`, `d` | `[M, N]` | that of `a`, or f32; the same | rows of N, any pitch |
///
/// All GEMMs are accumulated in FP32 and D is rounded once. The same call gives the same bits: where K is split, the
/// parts are added in their order. Where M or N is 0 nothing is done; where B or K is 0, D becomes C or 0.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::{Addend, DType, Device, GemmOptions, Tensor, half_bgemm_nt_summed};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (batch, m, n, k) = (3, 2, 8, 16);
/// let a = Tensor::from_f32(DType::Bf16, &vec![0.5; batch * m * k], &[batch, m, k], &device)?;
/// let b = Tensor::from_f32(DType::Bf16, &vec![2.0; batch * n * k], &[batch, n, k], &device)?;
/// let mut d = Tensor::from_f32(DType::F32, &vec![1.0; m * n], &[m, n], &device)?;
/// half_bgemm_nt_summed(&a, &b, Addend::InPlace, &mut d, &GemmOptions::default())?;
/// assert_eq!(d.to_vec_f32()?, vec![49.0; m * n]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn half_bgemm_nt_summed(
    a: &Tensor,
    b: &Tensor,
    c: Addend<'_>,
    d: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    Gemm { c, grouping: Grouping::Summed, ..Gemm::half(a, b, d) }.run(options)
}

/// Einstein sums that are batched GEMMs with 16-bit operands, without a copy of anything.
///
/// | expression | a batch over | of GEMMs |
/// |---|---|---|
/// | `bhr,hdr->bhd` | `h` | A `[b, r]` with B `[d, r]` |
/// | `bhd,hdr->bhr` | `h` | A `[b, d]` with B `[d, r]` |
/// | `bmk,bnk->mn` | `b` | A `[m, k]` with B `[n, k]`, summed |
///
/// The sum is [`half_bgemm_nt_summed`](crate::half_bgemm_nt_summed). Tensors are those of [`half_bgemm`]: the last
/// dimension is contiguous, and every other stride free.
///
/// # Errors
/// An expression that is none of these, and as [`half_bgemm`].
///
/// ```
/// use oxigemm::{Addend, DType, Device, GemmOptions, Tensor, einsum};
///
/// let device = Device::cpu();
/// let (b, h, r, d) = (3, 2, 16, 8);
/// let x = Tensor::from_f32(DType::Bf16, &vec![0.5; b * h * r], &[b, h, r], &device)?;
/// let w = Tensor::from_f32(DType::Bf16, &vec![2.0; h * d * r], &[h, d, r], &device)?;
/// let mut y = Tensor::zeros(DType::Bf16, &[b, h, d], &device)?;
/// einsum("bhr,hdr->bhd", &x, &w, Addend::None, &mut y, &GemmOptions::default())?;
/// assert_eq!(y.to_vec_f32()?, vec![16.0; b * h * d]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn einsum(
    expression: &str,
    a: &Tensor,
    b: &Tensor,
    c: Addend<'_>,
    d: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    let layout = match expression {
        "bhr,hdr->bhd" => GemmLayout::Nt,
        "bhd,hdr->bhr" => GemmLayout::Nn,
        "bmk,bnk->mn" => return half_bgemm_nt_summed(a, b, c, d, options),
        other => {
            return Err(Error::Shape {
                argument: "expression",
                expected: "bhr,hdr->bhd, bhd,hdr->bhr or bmk,bnk->mn".to_owned(),
                found: other.to_owned(),
            });
        }
    };
    expect_shapes(expression, a, b, &[("d", d)])?;
    let other = match c {
        Addend::From(c) => Some(by_head("c", c)?),
        Addend::None | Addend::InPlace => None,
    };
    let c = other.as_ref().map_or(c, Addend::From);
    half_bgemm(layout, &by_head("a", a)?, b, c, &mut by_head("d", d)?, options)
}

/// A tensor of an Einstein sum with the batch first.
fn by_head(name: &'static str, x: &Tensor) -> Result<Tensor> {
    if x.dims().len() == 3 {
        return x.transpose(0, 1);
    }
    let found = format!("{} dimensions, {:?}", x.dims().len(), x.dims());
    Err(Error::Rank { argument: name, expected: "3 dimensions".to_owned(), found })
}

/// Checks the shapes of an expression's tensors as the caller has them: a letter stands for one number everywhere.
fn expect_shapes(
    expression: &str,
    a: &Tensor,
    b: &Tensor,
    outputs: &[(&'static str, &Tensor)],
) -> Result<()> {
    let Some((inputs, output)) = expression.split_once("->") else { return Ok(()) };
    let letters = inputs.split(',').chain(std::iter::repeat(output));
    let tensors = [("a", a), ("b", b)].into_iter().chain(outputs.iter().copied());
    let mut known: Vec<(char, usize, &str)> = Vec::new();
    for ((argument, tensor), letters) in tensors.zip(letters) {
        if tensor.dims().len() != letters.len() {
            let expected = format!("{} dimensions, {letters}", letters.len());
            let found = format!("{} dimensions, {:?}", tensor.dims().len(), tensor.dims());
            return Err(Error::Rank { argument, expected, found });
        }
        let wanted = |(letter, &dim): (char, &usize)| {
            known.iter().find(|(other, ..)| *other == letter).map_or((dim, ""), |(_, dim, of)| (*dim, *of))
        };
        let wanted: Vec<(usize, &str)> = letters.chars().zip(tensor.dims()).map(wanted).collect();
        if let Some(i) = (0..wanted.len()).find(|&i| wanted[i].0 != tensor.dims()[i]) {
            let dims: Vec<usize> = wanted.iter().map(|(dim, _)| *dim).collect();
            return Err(Error::Shape {
                argument,
                expected: format!(
                    "{dims:?} for {letters}, with the {} of `{}`",
                    &letters[i..=i],
                    wanted[i].1
                ),
                found: format!("{:?}", tensor.dims()),
            });
        }
        known.extend(letters.chars().zip(tensor.dims()).map(|(letter, dim)| (letter, *dim, argument)));
    }
    Ok(())
}

/// Checks the shape of the scales of `a`, whose second dimension are heads, as the caller has it.
fn expect_scales_by_head(sfa: &Tensor, a: &Tensor) -> Result<()> {
    let (&[rows, heads, k], found) = (a.dims(), sfa.dims()) else { return Ok(()) };
    let expected = [rows, heads, k.div_ceil(BLOCK as usize)];
    if found.len() == 3
        && found.iter().zip(expected).any(|(&found, expected)| found != expected && found != 1)
    {
        return Err(Error::ScaleShape {
            argument: "sfa",
            expected: format!(
                "{expected:?}, one per row of `a` and 128 of K, or 1 along any dimension for all"
            ),
            found: format!("{found:?}"),
        });
    }
    Ok(())
}
