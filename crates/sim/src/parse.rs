//! From PTX text to the syntax tree.
//!
//! A hand-written recursive descent over bytes (see [`crate::scan`]). Nesting is bounded, so that no input
//! overflows the stack.

mod body;

use crate::ast::*;
use crate::scan::{Parser, Result};

/// Deepest nesting of `{ }` and of operands.
const MAX_DEPTH: usize = 64;

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
}
