//! Scales that are codes: a GEMM with them is checked as the same GEMM with FP32 scales. Where kernels multiply sums with
//! FP32 scales, another kernel unpacks them first.
//!
//! Codes are UE8M0, or E4M3 where 16 of K share a scale (NVFP4): bytes in the shape of FP32 scales, or packed: four of a
//! row, along K, in an i32. Either has any strides. The FP32 scales are MN-major in a workspace.

use oxigemm_kernels::gemm::ScaleType;
use oxigemm_kernels::gemm::params::ScaleBlock;

use super::blocks;
use super::desc::{GemmDesc, GroupingDesc, HostKs};
use crate::error::{Error, Result};
use crate::tensor::desc::{Footprint, Operand, int};
use crate::tensor::dtype::DType;
use crate::tensor::layout::MAX_RANK;

/// Codes of an i32.
const PACKED: i64 = 4;
/// Alignment of what lies in a workspace, in bytes.
const ALIGNMENT: u64 = 1024;
/// Address of a workspace that is not known yet: the check compares it with memory that exists.
pub(crate) const NOWHERE: u64 = 1 << 62;

/// Codes of the scales of one operand: `[slabs, rows, columns]`, columns along K.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScaleCodes {
    /// The argument.
    pub from: Operand,
    pub slabs: u64,
    pub rows: u32,
    pub columns: u32,
    /// From one slab, row, column or word of the source to the next, in its elements.
    pub strides: [u64; 3],
    /// From the workspace to the FP32 scales, in bytes.
    pub offset: u64,
    /// From one column of the FP32 scales to the next.
    pub pitch: u32,
}

/// Codes of the scales of A and B, and the bytes that they become.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unpacked {
    pub scales: [Option<ScaleCodes>; 2],
    pub bytes: u64,
}

impl ScaleCodes {
    /// Whether four codes are in an element.
    pub fn is_packed(&self) -> bool {
        self.from.dtype == DType::I32
    }
}

impl GemmDesc {
    /// The same GEMM with FP32 scales, in a workspace at [`NOWHERE`], and what is unpacked for it; `None` where all scales
    /// are FP32.
    pub(crate) fn unpacked(&self) -> Result<Option<(GemmDesc, Unpacked)>> {
        let is_codes = |scales: &Operand, block: Option<ScaleBlock>| match scales.dtype {
            DType::I32 | DType::U8 => true,
            dtype => dtype == DType::E4m3 && block == Some(ScaleBlock::Of16),
        };
        let own = [&self.sfa, &self.sfb];
        let mut any = false;
        for (scales, block) in own.into_iter().zip(self.scale_blocks) {
            let Some(scales) = scales else { continue };
            any |= is_codes(scales, block);
            if block == Some(ScaleBlock::Of16) {
                scales.expect_dtype(&[DType::E4m3, DType::U8, DType::I32])?;
            }
        }
        if !any {
            return Ok(None);
        }
        let mut desc = *self;
        let mut all = Unpacked::default();
        let k_first = [self.layout.a_begins_with_k(), self.layout.b_begins_with_k()];
        for (i, scales) in [&mut desc.sfa, &mut desc.sfb].into_iter().enumerate() {
            let Some(scales) = scales.as_mut().filter(|scales| is_codes(scales, self.scale_blocks[i])) else {
                continue;
            };
            let columns = self.scale_columns(scales, self.scale_blocks[i], k_first[i])?;
            (*scales, all.scales[i]) = unpack(scales, k_first[i], columns, &mut all.bytes)?;
        }
        Ok(Some((desc, all)))
    }

    /// Encoding of scales that are codes.
    pub(crate) fn scale_encoding(&self) -> ScaleType {
        if self.scale_blocks.contains(&Some(ScaleBlock::Of16)) { ScaleType::Ue4m3 } else { ScaleType::Ue8m0 }
    }

    /// The scales along K that the codes of an operand stand for.
    fn scale_columns(&self, scales: &Operand, block: Option<ScaleBlock>, k_first: bool) -> Result<i64> {
        let along_k = |operand: &Operand, k_first: bool| match operand.rank {
            0 | 1 => operand.dims[0],
            rank if k_first => operand.dims[rank - 2],
            rank => operand.dims[rank - 1],
        };
        let found = along_k(scales, k_first);
        if scales.dtype != DType::I32 {
            return Ok(found);
        }
        if scales.rank < 2 {
            return Err(Error::Rank {
                argument: scales.name,
                expected: "2 or 3 dimensions, as packed scales have".to_owned(),
                found: format!("{} dimensions, {:?}", scales.rank, scales.dims()),
            });
        }
        let words = |columns: i64| (columns + PACKED - 1) / PACKED;
        let columns = match &self.grouping {
            GroupingDesc::KGrouped(groups) => {
                // Scales of the other operand that are not packed have as many blocks, and so have the host's numbers.
                let others = [&self.sfa, &self.sfb];
                let other = others.into_iter().flatten().find(|other| other.dtype != DType::I32);
                let of_host = |host: HostKs| match block {
                    Some(block) => host.blocks_of(block),
                    None if self.has_fp4() => host.blocks_of_32,
                    None if words(int(host.blocks)) != found && words(int(host.blocks_of_32)) == found => {
                        host.blocks_of_32
                    }
                    None => host.blocks,
                };
                let host = groups.host.map(|host| int(of_host(host)));
                host.or(other.map(|other| along_k(other, k_first))).unwrap_or(found.saturating_mul(PACKED))
            }
            _ => {
                let k = along_k(&self.a, self.layout.a_begins_with_k()).max(0);
                let k = k.saturating_mul(super::scales::elements(&self.a));
                let [of_128, of_32] = [ScaleBlock::Of128, ScaleBlock::Of32].map(|block| blocks(k, block));
                match block {
                    Some(block) => blocks(k, block),
                    // At most 128 of K are one word either way: of one scale, but with FP4 operands of scales of 32.
                    None if words(of_128) == words(of_32) && self.has_fp4() => of_32,
                    None if words(of_128) != found && words(of_32) == found => of_32,
                    None => of_128,
                }
            }
        };
        if words(columns) == found {
            return Ok(columns);
        }
        Err(Error::ScaleShape {
            argument: scales.name,
            expected: format!("{} i32 along K, of four scales each for {columns} of a row", words(columns)),
            found: format!("{:?}", scales.dims()),
        })
    }
}

impl Unpacked {
    /// The scales of A alone, where those are codes.
    pub fn of_a(&self) -> Option<Unpacked> {
        let [of_a, of_b] = self.scales;
        // They come first in the workspace.
        let bytes = of_b.map_or(self.bytes, |of_b| of_b.offset);
        of_a.map(|of_a| Unpacked { scales: [Some(of_a), None], bytes })
    }

    /// Refuses an output of the GEMM that lies where codes are read.
    pub fn expect_apart(&self, desc: &GemmDesc) -> Result<()> {
        let d_scales = desc.epilogue.and_then(|epilogue| epilogue.scales);
        for scales in self.scales.iter().flatten() {
            let read = memory(&scales.from)?;
            for output in [Some(&desc.d), d_scales.as_ref().map(|(scales, _)| scales)].into_iter().flatten() {
                output.expect_apart(&whole(output)?, &scales.from, &read)?;
            }
        }
        Ok(())
    }
}

/// FP32 scales that codes become, and the codes; none where there are no scales.
fn unpack(
    from: &Operand,
    k_first: bool,
    columns: i64,
    bytes: &mut u64,
) -> Result<(Operand, Option<ScaleCodes>)> {
    if from.rank == 0 || from.rank > 3 {
        return Err(Error::Rank {
            argument: from.name,
            expected: "2 or 3 dimensions".to_owned(),
            found: format!("{} dimensions, {:?}", from.rank, from.dims()),
        });
    }
    // The last two dimensions; a list is a row.
    let k_first = k_first && from.rank > 1;
    let matrix = if from.rank == 1 { from.list() } else { from.slab() };
    matrix.matrix_dims()?;
    let view = if k_first { matrix.transposed() } else { matrix };
    let rows = view.dims[0];
    let slabs = if from.rank == 3 { from.dims[0] } else { 1 };
    let pitch = (rows + 3) / 4 * 4;
    let (mut dims, mut strides) = (from.dims, [1; MAX_RANK]);
    let (row, column) =
        if k_first { (from.rank - 1, from.rank - 2) } else { (from.rank.max(2) - 2, from.rank - 1) };
    dims[column] = columns;
    (strides[row], strides[column]) = (1, pitch);
    if from.rank == 3 {
        strides[0] = columns.saturating_mul(pitch);
    }
    let to = Operand { dtype: DType::F32, dims, strides, address: NOWHERE + *bytes, ..*from };
    if slabs <= 0 || rows == 0 || columns == 0 {
        return Ok((to, None));
    }
    memory(from)?;
    let scales = ScaleCodes {
        from: *from,
        slabs: slabs as u64,
        rows: rows as u32,
        columns: columns as u32,
        // `memory` has refused negative ones.
        strides: [
            if from.rank == 3 && slabs > 1 { from.strides[0] as u64 } else { 0 },
            if rows > 1 { view.strides[0] as u64 } else { 0 },
            if view.dims[1] > 1 { view.strides[1] as u64 } else { 0 },
        ],
        offset: *bytes,
        pitch: pitch as u32,
    };
    let length = i128::from(slabs) * i128::from(columns) * i128::from(pitch) * 4;
    let length = u64::try_from(length).ok().filter(|length| *length < NOWHERE / 4);
    let length = length.ok_or_else(|| from.too_large("fewer scales".to_owned()))?;
    *bytes += length.next_multiple_of(ALIGNMENT);
    Ok((to, Some(scales)))
}

/// Bytes of codes.
fn memory(from: &Operand) -> Result<Footprint> {
    let matrix = if from.rank == 1 { from.list() } else { from.slab() };
    let (strides, memory) = matrix.scale_strides()?;
    match from.rank {
        3 => from.scale_slabs(strides, memory).map(|(_, memory)| memory),
        _ => Ok(memory),
    }
}

/// Bytes of an output, from the first to the last.
fn whole(output: &Operand) -> Result<Footprint> {
    let dims = output.dims().iter().zip(&output.strides);
    let last =
        dims.map(|(dim, stride)| i128::from((dim - 1).max(0)) * i128::from((*stride).max(0))).sum::<i128>();
    let end = output.end_of((last as u128 + 1) * output.dtype.size() as u128)?;
    Ok(Footprint::whole(output.address, end))
}
