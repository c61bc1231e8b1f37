//! `tcgen05.mma`.

use super::super::Result;
use super::super::decoder::Decoder;
use super::super::isa::{Addr, Src};
use super::super::operands::{modifiers, operands};
use super::super::target::On;
use crate::text::ast::Operand;
use crate::text::types::Ty;
use crate::units::tcgen05::instruction::{Form, Kind};
use crate::units::tcgen05::mma::{Collector, CollectorOp};

operands! {
    /// `tcgen05.mma`, decoded.
    pub(crate) struct TensorMma {
        pub(crate) form: Form,
        pub(crate) pair: bool,
        pub(crate) d: Addr,
        pub(crate) a: MmaA,
        pub(crate) b: Src,
        /// The instruction descriptor.
        pub(crate) instruction: Src,
        /// Scales of A and B.
        pub(crate) scales: Option<(Addr, Addr)>,
        /// Masks of lanes that are not written: four words for each CTA, or none.
        pub(crate) disabled: Box<[Src]>,
        /// D is added to the product.
        pub(crate) accumulate: Src,
        /// D is divided by this power of two before.
        pub(crate) input_shift: u32,
        /// The zero-column mask of `.ws`.
        pub(crate) zero_columns: Option<Src>,
        pub(crate) shift_a: bool,
        pub(crate) collector: Collector,
    }
}

operands! {
    /// A of an MMA.
    pub(crate) enum MmaA {
        /// In shared memory.
        Descriptor(Src),
        /// In tensor memory.
        Tensor(Addr),
    }
}

modifiers!(Form, Collector);

impl Decoder<'_, '_> {
    pub(super) fn tcgen05_mma(&mut self) -> Result<TensorMma> {
        if self.has("sp") {
            return self.error("the simulator does not support sparse matrices (`.sp`)");
        }
        let Some(kind) = self.inst.opcode.iter().find_map(|m| Kind::parse(m)) else {
            return self
                .error("`.kind::f16`, `tf32`, `f8f6f4`, `i8`, `mxf8f6f4`, `mxf4` or `mxf4nvf4` is missing");
        };
        let (stationary, pair, shift_a) = (self.has("ws"), self.cta_pair()?, self.has("ashift"));
        if stationary && (pair || kind.is_scaled()) {
            return self.error("`.ws` takes `.cta_group::1` and a kind without scales");
        }
        let block = self.scale_block(kind)?;
        let collector = self.collector(stationary)?;
        self.mma_modifiers()?;
        let a = match self.operand(1)? {
            Operand::Address(..) => MmaA::Tensor(self.addr(1)?),
            _ => MmaA::Descriptor(self.src(1, Ty::B64)?),
        };
        if shift_a {
            if stationary || kind.is_scaled() || matches!(a, MmaA::Descriptor(_)) {
                return self.error("`.ashift` takes A in tensor memory, and neither scales nor `.ws`");
            }
            if matches!(collector.op, CollectorOp::Fill | CollectorOp::Use) {
                return self.error("`.ashift` does not go with `.collector::a::fill` and `::use`");
            }
        }
        let form = Form { kind, pair, stationary, block };
        let (d, b, instruction) = (self.addr(0)?, self.src(2, Ty::B64)?, self.src(3, Ty::B32)?);
        let mut mma = TensorMma {
            form,
            pair,
            d,
            a,
            b,
            instruction,
            scales: None,
            disabled: Box::new([]),
            accumulate: Src::Imm(0),
            input_shift: 0,
            zero_columns: None,
            shift_a,
            collector,
        };
        let mut next = 4;
        if kind.is_scaled() {
            mma.scales = Some((self.addr(4)?, self.addr(5)?));
            next = 6;
        } else if let Operand::Vector(masks) = self.operand(4)? {
            let words = if pair { 8 } else { 4 };
            if stationary || masks.len() != words {
                return self.error(format!(
                    "expected {words} registers of lanes that are not written (none with `.ws`)"
                ));
            }
            mma.disabled = self.sources(4, Ty::B32)?;
            next = 5;
        }
        mma.accumulate = match self.operand(next)? {
            Operand::Int(v) => Src::Imm(u64::from(v != 0)),
            o => self.source(&o, Ty::Pred)?,
        };
        next += 1;
        if self.count() > next {
            if stationary {
                mma.zero_columns = Some(self.src(next, Ty::B64)?);
            } else {
                mma.input_shift = self.input_shift(kind, next)?;
            }
            next += 1;
        }
        self.expect_operands(next, next)?;
        Ok(mma)
    }

    /// `scale-input-d`.
    fn input_shift(&self, kind: Kind, operand: usize) -> Result<u32> {
        if !matches!(kind, Kind::F16 | Kind::Tf32) {
            return self.error("only `.kind::f16` and `.kind::tf32` scale the input D");
        }
        self.require("the scale of the input D", &[On::Family(100)])?;
        match self.constant(operand)? {
            shift @ 0..=15 => Ok(shift as u32),
            shift => {
                self.error(format!("the input D is divided by two to the power of 0 to 15, not {shift}"))
            }
        }
    }

    /// Elements to a scale; zero for kinds without scales.
    fn scale_block(&self, kind: Kind) -> Result<u32> {
        const NAMES: [(&str, u32); 5] = [
            ("scale_vec::1X", 1),
            ("scale_vec::2X", 2),
            ("scale_vec::4X", 4),
            ("block32", 32),
            ("block16", 16),
        ];
        let mut named = NAMES.iter().filter(|(name, _)| self.has(name));
        let (first, second) = (named.next(), named.next());
        if kind.is_scaled() != self.has("block_scale") {
            return self.error(if kind.is_scaled() {
                "`.block_scale` is missing"
            } else {
                "this kind has no scales"
            });
        }
        let block = match (kind, first, second) {
            (_, _, Some((name, _))) => return self.error(format!("`.{name}` is one too many")),
            (Kind::Mxf8f6f4, None | Some(("scale_vec::1X" | "block32", _)), _) => 32,
            (Kind::Mxf4, None | Some(("scale_vec::2X" | "block32", _)), _) => 32,
            (Kind::Mxf4nvf4, Some(("scale_vec::2X" | "block32", _)), _) => 32,
            (Kind::Mxf4nvf4, Some(("scale_vec::4X" | "block16", _)), _) => 16,
            (Kind::Mxf4nvf4, None, _) => {
                return self.error("`.kind::mxf4nvf4` needs `.block16` or `.block32`");
            }
            (kind, None, _) if !kind.is_scaled() => 0,
            (kind, Some((name, _)), _) => {
                return self.error(format!("`.{name}` does not exist for `.{kind}`"));
            }
            (_, None, _) => return self.unsupported(),
        };
        Ok(block)
    }

    /// The use of a collector buffer: that of A, or one of four of B with `.ws`.
    fn collector(&self, stationary: bool) -> Result<Collector> {
        let mut named = self.inst.opcode.iter().filter_map(|m| Some((m, m.strip_prefix("collector::")?)));
        let Some((text, usage)) = named.next() else {
            return Ok(Collector { buffer: usize::from(stationary), op: CollectorOp::Discard });
        };
        let legal: &[&str] = if stationary { &["b0", "b1", "b2", "b3"] } else { &["a"] };
        let found = usage.split_once("::").and_then(|(buffer, op)| {
            let at = legal.iter().position(|b| *b == buffer)? + usize::from(stationary);
            let op = match op {
                "fill" => CollectorOp::Fill,
                "use" => CollectorOp::Use,
                "lastuse" => CollectorOp::LastUse,
                "discard" => CollectorOp::Discard,
                _ => return None,
            };
            Some(Collector { buffer: at, op })
        });
        match (found, named.next()) {
            (Some(collector), None) => Ok(collector),
            _ => self.error(format!("`.{text}` does not belong to this instruction")),
        }
    }

    /// Refuses modifiers that no MMA has.
    fn mma_modifiers(&self) -> Result<()> {
        let known = |m: &str| {
            matches!(m, "ws" | "ashift" | "block_scale" | "cta_group::1" | "cta_group::2")
                || matches!(m, "scale_vec::1X" | "scale_vec::2X" | "scale_vec::4X" | "block16" | "block32")
                || Kind::parse(m).is_some()
                || m.starts_with("collector::")
        };
        match self.inst.opcode.iter().skip(2).find(|m| !known(m)) {
            Some(m) => self.error(format!("`.{m}` does not belong to this instruction")),
            None => Ok(()),
        }
    }
}
