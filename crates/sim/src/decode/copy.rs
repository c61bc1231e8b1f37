//! Barriers, mbarriers, fences and asynchronous copies.

use super::Result;
use super::decoder::Decoder;
use crate::text::ast::{Operand, Space};
use crate::decode::isa::{
    Addr, Arrive, BulkCopy, BulkReduce, BulkWay, Fence, MapField, Op, PhaseRef, Scope, Src, TensorCopy, Vote,
};
use crate::text::types::Ty;

impl Decoder<'_, '_> {
    /// The space of an mbarrier operand.
    fn barrier_space(&self) -> Space {
        match self.space() {
            Space::Global => Space::Generic,
            s => s,
        }
    }

    pub(super) fn barrier(&mut self) -> Result<Op> {
        if self.has("cluster") {
            // `.aligned` is optional and its absence means that threads arrive one by one.
            let aligned = self.has("aligned");
            return if self.has("arrive") {
                Ok(Op::ClusterArrive { release: !self.has("relaxed"), aligned })
            } else {
                Ok(Op::ClusterWait { acquire: !self.has("relaxed"), aligned })
            };
        }
        if self.inst.opcode[0] == "bar" && self.has("warp") {
            return Ok(Op::WarpSync { mask: self.src(0, Ty::B32)? });
        }
        let aligned = self.inst.opcode[0] == "bar" || self.has("aligned");
        if self.has("red") {
            return self.barrier_reduce();
        }
        self.expect_operands(0, 2)?;
        let id = if self.count() == 0 { Src::Imm(0) } else { self.src(0, Ty::U32)? };
        let threads = if self.count() == 2 { Some(self.src(1, Ty::U32)?) } else { None };
        let arrive_only = self.has("arrive");
        if arrive_only && threads.is_none() {
            return self.error("an arrival names the number of threads");
        }
        Ok(Op::Bar { id, threads, aligned, arrive_only })
    }

    fn barrier_reduce(&mut self) -> Result<Op> {
        let (kind, popc) = match () {
            () if self.has("popc") => (Vote::Ballot, true),
            () if self.has("and") => (Vote::All, false),
            () if self.has("or") => (Vote::Any, false),
            () => return self.unsupported(),
        };
        let dst = self.dst(0)?;
        let id = self.src(1, Ty::U32)?;
        let threads = if self.count() == 4 { Some(self.src(2, Ty::U32)?) } else { None };
        let src = self.src(self.count() - 1, Ty::Pred)?;
        Ok(Op::BarReduce { id, threads, kind, dst, src, popc })
    }

    pub(super) fn mbarrier(&mut self) -> Result<Op> {
        let space = self.barrier_space();
        match self.inst.opcode.get(1).map(String::as_str) {
            Some("init") => Ok(Op::MbarInit { addr: self.addr(0)?, space, count: self.src(1, Ty::U32)? }),
            Some("inval") => Ok(Op::MbarInval { addr: self.addr(0)?, space }),
            Some("expect_tx") => {
                Ok(Op::MbarTx { addr: self.addr(0)?, space, bytes: self.src(1, Ty::U32)?, complete: false })
            }
            Some("complete_tx") => {
                Ok(Op::MbarTx { addr: self.addr(0)?, space, bytes: self.src(1, Ty::U32)?, complete: true })
            }
            Some("arrive" | "arrive_drop") => self.mbarrier_arrive(space),
            Some("test_wait" | "try_wait") => {
                let blocking = self.has("try_wait");
                let dst = self.dst(0)?;
                let addr = self.addr(1)?;
                let phase = if self.has("parity") {
                    PhaseRef::Parity(self.src(2, Ty::U32)?)
                } else {
                    PhaseRef::Token(self.src(2, Ty::B64)?)
                };
                self.expect_operands(3, 4)?;
                Ok(Op::MbarWait {
                    dst,
                    addr,
                    space,
                    phase,
                    blocking,
                    acquire: !self.has("relaxed"),
                    scope: self.scope().unwrap_or(Scope::Cta),
                })
            }
            Some("pending_count") => Ok(Op::MbarPending { dst: self.dst(0)?, token: self.src(1, Ty::B64)? }),
            _ => self.unsupported(),
        }
    }

    fn mbarrier_arrive(&mut self, space: Space) -> Result<Op> {
        // `mbarrier.arrive{...} {state,} [addr] {, count}`
        let with_state = !matches!(self.operand(0)?, Operand::Address(..));
        let first = usize::from(with_state);
        let token = if with_state { self.optional_dst(0)? } else { None };
        let addr = self.addr(first)?;
        let extra = if self.count() > first + 1 { Some(self.src(first + 1, Ty::U32)?) } else { None };
        let expects = self.has("expect_tx");
        if expects && extra.is_none() {
            return self.error("the expected byte count is missing");
        }
        Ok(Op::MbarArrive(Arrive {
            addr,
            space,
            count: if expects { Src::Imm(1) } else { extra.unwrap_or(Src::Imm(1)) },
            expect: if expects { extra } else { None },
            token,
            release: !self.has("relaxed"),
            scope: self.scope().unwrap_or(Scope::Cta),
            drop: self.has("arrive_drop"),
            no_complete: self.has("noComplete"),
        }))
    }

    pub(super) fn fence(&mut self) -> Result<Op> {
        let scope = self.scope().unwrap_or(Scope::Gpu);
        if self.inst.opcode[0] == "membar" {
            if self.has("proxy") {
                return Ok(Op::Fence(Fence::Nothing));
            }
            return Ok(Op::Fence(Fence::Thread { acquire: true, release: true, scope }));
        }
        if self.has("mbarrier_init") {
            return Ok(Op::Fence(Fence::MbarrierInit));
        }
        if self.has("tensormap::generic") {
            if self.has("acquire") {
                return Ok(Op::TensorMapAcquire { scope, addr: self.addr(0)?, bytes: self.src(1, Ty::U32)? });
            }
            return Ok(Op::Fence(Fence::TensorMapRelease(scope)));
        }
        if self.has("proxy") {
            return match () {
                () if self.inst.opcode.iter().any(|m| m.starts_with("async")) => {
                    let shared = self.inst.opcode.iter().any(|m| m.contains("shared::"));
                    let global = self.has("global");
                    Ok(Op::Fence(Fence::ProxyAsync { shared: shared || !global, global: global || !shared }))
                }
                () if self.has("alias") => Ok(Op::Fence(Fence::Nothing)),
                () => self.unsupported(),
            };
        }
        let acquire = !self.has("release");
        let release = !self.has("acquire");
        Ok(Op::Fence(Fence::Thread { acquire, release, scope }))
    }

    // ---------------------------------------------------------------- asynchronous copies

    pub(super) fn cp_async(&mut self) -> Result<Op> {
        if self.has("commit_group") {
            return Ok(Op::CpAsyncCommit);
        }
        if self.has("wait_all") {
            return Ok(Op::CpAsyncWait { pending: None });
        }
        if self.has("wait_group") {
            return Ok(Op::CpAsyncWait {
                pending: Some(self.constant(0)?.clamp(0, i64::from(u32::MAX)) as u32),
            });
        }
        if self.has("mbarrier") {
            let space = self.barrier_space();
            return Ok(Op::CpAsyncMbar { addr: self.addr(0)?, space, noinc: self.has("noinc") });
        }
        let bytes = self.constant(2)?;
        if !matches!(bytes, 4 | 8 | 16) || (self.has("cg") && bytes != 16) {
            return self.error("the size is 4, 8 or 16 bytes (16 with .cg)");
        }
        let (mut src_bytes, mut ignore) = (None, None);
        let cached = self.has("L2::cache_hint");
        let optional = self.count() - usize::from(cached && self.count() > 3);
        if optional > 3 {
            let o = self.operand(3)?;
            let predicate = match &o {
                Operand::Name(_) => self.register_and_type(&o)?.1 == Ty::Pred,
                Operand::Not(_) => true,
                _ => false,
            };
            if predicate {
                ignore = Some(self.source(&o, Ty::Pred)?);
            } else {
                src_bytes = Some(self.source(&o, Ty::U32)?);
            }
        }
        Ok(Op::CpAsync { dst: self.addr(0)?, src: self.addr(1)?, bytes: bytes as u32, src_bytes, ignore })
    }

    pub(super) fn bulk(&mut self) -> Result<Op> {
        if self.has("commit_group") {
            return Ok(Op::BulkCommit);
        }
        if self.has("wait_group") {
            let pending = self.constant(0)?;
            return Ok(Op::BulkWait { pending: pending.clamp(0, 1 << 20) as u32, read: self.has("read") });
        }
        if self.has("tensor") {
            return self.tensor_copy();
        }
        if self.has("prefetch") {
            return Ok(Op::BulkPrefetch { addr: self.addr(0)?, size: self.src(1, Ty::U32)? });
        }
        let opcode = &self.inst.opcode;
        let spaces: Vec<&str> = opcode
            .iter()
            .map(String::as_str)
            .filter(|m| matches!(*m, "global" | "shared::cta" | "shared::cluster" | "shared"))
            .collect();
        let way = match spaces.as_slice() {
            ["global", "shared::cta"] => BulkWay::SharedToGlobal,
            ["shared::cluster" | "shared::cta", "global"] => BulkWay::GlobalToShared,
            ["shared::cluster", "shared::cta"] => BulkWay::SharedToShared,
            _ => return self.unsupported(),
        };
        if self.has("ignore_oob") || (self.has("cp_mask") && way != BulkWay::SharedToGlobal) {
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
        let mbar = if way == BulkWay::SharedToGlobal { None } else { Some(self.addr(3)?) };
        let multicast = if self.has("multicast::cluster") { Some(self.src(4, Ty::U16)?) } else { None };
        if reduce.is_some() && (way == BulkWay::GlobalToShared || multicast.is_some() || self.has("cp_mask"))
        {
            return self.unsupported();
        }
        // The mask of bytes comes last, behind the optional cache policy.
        let mask = if self.has("cp_mask") { Some(self.src(self.count() - 1, Ty::U16)?) } else { None };
        Ok(Op::Bulk(Box::new(BulkCopy { way, dst, src, size, mbar, multicast, reduce, mask })))
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

    fn tensor_copy(&mut self) -> Result<Op> {
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
            return Ok(Op::TensorPrefetch { map });
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
            return Ok(Op::Tensor(Box::new(copy)));
        }
        let shared = self.addr(0)?;
        let (map, coords) = self.tensor_operand(1, rank)?;
        let mbar = Some(self.addr(2)?);
        let multicast = if self.has("multicast::cluster") { Some(self.src(3, Ty::U16)?) } else { None };
        self.expect_operands(3, 5)?;
        Ok(Op::Tensor(Box::new(TensorCopy { rank, map, coords, shared, mbar, multicast, reduce: None })))
    }

    /// `st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{.v2}.b32 [a], b, [mbar]`
    pub(super) fn store_async(&mut self) -> Result<Op> {
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
        Ok(Op::StAsync {
            addr: self.addr(0)?,
            src: self.sources(1, ty)?,
            mbar: self.addr(2)?,
            bytes: ty.bytes() as u32,
            reduce,
        })
    }

    pub(super) fn tensormap(&mut self) -> Result<Op> {
        if self.has("cp_fenceproxy") {
            return Ok(Op::TensorMapCopyRelease { dst: self.addr(0)?, src: self.addr(1)? });
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
        Ok(Op::TensorMapReplace { field, addr: self.addr(0)?, space, value })
    }
}
