//! `tensormap.replace` and `tensormap.cp_fenceproxy`.

use super::Result;
use super::decoder::{Claim, Decoder};
use super::isa::{Addr, Op, Src};
use super::operands::operands;
use crate::text::ast::Space;
use crate::text::types::Ty;
use crate::units::tensormap::MapField;

operands! {
    /// Changes of tensor maps.
    pub(crate) enum TensorMapOp {
        Replace { field: MapField, addr: Addr, space: Space, value: Src },
        /// `tensormap.cp_fenceproxy`
        CopyRelease { dst: Addr, src: Addr },
    }
}

impl Decoder<'_, '_> {
    pub(super) fn tensormap(&mut self) -> Claim {
        match self.inst.opcode[0].as_str() {
            "tensormap" => self.tensormap_operation().map(|op| Some(Op::TensorMap(op))),
            _ => Ok(None),
        }
    }

    fn tensormap_operation(&mut self) -> Result<TensorMapOp> {
        if self.has("cp_fenceproxy") {
            return Ok(TensorMapOp::CopyRelease { dst: self.addr(0)?, src: self.addr(1)? });
        }
        if !self.has("replace") {
            return self.unsupported();
        }
        let field = self.inst.opcode.iter().find_map(|m| {
            Some(match m.as_str() {
                "global_address" => 0,
                "rank" => 1,
                "box_dim" => 2,
                "global_dim" => 3,
                "global_stride" => 4,
                "element_stride" => 5,
                "elemtype" => 6,
                "swizzle_mode" => 7,
                "swizzle_atomicity" => 8,
                "interleave_layout" => 9,
                "fill_mode" => 10,
                _ => return None,
            })
        });
        let indexed = matches!(field, Some(2..=5));
        let ordinal = if indexed { self.constant(1)? } else { 0 };
        if !(0..5).contains(&ordinal) {
            return self.error("the ordinal is out of range");
        }
        let ordinal = ordinal as u32;
        let field = match field {
            Some(0) => MapField::GlobalAddress,
            Some(1) => MapField::Rank,
            Some(2) => MapField::BoxDim(ordinal),
            Some(3) => MapField::GlobalDim(ordinal),
            Some(4) => MapField::GlobalStride(ordinal),
            Some(5) => MapField::ElementStride(ordinal),
            Some(6) => MapField::ElementType,
            Some(7) => MapField::Swizzle,
            Some(8) => MapField::SwizzleAtom,
            Some(9) => MapField::Interleave,
            Some(10) => MapField::Fill,
            _ => return self.unsupported(),
        };
        let space = match self.space() {
            Space::Shared => Space::Shared,
            Space::Global => Space::Global,
            _ => Space::Generic,
        };
        let value = self.src(if indexed { 2 } else { 1 }, Ty::B64)?;
        if matches!(field, MapField::ElementType) && matches!(value, Src::Imm(13..=15)) {
            self.require("elements of 4 and 6 bits", super::target::BLACKWELL)?;
        }
        Ok(TensorMapOp::Replace { field, addr: self.addr(0)?, space, value })
    }
}
