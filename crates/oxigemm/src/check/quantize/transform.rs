//! Scales from one layout to another.

use oxigemm_kernels::quantize::{Args, Code, Flags, Input};

use super::CheckedQuantize;
use super::layout::ScaleLayout;
use crate::error::{Error, Result};
use crate::tensor::DType;
use crate::tensor::desc::Footprint;
use crate::tensor::desc::Operand;

/// The arguments of `transform_scales`.
#[derive(Clone, Copy, Debug)]
pub struct TransformScales {
    /// f32, `[MN, K]` or `[G, MN, K]`, any strides.
    pub from: Operand,
    /// The same as f32 of any strides, or packed: `[MN, ceil(K/4)]` i32 of any strides, or blocks of 128 by 4.
    pub to: Operand,
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
        let to_memory = layout.written(&group_of_to)?;
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
        if layout.is_packed() {
            args.flags |= Flags::POWER_OF_TWO;
        }
        let args = Args {
            scales: to.address,
            aux: from.address,
            aux_strides: [from_group as u32, from_strides.mn, from_strides.k],
            group_stride: to_group,
            ..args
        };
        let groups = groups as u32;
        Ok(Some(CheckedQuantize { args, input: Input::F32, code: Code::E4m3, mn_major: false, groups }))
    }
}
