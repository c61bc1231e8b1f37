//! Bulk copies: `cp.async.bulk`, tensor copies, `st.async`, `red.async` and prefetches.

use super::Result;
use super::decoder::{Claim, Decoder};
use super::isa::{Addr, Op, Src};
use super::operands::{modifiers, operands};
use crate::text::ast::Operand;
use crate::text::types::Ty;
use crate::units::atomic::AtomFn;
use crate::units::copy::BulkReduce;

/// Direction of a bulk copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BulkDirection {
    GlobalToShared,
    SharedToGlobal,
    SharedToShared,
}

modifiers!(BulkDirection);

operands! {
    /// Copies of the bulk copy unit and of remote stores.
    pub(crate) enum CopyOp {
        Bulk(Box<BulkCopy>),
        Tensor(Box<TensorCopy>),
        Commit,
        Wait { pending: u32, read: bool },
        Prefetch { addr: Addr, size: Src },
        /// Prefetch of a tensor map.
        PrefetchMap { map: Addr },
        /// `st.async` and, with `reduce`, `red.async`.
        StoreAsync { addr: Addr, mbar: Addr, src: Box<[Src]>, bytes: u32, reduce: Option<(AtomFn, Ty)> },
    }
}

operands! {
    /// A tensor copy through a tensor map.
    pub(crate) struct TensorCopy {
        pub(crate) rank: usize,
        pub(crate) map: Addr,
        pub(crate) coords: Box<[Src]>,
        pub(crate) shared: Addr,
        /// Set for loads into shared memory.
        pub(crate) mbar: Option<Addr>,
        pub(crate) multicast: Option<Src>,
        pub(crate) reduce: Option<AtomFn>,
    }
}

operands! {
    /// A bulk copy without a tensor map.
    pub(crate) struct BulkCopy {
        pub(crate) direction: BulkDirection,
        pub(crate) dst: Addr,
        pub(crate) src: Addr,
        pub(crate) size: Src,
        pub(crate) mbar: Option<Addr>,
        pub(crate) multicast: Option<Src>,
        pub(crate) reduce: Option<BulkReduce>,
        /// `.cp_mask`: which bytes of every sixteen are written.
        pub(crate) mask: Option<Src>,
    }
}

impl Decoder<'_, '_> {
    pub(super) fn copy(&mut self) -> Claim {
        let opcode: Vec<&str> = self.inst.opcode.iter().map(String::as_str).collect();
        let op = match opcode.as_slice() {
            ["cp", "async", "bulk", ..] | ["cp", "reduce", "async", "bulk", ..] => self.bulk()?,
            ["st" | "red", "async", ..] => self.store_async()?,
            ["prefetch" | "prefetchu" | "applypriority", ..] => self.prefetch()?,
            _ => return Ok(None),
        };
        Ok(Some(Op::Copy(op)))
    }

    fn prefetch(&mut self) -> Result<CopyOp> {
        let addr = self.addr(0)?;
        Ok(if self.has("tensormap") {
            CopyOp::PrefetchMap { map: addr }
        } else {
            CopyOp::Prefetch { addr, size: Src::Imm(1) }
        })
    }

    fn bulk(&mut self) -> Result<CopyOp> {
        if self.has("commit_group") {
            return Ok(CopyOp::Commit);
        }
        if self.has("wait_group") {
            let pending = self.constant(0)?;
            return Ok(CopyOp::Wait { pending: pending.clamp(0, 1 << 20) as u32, read: self.has("read") });
        }
        if self.has("tensor") {
            return self.tensor_copy();
        }
        if self.has("prefetch") {
            return Ok(CopyOp::Prefetch { addr: self.addr(0)?, size: self.src(1, Ty::U32)? });
        }
        let opcode = &self.inst.opcode;
        let spaces: Vec<&str> = opcode
            .iter()
            .map(String::as_str)
            .filter(|m| matches!(*m, "global" | "shared::cta" | "shared::cluster" | "shared"))
            .collect();
        let direction = match spaces.as_slice() {
            ["global", "shared::cta"] => BulkDirection::SharedToGlobal,
            ["shared::cluster" | "shared::cta", "global"] => BulkDirection::GlobalToShared,
            ["shared::cluster", "shared::cta"] => BulkDirection::SharedToShared,
            _ => return self.unsupported(),
        };
        if self.has("ignore_oob") || (self.has("cp_mask") && direction != BulkDirection::SharedToGlobal) {
            return self.unsupported();
        }
        let reduce = if self.has("reduce") {
            let ty = self.ty()?;
            match self.atomic_op() {
                Some(op) if matches!(ty.bits(), 16 | 32 | 64) => Some(BulkReduce { op, ty }),
                _ => return self.unsupported(),
            }
        } else {
            None
        };
        let (dst, src, size) = (self.addr(0)?, self.addr(1)?, self.src(2, Ty::U32)?);
        let mbar = if direction == BulkDirection::SharedToGlobal { None } else { Some(self.addr(3)?) };
        let multicast = if self.has("multicast::cluster") { Some(self.src(4, Ty::U16)?) } else { None };
        if reduce.is_some()
            && (direction == BulkDirection::GlobalToShared || multicast.is_some() || self.has("cp_mask"))
        {
            return self.unsupported();
        }
        // The mask of bytes comes last, behind the optional cache policy.
        let mask = if self.has("cp_mask") { Some(self.src(self.count() - 1, Ty::U16)?) } else { None };
        Ok(CopyOp::Bulk(Box::new(BulkCopy { direction, dst, src, size, mbar, multicast, reduce, mask })))
    }

    fn tensor_operand(&mut self, i: usize, rank: usize) -> Result<(Addr, Box<[Src]>)> {
        let Operand::Address(base, offset, Some(coords)) = self.operand(i)? else {
            return self.error("expected `[map, {coordinates}]`");
        };
        let base = self.source(&base, Ty::U64)?;
        let list = match *coords {
            Operand::Vector(v) => v,
            o => vec![o],
        };
        if list.len() != rank {
            return self.error(format!("expected {rank} coordinates, found {}", list.len()));
        }
        let coords = list.iter().map(|o| self.source(o, Ty::S32)).collect::<Result<Box<[_]>>>()?;
        Ok((Addr { base, offset }, coords))
    }

    fn tensor_copy(&mut self) -> Result<CopyOp> {
        let rank =
            match self.inst.opcode.iter().find_map(|m| m.strip_suffix('d').and_then(|r| r.parse().ok())) {
                Some(r) if (1..=5).contains(&r) => r,
                _ => return self.error("the rank is missing"),
            };
        if self
            .inst
            .opcode
            .iter()
            .any(|m| m.starts_with("im2col") || m.starts_with("tile::") || m.starts_with("cta_group"))
        {
            return self.unsupported();
        }
        if self.has("prefetch") {
            let (map, _) = self.tensor_operand(0, rank)?;
            return Ok(CopyOp::PrefetchMap { map });
        }
        let store = self.inst.opcode.iter().position(|m| m == "global")
            < self.inst.opcode.iter().position(|m| m.starts_with("shared"));
        if store {
            let reduce = if self.has("reduce") {
                match self.atomic_op() {
                    Some(op) => Some(op),
                    None => return self.unsupported(),
                }
            } else {
                None
            };
            let (map, coords) = self.tensor_operand(0, rank)?;
            let shared = self.addr(1)?;
            self.expect_operands(2, 3)?;
            let copy = TensorCopy { rank, map, coords, shared, mbar: None, multicast: None, reduce };
            return Ok(CopyOp::Tensor(Box::new(copy)));
        }
        let shared = self.addr(0)?;
        let (map, coords) = self.tensor_operand(1, rank)?;
        let mbar = Some(self.addr(2)?);
        let multicast = if self.has("multicast::cluster") { Some(self.src(3, Ty::U16)?) } else { None };
        self.expect_operands(3, 5)?;
        Ok(CopyOp::Tensor(Box::new(TensorCopy { rank, map, coords, shared, mbar, multicast, reduce: None })))
    }

    /// `st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{.v2}.b32 [a], b, [mbar]`
    fn store_async(&mut self) -> Result<CopyOp> {
        let ty = self.ty()?;
        if !self.has("mbarrier::complete_tx::bytes") || !matches!(ty.bits(), 32 | 64) {
            return self.unsupported();
        }
        let reduce = if self.inst.opcode[0] == "red" {
            match self.atomic_op() {
                Some(op) => Some((op, ty)),
                None => return self.unsupported(),
            }
        } else {
            None
        };
        Ok(CopyOp::StoreAsync {
            addr: self.addr(0)?,
            src: self.sources(1, ty)?,
            mbar: self.addr(2)?,
            bytes: ty.bytes() as u32,
            reduce,
        })
    }
}
