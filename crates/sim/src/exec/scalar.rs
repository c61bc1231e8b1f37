//! Functions of registers.

use super::warp::Warp;
use crate::arith::alu::lop3;
use crate::decode::isa::{Copied, Reg, Src};
use crate::decode::scalar::ScalarOp;
use crate::lanes::lanes;
use crate::text::types::low_mask;

/// The result of a move or a selection is defined in the lanes where what it hands on is.
pub(super) fn follow(warp: &mut Warp, op: &ScalarOp, active: u32) {
    let written = |warp: &Warp, s: &Copied| match s.0 {
        Src::Reg(r) | Src::Not(r) => warp.written[r.index()],
        _ => u32::MAX,
    };
    let (dst, from, defined) = match op {
        ScalarOp::Copy { dst, a, .. } => (*dst, [*a, *a], written(warp, a)),
        ScalarOp::Select { choose, dst, a, b, c } => {
            let chosen = lanes(active).filter(|l| choose(warp.value(*c, *l))).fold(0u32, |m, l| m | 1 << l);
            (*dst, [*a, *b], written(warp, a) & chosen | written(warp, b) & !chosen)
        }
        _ => return,
    };
    warp.written[dst.index()] = warp.written[dst.index()] & !active | defined & active;
    if defined & active != active {
        // Whence it is undefined goes with it.
        let register = |s: &Copied| if let Src::Reg(r) = s.0 { Some(r) } else { None };
        let undefined = |r: &Reg| warp.written[r.index()] & active != active;
        let source = from.iter().filter_map(register).filter(undefined).find_map(|r| warp.undefined.get(&r));
        match source.copied() {
            Some(pc) => warp.undefined.insert(dst, pc),
            None => warp.undefined.remove(&dst),
        };
    }
}

pub(super) fn execute(warp: &mut Warp, op: &ScalarOp, active: u32) {
    match op {
        ScalarOp::Alu { f, dst, a, b, c } if active == u32::MAX => {
            let (a, b, c) = (warp.all(*a), warp.all(*b), warp.all(*c));
            let out = warp.row_mut(*dst);
            for (l, v) in out.iter_mut().enumerate() {
                *v = f(a[l], b[l], c[l]);
            }
        }
        ScalarOp::Alu { f, dst, a, b, c } => {
            for l in lanes(active) {
                let v = f(warp.value(*a, l), warp.value(*b, l), warp.value(*c, l));
                warp.set(*dst, l, v);
            }
        }
        ScalarOp::Copy { f, dst, a } => {
            let a = warp.all(a.0);
            let out = warp.row_mut(*dst);
            lanes(active).for_each(|l| out[l] = f(a[l], 0, 0));
        }
        ScalarOp::Select { choose, dst, a, b, c } => {
            let (a, b, c) = (warp.all(a.0), warp.all(b.0), warp.all(*c));
            let out = warp.row_mut(*dst);
            lanes(active).for_each(|l| out[l] = if choose(c[l]) { a[l] } else { b[l] });
        }
        ScalarOp::Alu4 { f, dst, src } => {
            for l in lanes(active) {
                let [a, b, c, d] = src.map(|s| warp.value(s, l));
                warp.set(*dst, l, f(a, b, c, d));
            }
        }
        ScalarOp::Cvt { cvt, dst, a, b } => {
            for l in lanes(active) {
                let v = cvt.apply(warp.value(*a, l), warp.value(*b, l));
                warp.set(*dst, l, v);
            }
        }
        ScalarOp::CvtWith { cvt, dst, src } => {
            for l in lanes(active) {
                let v = cvt.apply_with(src.map(|s| warp.value(s, l)));
                warp.set(*dst, l, v);
            }
        }
        ScalarOp::Carry { f, dst, a, b, c, writes } => {
            for l in lanes(active) {
                let carry = warp.carry >> l & 1 == 1;
                let (v, out) = f(warp.value(*a, l), warp.value(*b, l), warp.value(*c, l), carry);
                warp.set(*dst, l, v);
                if *writes {
                    warp.carry = warp.carry & !(1 << l) | u32::from(out) << l;
                }
            }
        }
        ScalarOp::Setp { cmp, a, b, combine, p, q, packed } => {
            for l in lanes(active) {
                let (a, b) = (warp.value(*a, l), warp.value(*b, l));
                let r = cmp(a, b);
                let other = if *packed { cmp(a >> 16, b >> 16) } else { !r };
                let with = |r: bool| combine.map_or(r, |(how, c)| how.apply(r, warp.value(c, l) & 1 == 1));
                let (x, y) = (with(r), with(other));
                if let Some(p) = p {
                    warp.set(*p, l, u64::from(x));
                }
                if let Some(q) = q {
                    warp.set(*q, l, u64::from(y));
                }
            }
        }
        ScalarOp::Pack { dst, parts, bits } => {
            for l in lanes(active) {
                let low = low_mask(*bits);
                let v = parts.iter().rev().fold(0u64, |v, p| v << bits | warp.value(*p, l) & low);
                warp.set(*dst, l, v);
            }
        }
        ScalarOp::Unpack { parts, src, bits } => {
            for l in lanes(active) {
                let v = warp.value(*src, l);
                for (i, p) in parts.iter().enumerate() {
                    if let Some(p) = p {
                        warp.set(*p, l, v >> (i as u32 * bits) & low_mask(*bits));
                    }
                }
            }
        }
        ScalarOp::Set { cmp, dst, a, b, one, combine, packed } => {
            for l in lanes(active) {
                let (a, b) = (warp.value(*a, l), warp.value(*b, l));
                let with = |r: bool| combine.map_or(r, |(how, c)| how.apply(r, warp.value(c, l) & 1 == 1));
                let half = |shift: u32| if with(cmp(a >> shift, b >> shift)) { *one } else { 0 };
                let v = if *packed { half(0) | half(16) << 16 } else { half(0) };
                warp.set(*dst, l, v);
            }
        }
        ScalarOp::Lop3(x) => {
            for l in lanes(active) {
                let [a, b, c, table] = x.src.map(|s| warp.value(s, l));
                let v = lop3(a, b, c, table);
                let set = x.combine.0.apply(v != 0, warp.value(x.combine.1, l) & 1 == 1);
                if let Some(d) = x.dst {
                    warp.set(d, l, v);
                }
                if let Some(p) = x.p {
                    warp.set(p, l, u64::from(set));
                }
            }
        }
        ScalarOp::Move { pairs } => {
            for l in lanes(active) {
                let values: Vec<u64> = pairs.iter().map(|(_, s)| warp.value(*s, l)).collect();
                pairs.iter().zip(values).for_each(|((d, _), v)| warp.set(*d, l, v));
            }
        }
    }
}
