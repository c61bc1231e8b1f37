//! Statements of a body: declarations, labels, instructions and their operands.

use super::MAX_DEPTH;
use crate::text::ast::*;
use crate::text::scan::{Parser, Result};

/// Most registers that one `name<count>` may declare.
const MAX_REGISTERS: u32 = 1 << 20;

impl Parser<'_> {
    pub(super) fn body(&mut self) -> Result<Vec<Statement>> {
        let mut out = Vec::new();
        let mut depth = 0;
        loop {
            self.skip_space();
            if self.at >= self.text.len() {
                return self.error("the body is not closed");
            }
            match self.peek() {
                b';' => self.bump(),
                b'{' => {
                    self.bump();
                    depth += 1;
                    if depth > MAX_DEPTH {
                        return self.error("blocks are nested too deeply");
                    }
                    out.push(Statement::Open);
                }
                b'}' => {
                    self.bump();
                    if depth == 0 {
                        return Ok(out);
                    }
                    depth -= 1;
                    out.push(Statement::Close);
                }
                b'.' => self.body_directive(&mut out)?,
                b'@' => {
                    self.bump();
                    let negate = self.eat(b'!');
                    let name = self.name()?;
                    self.skip_space();
                    let i = self.instruction(Some((name, negate)))?;
                    out.push(Statement::Instruction(i));
                }
                c if Self::is_name_start(c) => self.label_or_instruction(&mut out)?,
                _ => return self.error(format!("expected a statement, found {}", self.found())),
            }
        }
    }

    fn label_or_instruction(&mut self, out: &mut Vec<Statement>) -> Result<()> {
        let start = (self.at, self.line, self.line_start);
        let at = self.position();
        let name = self.name()?;
        self.skip_space();
        if self.peek() == b':' && self.peek_at(1) != b':' {
            self.bump();
            self.skip_space();
            if self.text[self.at..].starts_with(b".branchtargets") {
                self.directive()?;
                let mut targets = vec![self.name()?];
                while self.eat(b',') {
                    targets.push(self.name()?);
                }
                self.expect(b';')?;
                out.push(Statement::BranchTargets(name, targets));
            } else if self.text[self.at..].starts_with(b".callprototype")
                || self.text[self.at..].starts_with(b".calltargets")
            {
                self.skip_to_semicolon()?;
                out.push(Statement::CallPrototype(name));
            } else {
                out.push(Statement::Label(name, at));
            }
            return Ok(());
        }
        (self.at, self.line, self.line_start) = start;
        let i = self.instruction(None)?;
        out.push(Statement::Instruction(i));
        Ok(())
    }

    fn body_directive(&mut self, out: &mut Vec<Statement>) -> Result<()> {
        let start = (self.at, self.line, self.line_start);
        let at = self.position();
        match self.directive()?.as_str() {
            "reg" => {
                let ty = self.directive()?;
                if ty == "v2" || ty == "v4" {
                    return self.error("vector registers are not supported");
                }
                loop {
                    let name = self.name()?;
                    let count = if self.eat(b'<') {
                        let n = self.unsigned32()?;
                        if n > MAX_REGISTERS {
                            return self.error("too many registers in one declaration");
                        }
                        self.expect(b'>')?;
                        Some(n)
                    } else {
                        None
                    };
                    out.push(Statement::Register { ty: ty.clone(), name, count, at });
                    if !self.eat(b',') {
                        break;
                    }
                }
                self.expect(b';')
            }
            "shared" | "local" | "param" | "shared::cta" => {
                (self.at, self.line, self.line_start) = start;
                let mut list = Vec::new();
                self.variables(false, &mut list)?;
                out.extend(list.into_iter().map(Statement::Variable));
                Ok(())
            }
            "loc" => {
                let file = self.unsigned32()?;
                let line = self.unsigned32()?;
                self.unsigned32()?;
                if self.eat(b',') {
                    // `function_name label {+imm}, inlined_at file line column`
                    let here = self.line;
                    while self.at < self.text.len() && self.line == here {
                        self.bump();
                    }
                }
                out.push(Statement::Loc(file, line));
                Ok(())
            }
            "pragma" => self.skip_to_semicolon(),
            other => self.error(format!("`.{other}` is not supported in a body")),
        }
    }

    fn instruction(&mut self, guard: Option<(String, bool)>) -> Result<Instruction> {
        self.skip_space();
        let at = self.position();
        if !self.peek().is_ascii_alphabetic() {
            return self.error(format!("expected an instruction, found {}", self.found()));
        }
        let mut opcode = vec![self.word()];
        while self.peek() == b'.' {
            self.bump();
            opcode.push(self.modifier()?);
        }
        let mut operands = Vec::new();
        self.skip_space();
        if self.peek() != b';' {
            loop {
                operands.push(self.operand(0)?);
                if !self.eat(b',') {
                    break;
                }
            }
        }
        self.expect(b';')?;
        Ok(Instruction { guard, opcode, operands, at })
    }

    fn operand(&mut self, depth: usize) -> Result<Operand> {
        if depth > MAX_DEPTH {
            return self.error("operands are nested too deeply");
        }
        self.skip_space();
        let first = match self.peek() {
            b'{' => {
                self.bump();
                Operand::Vector(self.operands_until(b'}', depth)?)
            }
            b'(' => {
                self.bump();
                Operand::List(self.operands_until(b')', depth)?)
            }
            b'[' => {
                self.bump();
                return self.address(depth);
            }
            b'!' => {
                self.bump();
                Operand::Not(Box::new(self.operand(depth + 1)?))
            }
            b'-' => {
                self.bump();
                match self.number()? {
                    Operand::Int(v) => Operand::Int(-v),
                    Operand::Float(v) => Operand::Float(-v),
                    Operand::F32Bits(b) => Operand::F32Bits(b ^ (1 << 31)),
                    Operand::F64Bits(b) => Operand::F64Bits(b ^ (1 << 63)),
                    other => other,
                }
            }
            b'~' => {
                self.bump();
                match self.number()? {
                    Operand::Int(v) => Operand::Int(i128::from(!(v as i64))),
                    _ => return self.error("`~` takes an integer"),
                }
            }
            c if c.is_ascii_digit() => self.number()?,
            b'_' if !Self::is_name(self.peek_at(1)) => {
                self.bump();
                Operand::Sink
            }
            c if Self::is_name_start(c) => {
                let mut name = self.name()?;
                while self.peek() == b'.' && Self::is_name(self.peek_at(1)) {
                    self.bump();
                    name.push('.');
                    name.push_str(&self.word());
                }
                self.skip_space();
                if matches!(self.peek(), b'+' | b'-') {
                    let minus = self.peek() == b'-';
                    self.bump();
                    let v = self.signed()?;
                    Operand::Offset(name, if minus { v.wrapping_neg() } else { v })
                } else {
                    Operand::Name(name)
                }
            }
            _ => return self.error(format!("expected an operand, found {}", self.found())),
        };
        if self.eat(b'|') {
            let second = self.operand(depth + 1)?;
            return Ok(Operand::Pair(Box::new(first), Box::new(second)));
        }
        Ok(first)
    }

    fn operands_until(&mut self, close: u8, depth: usize) -> Result<Vec<Operand>> {
        let mut list = Vec::new();
        if self.eat(close) {
            return Ok(list);
        }
        loop {
            list.push(self.operand(depth + 1)?);
            if !self.eat(b',') {
                break;
            }
        }
        self.expect(close)?;
        Ok(list)
    }

    fn address(&mut self, depth: usize) -> Result<Operand> {
        let (base, offset) = match self.operand(depth + 1)? {
            Operand::Offset(name, offset) => (Operand::Name(name), offset),
            other => (other, 0),
        };
        let coordinates = if self.eat(b',') { Some(Box::new(self.operand(depth + 1)?)) } else { None };
        if self.eat(b',') {
            return self.error("im2col addresses are not supported");
        }
        self.expect(b']')?;
        Ok(Operand::Address(Box::new(base), offset, coordinates))
    }
}
