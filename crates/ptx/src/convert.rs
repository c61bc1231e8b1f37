//! Conversions between number formats, and packing (PTX manual, "cvt", "mov").

use crate::kernel::Kernel;
use crate::target::Needs;
use crate::value::{Arg, Bf16, Bf16x2, F16, F16x2, F32, Fp8x2, I32, Type, U32, U64};

/// An FP8 format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fp8 {
    /// 4 exponent bits, 3 mantissa bits; largest value 448.
    E4m3,
    /// 5 exponent bits, 2 mantissa bits; largest value 57344.
    E5m2,
}

impl Fp8 {
    /// Its name in an instruction.
    pub fn name(self) -> &'static str {
        match self {
            Fp8::E4m3 => "e4m3",
            Fp8::E5m2 => "e5m2",
        }
    }
}

impl<'k> F32<'k> {
    /// Rounds to BF16, to nearest even.
    #[track_caller]
    pub fn to_bf16(self) -> crate::Val<'k, Bf16> {
        let out = self.k.fresh::<Bf16>();
        self.k.op(format_args!("cvt.rn.bf16.f32 {}, {};", out.operand(), self.operand()));
        out
    }

    /// Rounds to FP16, to nearest even.
    #[track_caller]
    pub fn to_f16(self) -> crate::Val<'k, F16> {
        let out = self.k.fresh::<F16>();
        self.k.op(format_args!("cvt.rn.f16.f32 {}, {};", out.operand(), self.operand()));
        out
    }

    /// Rounds to TF32 and keeps it in a 32-bit register, as `wgmma` reads it.
    #[track_caller]
    pub fn to_tf32(self) -> U32<'k> {
        let out = self.k.fresh::<u32>();
        self.k.emit(
            Needs::from_sm(80, 7, 0),
            format_args!("cvt.rna.tf32.f32 {}, {};", out.operand(), self.operand()),
        );
        out
    }

    /// Truncates toward zero.
    #[track_caller]
    pub fn to_i32_truncating(self) -> I32<'k> {
        let out = self.k.fresh::<i32>();
        self.k.op(format_args!("cvt.rzi.s32.f32 {}, {};", out.operand(), self.operand()));
        out
    }
}

impl<'k> crate::Val<'k, Bf16> {
    /// Widens, exactly.
    #[track_caller]
    pub fn to_f32(self) -> F32<'k> {
        let (bits, out) = (self.k.fresh::<u32>(), self.k.fresh::<f32>());
        self.k.op(format_args!("mov.b32 {}, {{0, {}}};", bits.operand(), self.operand()));
        self.k.op(format_args!("mov.b32 {}, {};", out.operand(), bits.operand()));
        out
    }
}

impl<'k> crate::Val<'k, Bf16x2> {
    /// Widens both, exactly.
    #[track_caller]
    pub fn to_f32(self) -> [F32<'k>; 2] {
        let bits = self.bitcast::<u32>();
        [(bits << 16).bitcast(), (bits & 0xffff_0000).bitcast()]
    }
}

impl<'k> crate::Val<'k, F16> {
    /// Widens, exactly.
    #[track_caller]
    pub fn to_f32(self) -> F32<'k> {
        let out = self.k.fresh::<f32>();
        self.k.op(format_args!("cvt.f32.f16 {}, {};", out.operand(), self.in_register().operand()));
        out
    }
}

impl<'k> crate::Val<'k, F16x2> {
    /// Widens both, exactly.
    #[track_caller]
    pub fn to_f32(self) -> [F32<'k>; 2] {
        self.halves().map(|half| half.to_f32())
    }

    /// The two numbers, low half first.
    #[track_caller]
    pub fn halves(self) -> [crate::Val<'k, F16>; 2] {
        let out = [(); 2].map(|()| self.k.fresh::<F16>());
        let [low, high] = out.map(|half| half.operand());
        self.k.op(format_args!("mov.b32 {{{low}, {high}}}, {};", self.in_register().operand()));
        out
    }
}

impl<'k> crate::Val<'k, Bf16x2> {
    /// The two numbers, low half first.
    #[track_caller]
    pub fn halves(self) -> [crate::Val<'k, Bf16>; 2] {
        let out = [(); 2].map(|()| self.k.fresh::<Bf16>());
        let [low, high] = out.map(|half| half.operand());
        self.k.op(format_args!("mov.b32 {{{low}, {high}}}, {};", self.in_register().operand()));
        out
    }
}

impl<'k> U32<'k> {
    /// The low half.
    #[track_caller]
    pub fn to_u16(self) -> crate::U16<'k> {
        let out = self.k.fresh::<u16>();
        self.k.op(format_args!("cvt.u16.u32 {}, {};", out.operand(), self.operand()));
        out
    }

    /// Rounds to single precision, to nearest even.
    #[track_caller]
    pub fn to_f32(self) -> F32<'k> {
        let out = self.k.fresh::<f32>();
        self.k.op(format_args!("cvt.rn.f32.u32 {}, {};", out.operand(), self.operand()));
        out
    }
}

impl<'k> U64<'k> {
    /// The low half.
    #[track_caller]
    pub fn to_u32(self) -> U32<'k> {
        let out = self.k.fresh::<u32>();
        self.k.op(format_args!("cvt.u32.u64 {}, {};", out.operand(), self.operand()));
        out
    }
}

impl Kernel {
    /// Rounds two numbers to BF16 and packs them, the first in the low half.
    #[track_caller]
    pub fn pack_bf16<'k>(&'k self, low: F32<'k>, high: F32<'k>) -> crate::Val<'k, Bf16x2> {
        let out = self.fresh::<Bf16x2>();
        let (dst, low, high) = (out.operand(), low.operand(), high.operand());
        self.op(format_args!("cvt.rn.bf16x2.f32 {dst}, {high}, {low};"));
        out
    }

    /// Rounds two numbers to FP16 and packs them, the first in the low half.
    #[track_caller]
    pub fn pack_f16<'k>(&'k self, low: F32<'k>, high: F32<'k>) -> crate::Val<'k, F16x2> {
        let out = self.fresh::<F16x2>();
        let (dst, low, high) = (out.operand(), low.operand(), high.operand());
        self.op(format_args!("cvt.rn.f16x2.f32 {dst}, {high}, {low};"));
        out
    }

    /// Rounds two numbers to FP8, saturating to the largest finite value, and packs them, the first in the low byte.
    #[track_caller]
    pub fn pack_fp8<'k>(&'k self, format: Fp8, low: F32<'k>, high: F32<'k>) -> crate::Val<'k, Fp8x2> {
        let out = self.fresh::<Fp8x2>();
        let (dst, low, high) = (out.operand(), low.operand(), high.operand());
        let name = format.name();
        self.emit(
            Needs::from_sm(90, 7, 8),
            format_args!("cvt.rn.satfinite.{name}x2.f32 {dst}, {high}, {low};"),
        );
        out
    }

    /// Widens two FP8 numbers to FP16, exactly.
    #[track_caller]
    pub fn unpack_fp8<'k>(&'k self, format: Fp8, pair: crate::Val<'k, Fp8x2>) -> crate::Val<'k, F16x2> {
        let out = self.fresh::<F16x2>();
        let (dst, pair) = (out.operand(), pair.in_register().operand());
        let name = format.name();
        self.emit(Needs::from_sm(90, 7, 8), format_args!("cvt.rn.f16x2.{name}x2 {dst}, {pair};"));
        out
    }

    /// Joins two halves of a word, the first in the low half.
    #[track_caller]
    pub fn join_halves<'k, T: Type>(&'k self, low: crate::Val<'k, T>, high: crate::Val<'k, T>) -> U32<'k> {
        const { assert!(T::BYTES == 2) };
        let out = self.fresh::<u32>();
        let (dst, low, high) = (out.operand(), low.in_register().operand(), high.in_register().operand());
        self.op(format_args!("mov.b32 {dst}, {{{low}, {high}}};"));
        out
    }

    /// Joins two words, the first in the low half.
    #[track_caller]
    pub fn join<'k>(&'k self, low: impl Arg<'k, u32>, high: impl Arg<'k, u32>) -> U64<'k> {
        let out = self.fresh::<u64>();
        let (dst, low, high) =
            (out.operand(), low.val(self).in_register().operand(), high.val(self).in_register().operand());
        self.op(format_args!("mov.b64 {dst}, {{{low}, {high}}};"));
        out
    }
}
