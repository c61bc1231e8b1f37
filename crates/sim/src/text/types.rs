//! The scalar types of PTX.

/// A scalar (or packed) operand type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub(crate) enum Ty {
    Pred,
    B1,
    U4,
    S4,
    U8,
    S8,
    B8,
    U16,
    S16,
    B16,
    U16x2,
    S16x2,
    U32,
    S32,
    B32,
    U64,
    S64,
    B64,
    B128,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    Tf32,
    F32,
    F32x2,
    F64,
    E4m3,
    E5m2,
    E4m3x2,
    E5m2x2,
    E2m1x2,
    E2m3x2,
    E3m2x2,
    Ue8m0x2,
    S2f6x2,
    E4m3x4,
    E5m2x4,
    E2m3x4,
    E3m2x4,
    E2m1x4,
}

impl Ty {
    pub(crate) fn parse(name: &str) -> Option<Ty> {
        Some(match name {
            "pred" => Ty::Pred,
            "b1" => Ty::B1,
            "u4" => Ty::U4,
            "s4" => Ty::S4,
            "u16x2" => Ty::U16x2,
            "s16x2" => Ty::S16x2,
            "u8" => Ty::U8,
            "s8" => Ty::S8,
            "b8" => Ty::B8,
            "u16" => Ty::U16,
            "s16" => Ty::S16,
            "b16" => Ty::B16,
            "u32" => Ty::U32,
            "s32" => Ty::S32,
            "b32" => Ty::B32,
            "u64" => Ty::U64,
            "s64" => Ty::S64,
            "b64" => Ty::B64,
            "b128" => Ty::B128,
            "f16" => Ty::F16,
            "f16x2" => Ty::F16x2,
            "bf16" => Ty::Bf16,
            "bf16x2" => Ty::Bf16x2,
            "tf32" => Ty::Tf32,
            "f32" => Ty::F32,
            "f32x2" => Ty::F32x2,
            "f64" => Ty::F64,
            "e4m3" => Ty::E4m3,
            "e5m2" => Ty::E5m2,
            "e4m3x2" => Ty::E4m3x2,
            "e5m2x2" => Ty::E5m2x2,
            "e2m1x2" => Ty::E2m1x2,
            "e2m3x2" => Ty::E2m3x2,
            "e3m2x2" => Ty::E3m2x2,
            "ue8m0x2" => Ty::Ue8m0x2,
            "s2f6x2" => Ty::S2f6x2,
            "e4m3x4" => Ty::E4m3x4,
            "e5m2x4" => Ty::E5m2x4,
            "e2m3x4" => Ty::E2m3x4,
            "e3m2x4" => Ty::E3m2x4,
            "e2m1x4" => Ty::E2m1x4,
            _ => return None,
        })
    }

    /// Width in bits; a predicate counts one.
    pub(crate) fn bits(self) -> u32 {
        match self {
            Ty::Pred | Ty::B1 => 1,
            Ty::U4 | Ty::S4 => 4,
            Ty::U8 | Ty::S8 | Ty::B8 | Ty::E4m3 | Ty::E5m2 | Ty::E2m1x2 => 8,
            Ty::U16
            | Ty::S16
            | Ty::B16
            | Ty::F16
            | Ty::Bf16
            | Ty::E4m3x2
            | Ty::E5m2x2
            | Ty::E2m3x2
            | Ty::E3m2x2
            | Ty::Ue8m0x2
            | Ty::S2f6x2
            | Ty::E2m1x4 => 16,
            Ty::U16x2 | Ty::S16x2 | Ty::E4m3x4 | Ty::E5m2x4 | Ty::E2m3x4 | Ty::E3m2x4 => 32,
            Ty::U32 | Ty::S32 | Ty::B32 | Ty::F16x2 | Ty::Bf16x2 | Ty::Tf32 | Ty::F32 => 32,
            Ty::U64 | Ty::S64 | Ty::B64 | Ty::F32x2 | Ty::F64 => 64,
            Ty::B128 => 128,
        }
    }

    /// Size in memory.
    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.bits().div_ceil(8))
    }

    /// As it is written.
    pub(crate) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// Whether a variable may have this type; others are types of instructions.
    pub(crate) fn in_memory(self) -> bool {
        self != Ty::Pred && self.in_register()
    }

    /// Whether a register may have this type.
    pub(crate) fn in_register(self) -> bool {
        self.is_integer()
            || matches!(self, Ty::Pred | Ty::B8 | Ty::B16 | Ty::B32 | Ty::B64 | Ty::B128)
            || matches!(self, Ty::F16 | Ty::F16x2 | Ty::F32 | Ty::F64)
    }

    /// One integer of a register, signed or not.
    pub(crate) fn is_integer(self) -> bool {
        matches!(self, Ty::U8 | Ty::S8 | Ty::U16 | Ty::S16 | Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64)
    }

    /// One or more floats.
    pub(crate) fn is_float(self) -> bool {
        let bits = matches!(self, Ty::B8 | Ty::B16 | Ty::B32 | Ty::B64 | Ty::B128);
        let small = matches!(self, Ty::Pred | Ty::B1 | Ty::U4 | Ty::S4 | Ty::U16x2 | Ty::S16x2);
        !(bits || small || self.is_integer())
    }

    /// One number, not a pair or more.
    pub(crate) fn is_number(self) -> bool {
        self.is_integer() || matches!(self, Ty::F16 | Ty::Bf16 | Ty::Tf32 | Ty::F32 | Ty::F64)
    }

    pub(crate) fn signed(self) -> bool {
        matches!(self, Ty::S8 | Ty::S16 | Ty::S32 | Ty::S64)
    }
}

/// Size in bytes of the type named by a suffix.
pub(crate) fn type_bytes(name: &str) -> Option<u64> {
    Ty::parse(name).map(Ty::bytes)
}

/// A mask of the low `bits` bits.
pub(crate) fn low_mask(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// Sign-extends the low `bits` bits.
pub(crate) fn sign_extend(value: u64, bits: u32) -> u64 {
    if bits >= 64 {
        value
    } else {
        let shift = 64 - bits;
        (((value << shift) as i64) >> shift) as u64
    }
}
