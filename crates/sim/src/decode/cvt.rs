//! `cvt` in all its forms.

use super::Result;
use super::decoder::Decoder;
use super::isa::{Reg, Src, ZERO};
use super::scalar::ScalarOp;
use crate::arith::cvt::{Cvt, With};
use crate::text::types::Ty;

/// Whether `cvt` knows a modifier; an unknown one would change the result in silence.
fn known_to_cvt(m: &str) -> bool {
    Ty::parse(m).is_some()
        || matches!(m, "rn" | "rz" | "rm" | "rp" | "rna" | "rs" | "rni" | "rzi" | "rmi" | "rpi")
        || matches!(m, "ftz" | "sat" | "satfinite" | "relu" | "pack" | "scaled::n2::ue8m0")
}

impl Decoder<'_, '_> {
    pub(super) fn cvt(&mut self) -> Result<ScalarOp> {
        let types = self.types();
        let dst = self.dst(0)?;
        if let Some(unknown) = self.inst.opcode[1..].iter().find(|m| !known_to_cvt(m)) {
            return self.error(format!("`.{unknown}` is not supported here"));
        }
        if self.has("pack") {
            return self.cvt_pack(dst);
        }
        if types.len() < 2 {
            return self.unsupported();
        }
        let integer_round = ["rni", "rzi", "rmi", "rpi"].iter().any(|m| self.has(m));
        let mode = self.mode();
        let mut cvt = Cvt {
            to: types[0],
            from: types[1],
            round: mode.round,
            integer_round,
            ftz: mode.ftz,
            sat: mode.sat,
            satfinite: self.has("satfinite"),
            relu: mode.relu,
            with: match (self.has("rs"), self.has("scaled::n2::ue8m0")) {
                (false, false) => With::Nothing,
                (true, false) => With::Random,
                (false, true) => With::Scales,
                (true, true) => return self.unsupported(),
            },
            width: self.register_width(dst),
        };
        if cvt.to == Ty::Bf16x2 || cvt.from == Ty::Bf16x2 {
            cvt.ftz = false;
        }
        if !cvt.supported() {
            return self.unsupported();
        }
        if !cvt.satfinite && (cvt.sources() == 4 || cvt.to == Ty::S2f6x2) {
            return self.error("this destination needs `.satfinite`");
        }
        if cvt.with != With::Nothing {
            return self.cvt_with(cvt, dst);
        }
        let sources = cvt.sources();
        self.expect_operands(sources + 1, sources + 1)?;
        let a = self.src(1, cvt.from)?;
        let b = if sources == 2 { self.src(2, cvt.from)? } else { ZERO };
        Ok(ScalarOp::Cvt { cvt, dst, a, b })
    }

    /// `cvt.rs` and `cvt` with `.scaled`: the sources, four of them in a vector, then the random bits or scales.
    fn cvt_with(&mut self, cvt: Cvt, dst: Reg) -> Result<ScalarOp> {
        let other = ["ftz", "sat", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi"];
        if let Some(m) = other.iter().find(|m| self.has(m)) {
            return self.error(format!("`.{m}` does not go with `.rs` or `.scaled`"));
        }
        if cvt.with == With::Random && self.has("rn") {
            return self.error("`.rn` and `.rs` are two roundings");
        }
        if self.register_width(dst) < cvt.to.bits() {
            return self.error(format!("the result needs a register of {} bits", cvt.to.bits()));
        }
        let sources = cvt.sources();
        let last = if sources == 4 { 2 } else { sources + 1 };
        self.expect_operands(last + 1, last + 1)?;
        let mut src = Box::new([ZERO; 5]);
        if sources == 4 {
            let vector = self.sources(1, cvt.from)?;
            if vector.len() != 4 {
                return self.error("expected a vector of four sources");
            }
            src[..4].copy_from_slice(&vector);
        } else {
            for (i, s) in src[..sources].iter_mut().enumerate() {
                *s = self.src(i + 1, cvt.from)?;
            }
        }
        let (name, bits) = if cvt.with == With::Random { ("random bits", 32) } else { ("scales", 16) };
        match self.src(last, Ty::B32)? {
            Src::Reg(r) if self.register_width(r) == bits => src[4] = Src::Reg(r),
            _ => return self.error(format!("the {name} are a register of {bits} bits")),
        }
        Ok(ScalarOp::CvtWith { cvt, dst, src })
    }

    /// `cvt.pack.sat.u8.s32.b32 d, a, b, c` and its narrower and wider forms.
    fn cvt_pack(&mut self, dst: Reg) -> Result<ScalarOp> {
        let types = self.types();
        if types.len() < 2 || !self.has("sat") {
            return self.unsupported();
        }
        let Some(f) = crate::arith::simd::pack(types[0], types[1]) else { return self.unsupported() };
        let sources = types.len();
        self.expect_operands(sources + 1, sources + 1)?;
        let c = if sources == 3 { self.src(3, Ty::B32)? } else { ZERO };
        Ok(ScalarOp::Alu { f, dst, a: self.src(1, Ty::S32)?, b: self.src(2, Ty::S32)?, c })
    }
}
