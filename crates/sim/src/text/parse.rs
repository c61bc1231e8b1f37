//! From PTX text to the syntax tree.
//!
//! A hand-written recursive descent over bytes (see [`crate::text::scan`]). Nesting is bounded, so that no input
//! overflows the stack.

mod body;

use crate::error::Position;
use crate::target::{Target, latest_version, version_exists};
use crate::text::ast::*;
use crate::text::scan::{Parser, Result};
use crate::text::types::Ty;

/// Deepest nesting of `{ }` and of operands.
const MAX_DEPTH: usize = 64;
/// Largest variable in bytes: beyond what any GPU has.
const MAX_VARIABLE: u64 = 1 << 40;

/// A place in the text: byte, line and the byte that the line begins at.
type Place = (usize, u32, usize);

/// What stands before the name of a variable.
#[derive(Clone, Copy)]
struct Shape {
    align: u64,
    /// Bytes of an element, and of one component of it (they differ for `.v2` and `.v4`).
    element: u64,
    component: u64,
    ty: Ty,
}

impl Parser<'_> {
    // ---------------------------------------------------------------- module scope

    pub(crate) fn module(mut self) -> Result<ModuleAst> {
        self.expect_ascii()?;
        let version = self.version()?;
        let target = self.target(version)?;
        let mut module =
            ModuleAst { target, files: Default::default(), variables: Vec::new(), functions: Vec::new() };
        while !self.at_end() {
            if self.eat(b';') {
                continue;
            }
            let start = (self.at, self.line, self.line_start);
            let directive = self.directive()?;
            match directive.as_str() {
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
        Ok(module)
    }

    /// Moves back, to report what stands there.
    fn error_at<T>(&mut self, start: Place, message: impl Into<String>) -> Result<T> {
        (self.at, self.line, self.line_start) = start;
        self.error(message)
    }

    /// `.version 8.3`, a version that there is.
    fn version(&mut self) -> Result<(u32, u32)> {
        self.skip_space();
        let start = (self.at, self.line, self.line_start);
        if !self.directive().is_ok_and(|directive| directive == "version") {
            return self.error_at(start, "the text has no `.version`: it is not a PTX module");
        }
        self.skip_space();
        let start = (self.at, self.line, self.line_start);
        let major = self.digits();
        let minor = if self.peek() == b'.' {
            self.bump();
            self.digits()
        } else {
            None
        };
        let (Some(major), Some(minor)) = (major, minor) else {
            return self.error_at(start, "expected a version such as 8.3");
        };
        if !version_exists((major, minor)) {
            let (last, least) = latest_version();
            return self.error_at(
                start,
                format!("there is no PTX {major}.{minor}; the last version here is {last}.{least}"),
            );
        }
        Ok((major, minor))
    }

    /// `.target sm_90a`, a target that this version of PTX has, and options of the assembler.
    fn target(&mut self, version: (u32, u32)) -> Result<Target> {
        self.skip_space();
        let start = (self.at, self.line, self.line_start);
        if !self.directive().is_ok_and(|directive| directive == "target") {
            return self.error_at(start, "expected `.target` behind `.version`");
        }
        self.skip_space();
        let start = (self.at, self.line, self.line_start);
        let name = self.name()?;
        let target: Target = match name.parse() {
            Ok(target) => target,
            Err(message) => return self.error_at(start, message),
        };
        if let Some((major, minor)) = target.since().filter(|since| *since > version) {
            let (had, has) = version;
            let message = format!("PTX {had}.{has} does not have `{name}`, which came with {major}.{minor}");
            return self.error_at(start, message);
        }
        while self.eat(b',') {
            let option = self.name()?;
            if !matches!(option.as_str(), "debug" | "texmode_unified" | "texmode_independent") {
                return self.error(format!("`{option}` is not an option of a target"));
            }
        }
        Ok(target)
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
            self.skip_space();
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
        let shape = self.align_and_type()?;
        loop {
            let mut v = self.declarator(space, shape.align, shape.element)?;
            v.external = external;
            let start = (self.at, self.line, self.line_start);
            if self.eat(b'=') {
                if !matches!(space, Space::Global | Space::Const) {
                    return self.error_at(start, "only global and constant variables have initial values");
                }
                self.initializer(&mut v, shape)?;
            } else if v.count == 0 && !external && space != Space::Param {
                return self.error_at(start, format!("`{}` has no size and is not `.extern`", v.name));
            }
            out.push(v);
            if !self.eat(b',') {
                break;
            }
        }
        self.expect(b';')
    }

    /// The alignment (default: the element size) and the type.
    fn align_and_type(&mut self) -> Result<Shape> {
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
                // `.managed` and `.unified` change nothing where host and device share one memory.
                "attribute" => self.skip_parentheses()?,
                ty => {
                    let Some(ty) = Ty::parse(ty).filter(|ty| ty.in_memory()) else {
                        return self.error(format!("`.{ty}` is not a type of a variable"));
                    };
                    let element = ty.bytes() * width;
                    let align = if align == 0 { element } else { align };
                    return Ok(Shape { align, element, component: ty.bytes(), ty });
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
        if count.saturating_mul(element) > MAX_VARIABLE {
            return self.error("the array is too large");
        }
        let references = Vec::new();
        Ok(Variable { space, name, align, element, count, external: false, init: None, references, at })
    }

    fn initializer(&mut self, v: &mut Variable, shape: Shape) -> Result<()> {
        let component = shape.component;
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
            let width = component.min(8) as usize;
            let value = match if Self::is_name_start(self.peek()) { None } else { Some(self.number()?) } {
                None => {
                    v.references.push(self.reference(bytes.len(), width, u64::MAX)?);
                    0
                }
                Some(Operand::Int(mask)) if self.eat(b'(') => {
                    v.references.push(self.reference(bytes.len(), width, mask as u64)?);
                    self.expect(b')')?;
                    0
                }
                Some(Operand::Int(_)) if shape.ty.is_float() => {
                    return self.error(format!("an integer as the initial value of .{}", shape.ty.name()));
                }
                Some(Operand::Float(_) | Operand::F32Bits(_) | Operand::F64Bits(_))
                    if shape.ty.is_integer() =>
                {
                    return self.error(format!("a float as the initial value of .{}", shape.ty.name()));
                }
                Some(Operand::Int(i)) => (if negative { -i } else { i }) as u64,
                Some(Operand::F32Bits(b)) => u64::from(b),
                Some(Operand::F64Bits(b)) => b,
                Some(Operand::Float(f)) => {
                    let f = if negative { -f } else { f };
                    if component == 8 { f.to_bits() } else { u64::from((f as f32).to_bits()) }
                }
                Some(_) => return self.error("expected a constant"),
            };
            bytes.extend_from_slice(&value.to_le_bytes()[..width]);
            bytes.resize(bytes.len().next_multiple_of(component.max(1) as usize), 0);
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
        v.init = Some(bytes);
        Ok(())
    }

    /// `name`, `name+offset` or `generic(name)+offset` as an initial value.
    fn reference(&mut self, at: usize, bytes: usize, mask: u64) -> Result<Reference> {
        self.skip_space();
        let position = self.position();
        let mut name = self.name()?;
        if name == "generic" && self.eat(b'(') {
            name = self.name()?;
            self.expect(b')')?;
        }
        let offset = if self.eat(b'+') { self.signed()? } else { 0 };
        Ok(Reference { at, bytes, name, offset, mask, position })
    }

    /// `( ... )` without a look at what is in it.
    fn skip_parentheses(&mut self) -> Result<()> {
        self.expect(b'(')?;
        let mut depth = 1;
        while depth > 0 {
            match self.peek() {
                b'(' => depth += 1,
                b')' => depth -= 1,
                0 if self.at >= self.text.len() => return self.error("`(` is not closed"),
                _ => {}
            }
            self.bump();
        }
        Ok(())
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
            max_registers: None,
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
                        "reqntid" | "maxntid" => {
                            let threads = self.triple()?;
                            if threads.contains(&0) {
                                return self.error(format!("`.{d}` takes positive numbers"));
                            }
                            f.threads = Some((threads, d == "reqntid"));
                        }
                        "reqnctapercluster" => f.cluster = Some(self.triple()?),
                        "maxnreg" => f.max_registers = Some(self.unsigned32()?),
                        "minnctapersm"
                        | "maxnctapersm"
                        | "maxclusterrank"
                        | "abi_preserve"
                        | "abi_preserve_control" => {
                            self.unsigned32()?;
                        }
                        "attribute" => self.skip_parentheses()?,
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
                            ty => match crate::text::types::type_bytes(ty) {
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
