//! Which registers an operation reads and writes, for the checks that do not depend on what it does.

use crate::decode::isa::{Addr, CallCopy, CallTarget, Op, PhaseRef, Reg, Src};

/// Registers read and written by an operation. The registers of `wgmma` are left to its own rules.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uses {
    pub(crate) reads: Box<[Reg]>,
    pub(crate) writes: Box<[Reg]>,
    /// A plain move: it may copy a register that was never written, as compilers do where paths join.
    pub(crate) copies: bool,
}

#[derive(Default)]
struct Lists {
    reads: Vec<Reg>,
    writes: Vec<Reg>,
}

impl Lists {
    fn src(&mut self, s: Src) -> &mut Self {
        if let Src::Reg(r) | Src::Not(r) = s {
            self.reads.push(r);
        }
        self
    }

    fn srcs(&mut self, list: &[Src]) -> &mut Self {
        list.iter().for_each(|s| {
            self.src(*s);
        });
        self
    }

    fn addr(&mut self, a: &Addr) -> &mut Self {
        self.src(a.base)
    }

    fn maybe(&mut self, s: Option<Src>) -> &mut Self {
        if let Some(s) = s {
            self.src(s);
        }
        self
    }

    fn dst(&mut self, r: Reg) -> &mut Self {
        self.writes.push(r);
        self
    }

    /// The registers that hand over the arguments of a call.
    fn args(&mut self, target: &CallTarget) -> &mut Self {
        for a in &target.args {
            if let CallCopy::Value { from, to } = a {
                self.src(*from).dst(*to);
            }
        }
        self
    }

    fn maybe_dst(&mut self, r: Option<Reg>) -> &mut Self {
        self.writes.extend(r);
        self
    }
}

pub(crate) fn uses(op: &Op, guard: Option<(Reg, bool)>) -> Uses {
    let mut l = Lists::default();
    if let Some((r, _)) = guard {
        l.reads.push(r);
    }
    match op {
        Op::Alu { dst, a, b, c, .. } => l.src(*a).src(*b).src(*c).dst(*dst),
        Op::Alu4 { dst, src, .. } => l.srcs(src).dst(*dst),
        Op::Cvt { dst, a, b, .. } => l.src(*a).src(*b).dst(*dst),
        Op::CvtWith { dst, src, .. } => l.srcs(&src[..]).dst(*dst),
        Op::Carry { dst, a, b, c, .. } => l.src(*a).src(*b).src(*c).dst(*dst),
        Op::Setp { a, b, combine, p, q, .. } => {
            l.src(*a).src(*b).maybe(combine.map(|c| c.1)).maybe_dst(*p).maybe_dst(*q)
        }
        Op::Set { dst, a, b, combine, .. } => l.src(*a).src(*b).maybe(combine.map(|c| c.1)).dst(*dst),
        Op::Lop3(x) => l.srcs(&x.src).src(x.combine.1).maybe_dst(x.dst).maybe_dst(x.p),
        Op::Move { pairs } => {
            for (d, s) in pairs {
                l.src(*s).dst(*d);
            }
            &mut l
        }
        Op::Pack { dst, parts, .. } => l.srcs(parts).dst(*dst),
        Op::Unpack { parts, src, .. } => {
            l.writes.extend(parts.iter().flatten());
            l.src(*src)
        }
        Op::Load { dst, addr, .. } => {
            l.writes.extend(dst.iter().flatten().map(|d| d.0));
            l.addr(addr)
        }
        Op::Store { src, addr, .. } => l.srcs(src).addr(addr),
        Op::Atom { dst, addr, b, c, .. } => l.addr(addr).src(*b).maybe(*c).maybe_dst(*dst),
        Op::AtomWide { dst, addr, b, c, .. } => {
            for r in [Some(*b), *c].into_iter().flatten() {
                l.src(Src::Reg(r)).src(Src::Reg(r + 1));
            }
            l.writes.extend(dst.iter().flat_map(|d| [*d, d + 1]));
            l.addr(addr)
        }
        Op::AtomVector { dst, addr, b, .. } => {
            l.writes.extend(dst.iter().flatten());
            l.addr(addr).srcs(b)
        }
        Op::StoreZeros { addr, bytes, .. } => l.addr(addr).src(*bytes),
        Op::Discard { addr } => l.addr(addr),
        Op::CvtaTo { dst, src, .. } | Op::CvtaFrom { dst, src, .. } => l.src(*src).dst(*dst),
        Op::Mapa { dst, src, rank, .. } => l.src(*src).src(*rank).dst(*dst),
        Op::GetCtaRank { dst, src, .. } | Op::IsSpace { dst, src, .. } => l.src(*src).dst(*dst),
        Op::BranchIndexed { index, .. } => l.src(*index),
        Op::Call(target) => l.args(target),
        Op::CallPointer { pointer, targets } => {
            targets.iter().for_each(|(_, target)| {
                l.args(target);
            });
            l.src(*pointer)
        }
        Op::Shfl { dst, p, a, b, c, mask, .. } => {
            l.src(*a).src(*b).src(*c).maybe(*mask).dst(*dst).maybe_dst(*p)
        }
        Op::Vote { dst, src, mask, .. } => l.src(*src).maybe(*mask).dst(*dst),
        Op::Match { dst, p, a, mask, .. } => l.src(*a).src(*mask).dst(*dst).maybe_dst(*p),
        Op::Redux { dst, a, mask, .. } => l.src(*a).src(*mask).dst(*dst),
        Op::Elect { dst, p, mask } => l.src(*mask).maybe_dst(*dst).dst(*p),
        Op::ActiveMask { dst } => l.dst(*dst),
        Op::WarpSync { mask } => l.src(*mask),
        Op::Bar { id, threads, .. } => l.src(*id).maybe(*threads),
        Op::BarReduce { id, threads, dst, src, .. } => l.src(*id).maybe(*threads).src(*src).dst(*dst),
        Op::MbarInit { addr, count, .. } => l.addr(addr).src(*count),
        Op::MbarInval { addr, .. } => l.addr(addr),
        Op::MbarArrive(a) => l.addr(&a.addr).src(a.count).maybe(a.expect).maybe_dst(a.token),
        Op::MbarTx { addr, bytes, .. } => l.addr(addr).src(*bytes),
        Op::MbarWait { dst, addr, phase, .. } => {
            let (PhaseRef::Parity(s) | PhaseRef::Token(s)) = phase;
            l.addr(addr).src(*s).dst(*dst)
        }
        Op::MbarPending { dst, token } => l.src(*token).dst(*dst),
        Op::TensorMapAcquire { addr, bytes, .. } => l.addr(addr).src(*bytes),
        Op::TensorMapReplace { addr, value, .. } => l.addr(addr).src(*value),
        Op::TensorMapCopyRelease { dst, src } => l.addr(dst).addr(src),
        Op::CpAsync { dst, src, src_bytes, ignore, .. } => {
            l.addr(dst).addr(src).maybe(*src_bytes).maybe(*ignore)
        }
        Op::CpAsyncMbar { addr, .. } => l.addr(addr),
        Op::Bulk(b) => {
            if let Some(m) = &b.mbar {
                l.addr(m);
            }
            l.addr(&b.dst).addr(&b.src).src(b.size).maybe(b.multicast).maybe(b.mask)
        }
        Op::Tensor(t) => {
            if let Some(m) = &t.mbar {
                l.addr(m);
            }
            l.addr(&t.map).srcs(&t.coords).addr(&t.shared).maybe(t.multicast)
        }
        Op::BulkPrefetch { addr, size } => l.addr(addr).src(*size),
        Op::TensorPrefetch { map } => l.addr(map),
        Op::StAsync { addr, mbar, src, .. } => l.addr(addr).addr(mbar).srcs(src),
        Op::Wgmma(w) => {
            if let crate::decode::isa::WgmmaA::Descriptor(s) = w.a {
                l.src(s);
            }
            l.src(w.b).src(w.scale_d)
        }
        Op::Mma(m) => {
            l.writes.extend(m.d.iter());
            l.srcs(&m.a).srcs(&m.b).srcs(&m.c)
        }
        Op::LdMatrix { addr, dst, .. } => {
            l.writes.extend(dst.iter());
            l.addr(addr)
        }
        Op::StMatrix { addr, src, .. } => l.addr(addr).srcs(src),
        Op::MovMatrix { dst, src } => l.src(*src).dst(*dst),
        Op::WmmaLoad(load) => {
            l.writes.extend(load.1.iter());
            l.addr(&load.0.addr).maybe(load.0.stride)
        }
        Op::WmmaStore(store) => l.srcs(&store.1).addr(&store.0.addr).maybe(store.0.stride),
        Op::WmmaMma(m) => {
            l.writes.extend(m.d.iter());
            l.srcs(&m.a).srcs(&m.b).srcs(&m.c)
        }
        Op::Branch { .. }
        | Op::Return
        | Op::Exit
        | Op::Trap
        | Op::Nop
        | Op::Yield
        | Op::ClusterArrive { .. }
        | Op::ClusterWait { .. }
        | Op::Fence(_)
        | Op::CpAsyncCommit
        | Op::CpAsyncWait { .. }
        | Op::BulkCommit
        | Op::BulkWait { .. }
        | Op::WgmmaFence
        | Op::WgmmaCommit
        | Op::WgmmaWait { .. }
        | Op::SetMaxReg { .. }
        | Op::GridDependencyWait
        | Op::LaunchDependents => &mut l,
    };
    l.reads.sort_unstable();
    l.reads.dedup();
    Uses { reads: l.reads.into(), writes: l.writes.into(), copies: false }
}
