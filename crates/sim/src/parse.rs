//! From PTX text to the syntax tree.
//!
//! A hand-written recursive descent over bytes (see [`crate::scan`]). Nesting is bounded, so that no input
//! overflows the stack.

use crate::ast::*;
use crate::scan::{Parser, Result};

/// Deepest nesting of `{ }` and of operands.
const MAX_DEPTH: usize = 64;
/// Most registers that one `name<count>` may declare.
const MAX_REGISTERS: u32 = 1 << 20;

impl Parser<'_> {
    // ---------------------------------------------------------------- module scope

    pub(crate) fn module(mut self) -> Result<ModuleAst> {
        let mut module = ModuleAst::default();
        let mut seen_version = false;
        while !self.at_end() {
            if self.eat(b';') {
                continue;
            }
            let start = (self.at, self.line, self.line_start);
            let directive = self.directive()?;
            match directive.as_str() {
                "version" => {
                    seen_version = true;
                    module.version = match self.number()? {
                        Operand::Float(v) => (v as u32, (v.fract() * 10.0).round() as u32),
                        Operand::Int(v) => (v as u32, 0),
                        _ => return self.error("expected a version such as 8.3"),
                    };
                }
                "target" => {
                    module.target = self.name()?;
                    while self.eat(b',') {
                        self.name()?;
                    }
                }
                "address_size" => {
                    if self.unsigned32()? != 64 {
                        return self.error("only `.address_size 64` is supported");
                    }
                }
                "file" => {
                    let number = self.unsigned32()?;
                    let name = self.string()?;
                    if self.eat(b',') {
                        self.unsigned32()?;
                        self.expect(b',')?;
                        self.unsigned32()?;
                    }
                    module.files.insert(number, name);
                }
                "section" => self.skip_section()?,
                "pragma" | "alias" => self.skip_to_semicolon()?,
                _ => {
                    (self.at, self.line, self.line_start) = start;
                    self.declaration(&mut module)?;
                }
            }
        }
        if !seen_version {
            return self.error("the text has no `.version`: it is not a PTX module");
        }
        Ok(module)
    }

    fn skip_to_semicolon(&mut self) -> Result<()> {
        while self.at < self.text.len() && self.peek() != b';' {
            self.bump();
        }
        self.expect(b';')
    }

    fn skip_section(&mut self) -> Result<()> {
        while self.at < self.text.len() && self.peek() != b'{' {
            self.bump();
        }
        self.expect(b'{')?;
        let mut depth = 1;
        while depth > 0 {
            match self.peek() {
                b'{' => depth += 1,
                b'}' => depth -= 1,
                0 if self.at >= self.text.len() => return self.error("the section is not closed"),
                _ => {}
            }
            self.bump();
        }
        Ok(())
    }

    fn declaration(&mut self, module: &mut ModuleAst) -> Result<()> {
        let mut external = false;
        loop {
            let before = (self.at, self.line, self.line_start);
            let at = self.position();
            match self.directive()?.as_str() {
                "visible" | "weak" | "common" => {}
                "extern" => external = true,
                "entry" => {
                    let f = self.function(true, at)?;
                    module.functions.push(f);
                    return Ok(());
                }
                "func" => {
                    let f = self.function(false, at)?;
                    module.functions.push(f);
                    return Ok(());
                }
                "global" | "shared" | "const" | "shared::cta" => {
                    (self.at, self.line, self.line_start) = before;
                    self.variables(external, &mut module.variables)?;
                    return Ok(());
                }
                other => {
                    (self.at, self.line, self.line_start) = before;
                    return self.error(format!("`.{other}` is not supported at module scope"));
                }
            }
        }
    }

    /// `.space {.align n} .type name{[n]} {= init} {, name ...};`
    fn variables(&mut self, external: bool, out: &mut Vec<Variable>) -> Result<()> {
        let space = match self.directive()?.as_str() {
            "global" => Space::Global,
            "shared" | "shared::cta" => Space::Shared,
            "const" => Space::Const,
            "local" => Space::Local,
            "param" => Space::Param,
            other => return self.error(format!("`.{other}` is not a state space")),
        };
        let (align, element) = self.align_and_type()?;
        loop {
            let mut v = self.declarator(space, align, element)?;
            v.external = external;
            if self.eat(b'=') {
                v.init = Some(self.initializer(&v)?);
            }
            out.push(v);
            if !self.eat(b',') {
                break;
            }
        }
        self.expect(b';')
    }

    /// The alignment (default: the element size) and the element size.
    fn align_and_type(&mut self) -> Result<(u64, u64)> {
        let mut align = 0;
        let mut width = 1;
        loop {
            match self.directive()?.as_str() {
                "align" => {
                    align = u64::from(self.unsigned32()?);
                    if !align.is_power_of_two() || align > 1 << 20 {
                        return self.error("an alignment is a power of two");
                    }
                }
                "v2" => width = 2,
                "v4" => width = 4,
                "ptr" | "attribute" | "managed" => return self.error("the attribute is not supported here"),
                ty => {
                    let Some(bytes) = crate::types::type_bytes(ty) else {
                        return self.error(format!("`.{ty}` is not a type"));
                    };
                    let element = bytes * width;
                    return Ok((if align == 0 { element } else { align }, element));
                }
            }
        }
    }

    fn declarator(&mut self, space: Space, align: u64, element: u64) -> Result<Variable> {
        self.skip_space();
        let at = self.position();
        let name = self.name()?;
        let mut count = 1u64;
        while self.eat(b'[') {
            if self.eat(b']') {
                count = 0;
                continue;
            }
            let n = self.signed()?;
            self.expect(b']')?;
            if !(0..=1 << 32).contains(&n) {
                return self.error("the array is too large");
            }
            count = count.saturating_mul(n as u64);
        }
        Ok(Variable { space, name, align, element, count, external: false, init: None, at })
    }

    fn initializer(&mut self, v: &Variable) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let braces = self.eat(b'{');
        let mut depth = usize::from(braces);
        loop {
            while self.eat(b'{') {
                depth += 1;
                if depth > MAX_DEPTH {
                    return self.error("the initializer is nested too deeply");
                }
            }
            self.skip_space();
            let negative = self.eat(b'-');
            if Self::is_name_start(self.peek()) {
                return self.error("a symbol as an initial value is not supported");
            }
            let value = match self.number()? {
                Operand::Int(i) => (if negative { -i } else { i }) as u64,
                Operand::F32Bits(b) => u64::from(b),
                Operand::F64Bits(b) => b,
                Operand::Float(f) => {
                    let f = if negative { -f } else { f };
                    if v.element == 8 { f.to_bits() } else { u64::from((f as f32).to_bits()) }
                }
                _ => return self.error("expected a constant"),
            };
            bytes.extend_from_slice(&value.to_le_bytes()[..(v.element as usize).min(8)]);
            while depth > 0 && self.eat(b'}') {
                depth -= 1;
            }
            if depth == 0 || !self.eat(b',') {
                break;
            }
        }
        if depth != 0 {
            return self.error("the initializer is not closed");
        }
        if v.count != 0 && bytes.len() as u64 > v.bytes() {
            return self.error("more initial values than elements");
        }
        Ok(bytes)
    }

    // ---------------------------------------------------------------- functions

    fn function(&mut self, entry: bool, at: Position) -> Result<Function> {
        let mut returns = Vec::new();
        self.skip_space();
        if !entry && self.peek() == b'(' {
            returns = self.formals()?;
        }
        let name = self.name()?;
        let mut f = Function {
            name,
            entry,
            params: Vec::new(),
            returns,
            threads: None,
            cluster: None,
            body: None,
            at,
        };
        self.skip_space();
        if self.peek() == b'(' {
            f.params = self.formals()?;
        }
        loop {
            self.skip_space();
            match self.peek() {
                b'.' => {
                    let d = self.directive()?;
                    match d.as_str() {
                        "reqntid" | "maxntid" => f.threads = Some((self.triple()?, d == "reqntid")),
                        "reqnctapercluster" => f.cluster = Some(self.triple()?),
                        "minnctapersm" | "maxnctapersm" | "maxnreg" | "maxclusterrank" => {
                            self.unsigned32()?;
                        }
                        "explicitcluster" | "noreturn" | "blocksareclusters" => {}
                        "pragma" => self.skip_to_semicolon()?,
                        other => return self.error(format!("`.{other}` is not supported on a function")),
                    }
                }
                b';' => {
                    self.bump();
                    return Ok(f);
                }
                b'{' => {
                    self.bump();
                    f.body = Some(self.body()?);
                    return Ok(f);
                }
                _ => return self.error(format!("expected a body or `;`, found {}", self.found())),
            }
        }
    }

    fn triple(&mut self) -> Result<[u32; 3]> {
        let mut t = [1; 3];
        t[0] = self.unsigned32()?;
        for slot in &mut t[1..] {
            if self.eat(b',') {
                *slot = self.unsigned32()?;
            }
        }
        Ok(t)
    }

    fn formals(&mut self) -> Result<Vec<Formal>> {
        self.expect(b'(')?;
        let mut list = Vec::new();
        if self.eat(b')') {
            return Ok(list);
        }
        loop {
            match self.directive()?.as_str() {
                "param" => {
                    let mut align = 0;
                    let element = loop {
                        match self.directive()?.as_str() {
                            "align" => {
                                // The alignment of a pointee (`.ptr .align 16`) comes before the name and
                                // says nothing about the parameter itself.
                                align = u64::from(self.unsigned32()?);
                            }
                            ty => match crate::types::type_bytes(ty) {
                                Some(b) => break b,
                                None => return self.error(format!("`.{ty}` is not a type")),
                            },
                        }
                    };
                    self.skip_space();
                    while self.peek() == b'.' {
                        let attribute = self.directive()?;
                        if attribute == "align" {
                            self.unsigned32()?;
                        }
                        self.skip_space();
                    }
                    if align == 0 {
                        align = element;
                    }
                    if !align.is_power_of_two() || align > 4096 {
                        return self.error("an alignment is a power of two");
                    }
                    list.push(Formal::Param(self.declarator(Space::Param, align, element)?));
                }
                "reg" => {
                    let ty = self.directive()?;
                    list.push(Formal::Register(self.name()?, ty));
                }
                other => return self.error(format!("`.{other}` cannot declare a parameter")),
            }
            if !self.eat(b',') {
                break;
            }
        }
        self.expect(b')')?;
        Ok(list)
    }

    fn body(&mut self) -> Result<Vec<Statement>> {
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
            } else if self.text[self.at..].starts_with(b".callprototype") {
                self.skip_to_semicolon()?;
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
                let mut ty = self.directive()?;
                if ty == "v2" || ty == "v4" {
                    return self.error("vector registers are not supported");
                }
                if ty == "b128" {
                    ty = "b128".into();
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
