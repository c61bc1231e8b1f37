//! Scale layouts by the names of DeepGEMM: those that GEMMs read fastest.

use super::{get_mn_major_tma_aligned_tensor, transform_scales};
use crate::error::{Error, Result};
use crate::launch::LaunchOptions;
use crate::tensor::DType;
use crate::tensor::Tensor;

/// `x` elements of so many bytes, rounded up to whole 16 bytes.
///
/// ```
/// assert_eq!(oxigemm::get_tma_aligned_size(5, 4), 8);
/// ```
///
/// # Panics
/// If 16 bytes are no whole number of elements.
///
/// ```should_panic
/// oxigemm::get_tma_aligned_size(5, 12);
/// ```
#[must_use]
pub fn get_tma_aligned_size(x: usize, element_size: usize) -> usize {
    assert!(
        [1, 2, 4, 8, 16].contains(&element_size),
        "`element_size` has to divide 16, found {element_size}"
    );
    x.next_multiple_of(16 / element_size)
}

/// f32 scales as kernels for Hopper read them fastest: of an operand of `mn` rows and `k` columns, or of so many groups
/// of them.
///
/// `recipe` is how many rows and columns share a scale. Those of `[1, 128]` become MN-major
/// ([`get_mn_major_tma_aligned_tensor`]), unless they are; those of `[128, 128]` stay as they are. What stays is the
/// same memory.
///
/// # Errors
/// If there is no such recipe for Hopper, if the scales have another shape or type, or what the device reports.
///
/// ```
/// use oxigemm::{Device, LaunchOptions, Tensor, transform_sf_into_required_layout};
///
/// let scales = Tensor::from_slice(&[1.0f32; 15], &[5, 3], &Device::cpu())?;
/// let found = transform_sf_into_required_layout(&scales, 5, 384, [1, 128], None, &LaunchOptions::default())?;
/// assert_eq!((found.dims(), found.strides()), (&[5, 3][..], &[1, 8][..]));
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn transform_sf_into_required_layout(
    sf: &Tensor,
    mn: usize,
    k: usize,
    recipe: [usize; 2],
    num_groups: Option<usize>,
    options: &LaunchOptions,
) -> Result<Tensor> {
    let [rows, columns] = recipe;
    if ![[1, 128], [128, 128]].contains(&recipe) {
        return Err(Error::Shape {
            argument: "recipe",
            expected: "[1, 128] or [128, 128], for which Hopper has kernels".to_owned(),
            found: format!("{recipe:?}"),
        });
    }
    let dims: Vec<usize> = num_groups.into_iter().chain([mn.div_ceil(rows), k.div_ceil(columns)]).collect();
    expect_f32(sf)?;
    expect_dims(sf, &dims)?;
    if rows == 1 && !is_mn_major(sf) { get_mn_major_tma_aligned_tensor(sf, options) } else { Ok(sf.clone()) }
}

/// f32 scales `[sum of K/gran_k, MN]` of k-grouped operands, contiguous, as i32 `[sum of K/(4 * gran_k), MN]`: of each
/// group four exponents of a column in each, the first in the lowest byte, rows at multiples of 16 bytes. What is no
/// power of two is rounded up to one.
///
/// `ks` are the K of the groups, multiples of `k_alignment`. No GEMM for Hopper reads such scales; it is a launch
/// for each group.
///
/// # Errors
/// If the K of a group is no such multiple, if the scales have another shape or type, or what the device reports.
///
/// ```
/// use oxigemm::{Device, LaunchOptions, Tensor, get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor};
///
/// // Of one group with K = 256, and one with K = 128.
/// let scales = Tensor::from_slice(&[1.0f32, 2.0, 4.0], &[3, 1], &Device::cpu())?;
/// let options = LaunchOptions::default();
/// let found = get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(&scales, &[256, 128], 128, 128, &options)?;
/// assert_eq!(found.to_bytes()?, [127, 128, 0, 0, 129, 0, 0, 0]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(
    sf: &Tensor,
    ks: &[usize],
    gran_k: usize,
    k_alignment: usize,
    options: &LaunchOptions,
) -> Result<Tensor> {
    if gran_k == 0 {
        let (expected, found) = ("1 or more".to_owned(), "0".to_owned());
        return Err(Error::Shape { argument: "gran_k", expected, found });
    }
    if k_alignment == 0 || ks.iter().any(|k| !k.is_multiple_of(k_alignment)) {
        return Err(Error::Shape {
            argument: "ks",
            expected: format!("multiples of `k_alignment`, {k_alignment}"),
            found: format!("{ks:?}"),
        });
    }
    expect_f32(sf)?;
    let mn = sf.dims().last().copied().unwrap_or(0);
    let rows = || ks.iter().map(|k| k.div_ceil(gran_k));
    expect_dims(sf, &[rows().sum(), mn])?;
    let packed = rows().map(|rows| rows.div_ceil(4)).sum();
    let memory = Tensor::empty(DType::I32, &[packed, get_tma_aligned_size(mn, 4)], sf.device())?;
    let found = memory.narrow(1, 0, mn)?;
    let (mut first, mut first_packed) = (0, 0);
    for rows in rows() {
        let from = sf.narrow(0, first, rows)?.transpose(0, 1)?;
        let mut to = found.narrow(0, first_packed, rows.div_ceil(4))?.transpose(0, 1)?;
        if rows > 0 {
            transform_scales(&from, &mut to, options)?;
        }
        (first, first_packed) = (first + rows, first_packed + rows.div_ceil(4));
    }
    Ok(found)
}

/// Whether scales are laid out as [`get_mn_major_tma_aligned_tensor`] does.
fn is_mn_major(sf: &Tensor) -> bool {
    let (&[.., mn, k], &[ref groups @ .., row, column]) = (sf.dims(), sf.strides()) else { return false };
    let pitch = get_tma_aligned_size(mn, 4);
    row == 1 && column == pitch && groups.iter().all(|group| *group == pitch * k)
}

fn expect_f32(sf: &Tensor) -> Result<()> {
    if sf.dtype() == DType::F32 {
        return Ok(());
    }
    let (expected, found) = ("f32".to_owned(), sf.dtype().to_string());
    Err(Error::DType { argument: "sf", expected, found })
}

fn expect_dims(sf: &Tensor, dims: &[usize]) -> Result<()> {
    if sf.dims() == dims {
        return Ok(());
    }
    Err(Error::ScaleShape {
        argument: "sf",
        expected: format!("{dims:?}"),
        found: format!("{:?}", sf.dims()),
    })
}
