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

/// How a tensor copy goes through the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyMode {
    Tile,
    /// `tile::gather4` and `tile::scatter4`
    Rows,
    Im2col,
}

modifiers!(CopyMode);

operands! {
    /// A tensor copy through a tensor map.
    pub(crate) struct TensorCopy {
        pub(crate) rank: usize,
        pub(crate) mode: CopyMode,
        pub(crate) map: Addr,
        pub(crate) coords: Box<[Src]>,
        /// Offsets of `im2col`.
        pub(crate) offsets: Box<[Src]>,
        pub(crate) shared: Addr,
        /// Whether destination and mbarrier must be in the shared memory of the CTA itself.
        pub(crate) own: bool,
        /// Set for loads into shared memory.
        pub(crate) mbar: Option<Addr>,
        /// `.cta_group::2`: the mbarrier may be in the other CTA of a pair.
        pub(crate) pair: bool,
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
        /// `.ignore_oob`: how many bytes at either end of the source may lie out of bounds.
        pub(crate) edges: Option<(Src, Src)>,
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
        let outside = self.has("ignore_oob");
        if outside && (spaces != ["shared::cta", "global"] || self.has("multicast::cluster")) {
            return self.error("`.ignore_oob` goes with copies from global memory to `.shared::cta`");
        }
        if self.has("cp_mask") && direction != BulkDirection::SharedToGlobal {
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
        let edges = if outside { Some((self.src(3, Ty::U32)?, self.src(4, Ty::U32)?)) } else { None };
        let last = if outside { 5 } else { 3 };
        let mbar = if direction == BulkDirection::SharedToGlobal { None } else { Some(self.addr(last)?) };
        let multicast = if self.has("multicast::cluster") { Some(self.src(4, Ty::U16)?) } else { None };
        if reduce.is_some()
            && (direction == BulkDirection::GlobalToShared || multicast.is_some() || self.has("cp_mask"))
        {
            return self.unsupported();
        }
        // The mask of bytes comes last, behind the optional cache policy.
        let mask = if self.has("cp_mask") { Some(self.src(self.count() - 1, Ty::U16)?) } else { None };
        Ok(CopyOp::Bulk(Box::new(BulkCopy {
            direction,
            dst,
            src,
            size,
            mbar,
            multicast,
            reduce,
            edges,
            mask,
        })))
    }

    fn tensor_operand(&mut self, i: usize, count: usize) -> Result<(Addr, Box<[Src]>)> {
        let Operand::Address(base, offset, Some(coords)) = self.operand(i)? else {
            return self.error("expected `[map, {coordinates}]`");
        };
        let base = self.source(&base, Ty::U64)?;
        let list = match *coords {
            Operand::Vector(v) => v,
            o => vec![o],
        };
        if list.len() != count {
            return self.error(format!("expected {count} coordinates, found {}", list.len()));
        }
        let coords = list.iter().map(|o| self.source(o, Ty::S32)).collect::<Result<Box<[_]>>>()?;
        Ok((Addr { base, offset }, coords))
    }

    /// The rank of a tensor copy and its way through the tensor.
    fn copy_mode(&self, load: bool) -> Result<(usize, CopyMode)> {
        let opcode = &self.inst.opcode;
        let rank = match opcode.iter().find_map(|m| m.strip_suffix('d').and_then(|r| r.parse().ok())) {
            Some(r) if (1..=5).contains(&r) => r,
            _ => return self.error("the rank is missing"),
        };
        let mut modes = opcode.iter().filter(|m| m.starts_with("tile") || m.starts_with("im2col"));
        let mode = match modes.next().map(String::as_str) {
            None | Some("tile") => CopyMode::Tile,
            Some("tile::gather4") if load => CopyMode::Rows,
            Some("tile::scatter4") if !load && !self.has("reduce") => CopyMode::Rows,
            Some("im2col") if load => CopyMode::Im2col,
            Some("im2col_no_offs") if !load => CopyMode::Im2col,
            Some(m @ ("im2col::w" | "im2col::w::128" | "im2col_no_offs::w")) => {
                return self.error(format!("the mode `.{m}` is not modelled"));
            }
            Some(m) => return self.error(format!("`.{m}` does not go with this direction")),
        };
        if modes.next().is_some() {
            return self.error("two load modes");
        }
        match mode {
            CopyMode::Rows if rank != 2 => self.error("four rows are those of a tensor of rank 2"),
            CopyMode::Im2col if rank < 3 => self.error("im2col needs a tensor of rank 3 to 5"),
            _ => Ok((rank, mode)),
        }
    }

    /// Refuses a modifier of a tensor copy that would otherwise be ignored.
    fn known_tensor_copy(&self) -> Result<()> {
        let known = |m: &str| {
            matches!(m, "cp" | "reduce" | "async" | "bulk" | "prefetch" | "tensor" | "L2" | "L2::cache_hint")
                || matches!(
                    m,
                    "1d" | "2d" | "3d" | "4d" | "5d" | "global" | "shared::cta" | "shared::cluster"
                )
                || m.starts_with("tile")
                || m.starts_with("im2col")
                || matches!(
                    m,
                    "mbarrier::complete_tx::bytes" | "bulk_group" | "cta_group::1" | "cta_group::2"
                )
                || matches!(m, "multicast::cluster" | "multicast::cluster::16b")
                || matches!(m, "add" | "min" | "max" | "inc" | "dec" | "and" | "or" | "xor")
        };
        match self.inst.opcode.iter().find(|m| !known(m)) {
            Some(m) => self.error(format!("`.{m}` is not supported here")),
            None => Ok(()),
        }
    }

    fn tensor_copy(&mut self) -> Result<CopyOp> {
        self.known_tensor_copy()?;
        let place = |start: &str| self.inst.opcode.iter().position(|m| m.starts_with(start));
        let prefetch = self.has("prefetch");
        let load = prefetch || place("global") > place("shared");
        let (rank, mode) = self.copy_mode(load)?;
        let coordinates = if mode == CopyMode::Rows { 5 } else { rank };
        let hint = usize::from(self.has("L2::cache_hint"));
        let offset_count = if mode == CopyMode::Im2col && load { rank - 2 } else { 0 };
        let extra = usize::from(offset_count > 0) + hint;
        if prefetch {
            let (map, _) = self.tensor_operand(0, coordinates)?;
            self.expect_operands(1 + extra, 1 + extra)?;
            return Ok(CopyOp::PrefetchMap { map });
        }
        let pair = self.has("cta_group::2");
        let multicast = self.inst.opcode.iter().any(|m| m.starts_with("multicast::cluster"));
        if !load {
            if pair || self.has("cta_group::1") || multicast {
                return self.error("`.cta_group` and `.multicast` go with loads");
            }
            let reduce = if self.has("reduce") {
                match self.atomic_op() {
                    Some(op) => Some(op),
                    None => return self.unsupported(),
                }
            } else {
                None
            };
            let (map, coords) = self.tensor_operand(0, coordinates)?;
            let shared = self.addr(1)?;
            self.expect_operands(2 + hint, 2 + hint)?;
            let copy = TensorCopy {
                rank,
                mode,
                map,
                coords,
                offsets: Box::default(),
                shared,
                own: true,
                mbar: None,
                pair,
                multicast: None,
                reduce,
            };
            return Ok(CopyOp::Tensor(Box::new(copy)));
        }
        let own = self.has("shared::cta");
        if own && multicast {
            return self.error("`.multicast::cluster` needs the destination `.shared::cluster`");
        }
        if self.has("reduce") || self.has("bulk_group") {
            return self.unsupported();
        }
        let shared = self.addr(0)?;
        let (map, coords) = self.tensor_operand(1, coordinates)?;
        let mbar = Some(self.addr(2)?);
        let mut next = 3;
        let offsets = if offset_count > 0 {
            next += 1;
            self.sources(3, Ty::U16)?
        } else {
            Box::default()
        };
        if offsets.len() != offset_count {
            return self.error(format!("expected {offset_count} im2col offsets, found {}", offsets.len()));
        }
        let multicast = if multicast {
            next += 1;
            Some(self.src(next - 1, Ty::U16)?)
        } else {
            None
        };
        self.expect_operands(next + hint, next + hint)?;
        let copy =
            TensorCopy { rank, mode, map, coords, offsets, shared, own, mbar, pair, multicast, reduce: None };
        Ok(CopyOp::Tensor(Box::new(copy)))
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
