//! Instruction descriptors of `tcgen05.mma`: shape, types and scales of one MMA, in 32 bits.
//!
//! | bits | f16, tf32, f8f6f4, i8 | mxf8f6f4 | mxf4, mxf4nvf4 |
//! |---|---|---|---|
//! | 0-1 | sparsity selector | 0 | 0 |
//! | 2 | sparse | sparse | sparse |
//! | 3 | saturate (i8) | 0 | 0 |
//! | 4-5 | type of D | scale id of B | scale id of B |
//! | 7-9, 10-12 | types of A and B | types of A and B | 1 and 1 (E2M1; 10-11) |
//! | 13, 14 | negate A, B | negate A, B | negate A, B |
//! | 15, 16 | A, B are MN-major | A, B are MN-major | 0 |
//! | 17-22 | N / 8 | N / 8 | N / 8 |
//! | 23 | 0 | scales are UE8M0 | scales are UE8M0 |
//! | 24-28 | M / 16 | 27-28: M / 128 | 27-28: M / 128 |
//! | 29-30 | 0; 30-31: largest shift of `.ws` | scale id of A | scale id of A; 31: K = 96 |

use super::descriptor::{MatrixSwizzle, Packing};
use crate::units::integer_core::IntInput;
use crate::units::tensor_core::Input;
use crate::units::tensor_core::fused::ScaleType;

/// `.kind::`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    F16,
    Tf32,
    F8f6f4,
    I8,
    Mxf8f6f4,
    Mxf4,
    Mxf4nvf4,
}

impl Kind {
    pub(crate) fn parse(name: &str) -> Option<Kind> {
        Some(match name {
            "kind::f16" => Kind::F16,
            "kind::tf32" => Kind::Tf32,
            "kind::f8f6f4" => Kind::F8f6f4,
            "kind::i8" => Kind::I8,
            "kind::mxf8f6f4" => Kind::Mxf8f6f4,
            "kind::mxf4" => Kind::Mxf4,
            "kind::mxf4nvf4" => Kind::Mxf4nvf4,
            _ => return None,
        })
    }

    /// Whether A and B have block scales.
    pub(crate) fn is_scaled(self) -> bool {
        matches!(self, Kind::Mxf8f6f4 | Kind::Mxf4 | Kind::Mxf4nvf4)
    }

    fn is_fp4(self) -> bool {
        matches!(self, Kind::Mxf4 | Kind::Mxf4nvf4)
    }

    /// Depth of one MMA: 32 bytes of K, with elements of FP6 and FP4 in bytes for `f8f6f4`.
    pub(crate) fn k(self) -> u32 {
        match self {
            Kind::Tf32 => 8,
            Kind::F16 => 16,
            Kind::F8f6f4 | Kind::I8 | Kind::Mxf8f6f4 => 32,
            Kind::Mxf4 | Kind::Mxf4nvf4 => 64,
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kind::F16 => "kind::f16",
            Kind::Tf32 => "kind::tf32",
            Kind::F8f6f4 => "kind::f8f6f4",
            Kind::I8 => "kind::i8",
            Kind::Mxf8f6f4 => "kind::mxf8f6f4",
            Kind::Mxf4 => "kind::mxf4",
            Kind::Mxf4nvf4 => "kind::mxf4nvf4",
        })
    }
}

/// What the text of an MMA says of its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) kind: Kind,
    /// `cta_group::2`
    pub(crate) pair: bool,
    /// `.ws`
    pub(crate) stationary: bool,
    /// Elements to a scale; zero without scales.
    pub(crate) block: u32,
}

/// The type of an operand's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    Float(Input),
    Integer(IntInput),
}

impl Element {
    fn bits(self) -> u32 {
        match self {
            Element::Float(x) => x.bits(),
            Element::Integer(x) => x.bits(),
        }
    }
}

/// The type of D.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Accumulators {
    F16,
    F32,
    S32 { saturate: bool },
}

/// Scales of an MMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScaleUse {
    pub(crate) ty: ScaleType,
    /// Elements to a scale.
    pub(crate) block: u32,
    /// The byte of a tensor-memory word where the scales of a row begin.
    pub(crate) id_a: u32,
    pub(crate) id_b: u32,
}

/// An instruction descriptor, taken apart and found legal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) kind: Kind,
    pub(crate) m: u32,
    pub(crate) n: u32,
    pub(crate) k: u32,
    pub(crate) a: Element,
    pub(crate) b: Element,
    pub(crate) d: Accumulators,
    pub(crate) negate_a: bool,
    pub(crate) negate_b: bool,
    pub(crate) a_mn_major: bool,
    pub(crate) b_mn_major: bool,
    pub(crate) scales: Option<ScaleUse>,
    /// The largest column shift with which `.ws` may use B again.
    pub(crate) max_shift: u32,
}

impl Instruction {
    /// Takes a descriptor apart; an error says what is wrong with it.
    pub(crate) fn decode(d: u32, form: Form) -> Result<Instruction, String> {
        let Form { kind, .. } = form;
        let field = |at: u32, bits: u32| d >> at & ((1 << bits) - 1);
        let zero = |at: u32, bits: u32| {
            if field(at, bits) == 0 {
                return Ok(());
            }
            let which =
                if bits == 1 { format!("bit {at}") } else { format!("bits {at} to {}", at + bits - 1) };
            Err(format!("{which} of instruction descriptor {d:#010x} must be zero for {kind}"))
        };
        let named = |what: &str| format!("instruction descriptor {d:#010x}: {what}");
        let refuse = |what: &str| Err(named(what));
        if field(2, 1) == 1 {
            return refuse(
                "A is sparse (bit 2), which takes tcgen05.mma.sp; the simulator does not support it",
            );
        }
        zero(6, 1)?;
        let types = (|| {
            Some((element(kind, field(7, 3))?, element(kind, field(10, if kind.is_fp4() { 2 } else { 3 }))?))
        })();
        let Some((a, b)) = types else {
            return refuse(&format!(
                "types {} and {} of A and B do not exist for {kind}",
                field(7, 3),
                field(10, 3)
            ));
        };
        let n = field(17, 6) * 8;
        let (m, max_shift) = if kind.is_scaled() {
            zero(0, 2)?;
            zero(3, 1)?;
            zero(24, 3)?;
            if kind.is_fp4() {
                zero(12, 1)?;
                zero(15, 2)?;
                if field(31, 1) == 1 {
                    return refuse("K = 96 (bit 31, sm_103a); the simulator does not support it");
                }
            } else {
                zero(31, 1)?;
            }
            (field(27, 2) * 128, 0)
        } else {
            zero(23, 1)?;
            zero(29, 1)?;
            if !form.stationary {
                zero(30, 2)?;
            }
            (field(24, 5) * 16, [0, 8, 16, 32][field(30, 2) as usize])
        };
        let d_type = match (kind, field(4, 2)) {
            (k, _) if k.is_scaled() => Accumulators::F32,
            (Kind::I8, 2) => Accumulators::S32 { saturate: field(3, 1) == 1 },
            (Kind::F16 | Kind::Tf32 | Kind::F8f6f4, 1) => Accumulators::F32,
            (Kind::F16 | Kind::F8f6f4, 0) => Accumulators::F16,
            (_, ty) => return refuse(&format!("type {ty} of D does not exist for {kind}")),
        };
        let bf16 = [a, b].contains(&Element::Float(Input::Bf16));
        if d_type == Accumulators::F16 && bf16 {
            return refuse("bf16 inputs take f32 accumulators");
        }
        if kind != Kind::I8 && !kind.is_scaled() {
            zero(3, 1)?;
        }
        if kind == Kind::I8 && field(13, 2) != 0 {
            return refuse("kind::i8 does not negate");
        }
        let instruction = Instruction {
            kind,
            m,
            n,
            k: kind.k(),
            a,
            b,
            d: d_type,
            negate_a: field(13, 1) == 1,
            negate_b: field(14, 1) == 1,
            a_mn_major: field(15, 1) == 1,
            b_mn_major: field(16, 1) == 1,
            scales: scales(form, field(23, 1) == 1, field(29, 2), field(4, 2)).map_err(|e| named(&e))?,
            max_shift,
        };
        instruction.check_shape(form).map_err(|e| named(&e))?;
        Ok(instruction)
    }

    fn check_shape(&self, form: Form) -> Result<(), String> {
        let Form { kind, pair, stationary, .. } = form;
        let rows: &[u32] = match (stationary, pair, kind.is_scaled()) {
            (true, ..) => &[32, 64, 128],
            (false, false, false) => &[64, 128],
            (false, false, true) => &[128],
            (false, true, _) => &[128, 256],
        };
        let group = if pair { "cta_group::2" } else { "cta_group::1" };
        if !rows.contains(&self.m) {
            return Err(format!("M is {}; {kind} with {group} takes {rows:?}", self.m));
        }
        let n = self.n;
        // Eight-bit elements whose contiguous dimension is N come in whole pieces of 16.
        let pieces = self.b_mn_major && self.b.bits() <= 8;
        let (legal, takes) = match (stationary, kind, pair) {
            (true, ..) => ([64, 128, 256].contains(&n), "64, 128 or 256"),
            (_, Kind::I8, false) => (n % 16 == 0 || n <= 24 && n % 8 == 0, "8, 24, or a multiple of 16"),
            (_, Kind::I8, true) => (n % 32 == 0, "a multiple of 32"),
            (_, _, true) if pieces => (n % 32 == 0, "a multiple of 32 for an N-major B of bytes"),
            (_, _, false) if pieces => (n % 16 == 0, "a multiple of 16 for an N-major B of bytes"),
            (_, _, true) => (n % 16 == 0, "a multiple of 16"),
            _ => (n % 8 == 0, "a multiple of 8"),
        };
        if !legal || n == 0 || n > 256 || pieces && n % 16 != 0 {
            return Err(format!("N is {n}; {kind} with {group} takes {takes}, up to 256"));
        }
        Ok(())
    }

    /// How the elements of A or B lie in shared memory.
    pub(crate) fn packing(&self, element: Element) -> Packing {
        match element.bits() {
            4 if self.kind.is_fp4() => Packing::Packed4,
            bits @ (4 | 6) => Packing::Padded(bits),
            bits => Packing::Whole(bits),
        }
    }

    /// Refuses a swizzle that does not exist for the major and type of an operand.
    pub(crate) fn check_swizzle(
        &self,
        name: &str,
        element: Element,
        mn: bool,
        swizzle: MatrixSwizzle,
    ) -> Result<(), String> {
        let atom32 = swizzle == MatrixSwizzle::B128Atom32;
        match (mn, element.bits()) {
            (true, 32) if !atom32 => Err(format!(
                "an MN-major {name} of 32-bit elements takes the 128-byte swizzle with 32-byte atomicity"
            )),
            (true, 4..=16) if atom32 => {
                Err(format!("an MN-major {name} takes the 32-byte atomicity only with 32-bit elements"))
            }
            _ => Ok(()),
        }
    }
}

/// The element type of a code.
fn element(kind: Kind, code: u32) -> Option<Element> {
    Some(match (kind, code) {
        (Kind::F16, 0) => Element::Float(Input::F16),
        (Kind::F16, 1) => Element::Float(Input::Bf16),
        (Kind::Tf32, 2) => Element::Float(Input::Tf32),
        (Kind::I8, 0) => Element::Integer(IntInput::U8),
        (Kind::I8, 1) => Element::Integer(IntInput::S8),
        (Kind::F8f6f4 | Kind::Mxf8f6f4, 0) => Element::Float(Input::E4m3),
        (Kind::F8f6f4 | Kind::Mxf8f6f4, 1) => Element::Float(Input::E5m2),
        (Kind::F8f6f4 | Kind::Mxf8f6f4, 3) => Element::Float(Input::E2m3),
        (Kind::F8f6f4 | Kind::Mxf8f6f4, 4) => Element::Float(Input::E3m2),
        (Kind::F8f6f4 | Kind::Mxf8f6f4, 5) => Element::Float(Input::E2m1),
        (Kind::Mxf4 | Kind::Mxf4nvf4, 1) => Element::Float(Input::E2m1),
        _ => return None,
    })
}

/// Scales of a kind: a row has 1, 2 or 4 of them, which begin at byte `id` of a word.
fn scales(form: Form, ue8m0: bool, id_a: u32, id_b: u32) -> Result<Option<ScaleUse>, String> {
    let Form { kind, block, .. } = form;
    if !kind.is_scaled() {
        return Ok(None);
    }
    let ty = match (kind, ue8m0) {
        (_, true) => ScaleType::Ue8m0,
        (Kind::Mxf4nvf4, false) if block == 16 => ScaleType::Ue4m3,
        (Kind::Mxf4nvf4, false) => return Err("UE4M3 scales (bit 23) take blocks of 16".to_owned()),
        _ => return Err(format!("{kind} takes UE8M0 scales: bit 23 must be one")),
    };
    let count = kind.k() / block;
    for (name, id) in [("A", id_a), ("B", id_b)] {
        if id % count != 0 {
            let legal = if count == 2 { "0 or 2" } else { "0" };
            return Err(format!("scale id {id} of {name}: with {count} scales to a row it is {legal}"));
        }
    }
    Ok(Some(ScaleUse { ty, block, id_a, id_b }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(kind: Kind) -> Form {
        let block = match kind {
            Kind::Mxf4nvf4 => 16,
            Kind::Mxf8f6f4 | Kind::Mxf4 => 32,
            _ => 0,
        };
        Form { kind, pair: false, stationary: false, block }
    }

    fn plain(m: u32, n: u32) -> u32 {
        (n / 8) << 17 | (m / 16) << 24
    }

    fn scaled(m: u32, n: u32) -> u32 {
        (n / 8) << 17 | (m / 128) << 27 | 1 << 23
    }

    fn says(d: u32, form: Form) -> String {
        Instruction::decode(d, form).expect_err(&format!("{d:#010x} {form:?}"))
    }

    #[test]
    fn fields_of_the_first_table() {
        let d = plain(128, 256) | 1 << 4 | 1 << 7 | 1 << 10 | 1 << 14 | 1 << 15;
        let i = Instruction::decode(d, form(Kind::F16)).unwrap();
        assert_eq!((i.m, i.n, i.k), (128, 256, 16));
        assert_eq!((i.a, i.b), (Element::Float(Input::Bf16), Element::Float(Input::Bf16)));
        assert_eq!(i.d, Accumulators::F32);
        assert_eq!((i.negate_a, i.negate_b, i.a_mn_major, i.b_mn_major), (false, true, true, false));
        let i = Instruction::decode(plain(64, 8), form(Kind::F16)).unwrap();
        assert_eq!((i.m, i.n, i.d), (64, 8, Accumulators::F16));
        let i = Instruction::decode(plain(128, 16) | 1 << 4 | 2 << 7 | 2 << 10, form(Kind::Tf32)).unwrap();
        assert_eq!((i.k, i.a), (8, Element::Float(Input::Tf32)));
        let i = Instruction::decode(plain(128, 32) | 1 << 3 | 2 << 4 | 1 << 7, form(Kind::I8)).unwrap();
        assert_eq!(i.d, Accumulators::S32 { saturate: true });
        assert_eq!((i.a, i.b), (Element::Integer(IntInput::S8), Element::Integer(IntInput::U8)));
        for (code, input) in
            [(0, Input::E4m3), (1, Input::E5m2), (3, Input::E2m3), (4, Input::E3m2), (5, Input::E2m1)]
        {
            let i = Instruction::decode(plain(128, 64) | 1 << 4 | code << 10, form(Kind::F8f6f4)).unwrap();
            assert_eq!((i.k, i.b), (32, Element::Float(input)));
        }
        let stationary = Form { stationary: true, ..form(Kind::F16) };
        let i = Instruction::decode(plain(32, 64) | 1 << 4 | 2 << 30, stationary).unwrap();
        assert_eq!((i.m, i.max_shift), (32, 16));
    }

    #[test]
    fn fields_of_the_scaled_tables() {
        let d = scaled(128, 248) | 3 << 29 | 2 << 4 | 5 << 7 | 1 << 10;
        let i = Instruction::decode(d, form(Kind::Mxf8f6f4)).unwrap();
        assert_eq!((i.m, i.n, i.k), (128, 248, 32));
        assert_eq!((i.a, i.b), (Element::Float(Input::E2m1), Element::Float(Input::E5m2)));
        assert_eq!(i.scales, Some(ScaleUse { ty: ScaleType::Ue8m0, block: 32, id_a: 3, id_b: 2 }));
        let d = scaled(128, 128) | 1 << 7 | 1 << 10 | 2 << 29;
        let i = Instruction::decode(d, form(Kind::Mxf4)).unwrap();
        assert_eq!((i.k, i.scales.unwrap().id_a), (64, 2));
        let d = scaled(128, 128) & !(1 << 23) | 1 << 7 | 1 << 10;
        let i = Instruction::decode(d, form(Kind::Mxf4nvf4)).unwrap();
        assert_eq!(i.scales.unwrap().ty, ScaleType::Ue4m3);
        let pair = Form { pair: true, ..form(Kind::Mxf8f6f4) };
        assert_eq!(Instruction::decode(scaled(256, 256), pair).unwrap().m, 256);
    }

    #[test]
    fn reserved_bits_are_zero() {
        let f16 = plain(128, 64) | 1 << 4;
        for bit in [6, 23, 29, 30, 31, 3] {
            assert!(says(f16 | 1 << bit, form(Kind::F16)).contains("must be zero"), "bit {bit}");
        }
        let mx = scaled(128, 64);
        for bit in [0, 1, 3, 6, 24, 25, 26, 31] {
            assert!(says(mx | 1 << bit, form(Kind::Mxf8f6f4)).contains("must be zero"), "bit {bit}");
        }
        let fp4 = scaled(128, 64) | 1 << 7 | 1 << 10;
        for bit in [0, 3, 6, 12, 15, 16, 24] {
            assert!(says(fp4 | 1 << bit, form(Kind::Mxf4)).contains("must be zero"), "bit {bit}");
        }
    }

    #[test]
    fn what_is_not_modelled_is_named() {
        assert!(says(plain(128, 64) | 1 << 4 | 1 << 2, form(Kind::F16)).contains("tcgen05.mma.sp"));
        assert!(says(scaled(128, 64) | 1 << 7 | 1 << 10 | 1 << 31, form(Kind::Mxf4)).contains("K = 96"));
    }

    #[test]
    fn types_belong_to_their_kinds() {
        assert!(says(plain(128, 64) | 1 << 4 | 2 << 7, form(Kind::F16)).contains("types 2 and 0"));
        assert!(says(plain(128, 64) | 2 << 4, form(Kind::F16)).contains("type 2 of D"));
        assert!(says(plain(128, 64) | 2 << 7 | 2 << 10, form(Kind::Tf32)).contains("type 0 of D"));
        assert!(says(plain(128, 64) | 1 << 7 | 1 << 10, form(Kind::F16)).contains("bf16 inputs"));
        assert!(says(plain(128, 64) | 1 << 4 | 2 << 7, form(Kind::F8f6f4)).contains("types 2 and 0"));
        assert!(says(plain(128, 64) | 1 << 4, form(Kind::I8)).contains("type 1 of D"));
        assert!(says(plain(128, 64) | 2 << 4 | 1 << 13, form(Kind::I8)).contains("negate"));
        assert!(says(scaled(128, 64), form(Kind::Mxf4)).contains("types 0 and 0"));
        let fp4 = scaled(128, 64) | 1 << 7 | 1 << 10;
        assert!(says(fp4 & !(1 << 23), form(Kind::Mxf4)).contains("bit 23"));
        assert!(says(scaled(128, 64) & !(1 << 23), form(Kind::Mxf8f6f4)).contains("bit 23"));
        let nvf4_32 = Form { block: 32, ..form(Kind::Mxf4nvf4) };
        assert!(says(fp4 & !(1 << 23), nvf4_32).contains("blocks of 16"));
        assert!(says(fp4 | 1 << 29, form(Kind::Mxf4)).contains("0 or 2"));
        assert!(says(fp4 | 2 << 4, form(Kind::Mxf4nvf4)).contains("it is 0"));
    }

    /// The shapes of the manual's table, by kind and group: legal M and N, and no others.
    #[test]
    fn shapes_are_those_of_the_manual() {
        let all = |kind: Kind, pair: bool, stationary: bool, base: u32| -> (Vec<u32>, Vec<u32>) {
            let form = Form { pair, stationary, ..form(kind) };
            let (mut ms, mut ns) = (Vec::new(), Vec::new());
            for (m, n) in (0..=256).step_by(16).flat_map(|m| (0..=504).step_by(8).map(move |n| (m, n))) {
                if kind.is_scaled() && m % 128 != 0 {
                    continue;
                }
                let d = base | if kind.is_scaled() { scaled(m, n) } else { plain(m, n) };
                if Instruction::decode(d, form).is_ok() {
                    ms.push(m);
                    ns.push(n);
                }
            }
            ms.dedup();
            ns.sort_unstable();
            ns.dedup();
            (ms, ns)
        };
        let steps = |step: usize| -> Vec<u32> { (step as u32..=256).step_by(step).collect() };
        let (f32_out, tf32) = (1 << 4, 1 << 4 | 2 << 7 | 2 << 10);
        assert_eq!(all(Kind::F16, false, false, f32_out), (vec![64, 128], steps(8)));
        assert_eq!(all(Kind::F16, true, false, f32_out), (vec![128, 256], steps(16)));
        assert_eq!(all(Kind::F16, false, true, f32_out), (vec![32, 64, 128], vec![64, 128, 256]));
        assert_eq!(all(Kind::Tf32, true, false, tf32), (vec![128, 256], steps(16)));
        assert_eq!(all(Kind::F8f6f4, false, false, f32_out), (vec![64, 128], steps(8)));
        assert_eq!(all(Kind::F8f6f4, false, false, f32_out | 1 << 16), (vec![64, 128], steps(16)));
        assert_eq!(all(Kind::F8f6f4, true, false, f32_out | 1 << 16), (vec![128, 256], steps(32)));
        let i8_steps: Vec<u32> = [8, 16, 24, 32].into_iter().chain((48..=256).step_by(16)).collect();
        assert_eq!(all(Kind::I8, false, false, 2 << 4), (vec![64, 128], i8_steps));
        assert_eq!(all(Kind::I8, true, false, 2 << 4), (vec![128, 256], steps(32)));
        assert_eq!(all(Kind::Mxf8f6f4, false, false, 0), (vec![128], steps(8)));
        assert_eq!(all(Kind::Mxf8f6f4, true, false, 0), (vec![128, 256], steps(16)));
        let e2m1 = 1 << 7 | 1 << 10;
        assert_eq!(all(Kind::Mxf4, false, false, e2m1), (vec![128], steps(8)));
        assert_eq!(all(Kind::Mxf4nvf4, true, false, e2m1), (vec![128, 256], steps(16)));
    }

    #[test]
    fn swizzles_by_type_and_major() {
        let f16 = Instruction::decode(plain(128, 64) | 1 << 4, form(Kind::F16)).unwrap();
        let tf32 = Instruction::decode(plain(128, 64) | 1 << 4 | 2 << 7 | 2 << 10, form(Kind::Tf32)).unwrap();
        use MatrixSwizzle::*;
        for (swizzle, half, word) in [(None, true, false), (B128, true, false), (B128Atom32, false, true)] {
            assert_eq!(f16.check_swizzle("A", f16.a, true, swizzle).is_ok(), half);
            assert_eq!(tf32.check_swizzle("A", tf32.a, true, swizzle).is_ok(), word);
            assert!(f16.check_swizzle("A", f16.a, false, swizzle).is_ok());
            assert!(tf32.check_swizzle("A", tf32.a, false, swizzle).is_ok());
        }
    }
}
