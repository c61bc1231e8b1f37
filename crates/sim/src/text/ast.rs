//! The syntax tree of a PTX module: what the text says, before any name or type is resolved.

use crate::error::Position;
use crate::target::Target;
use std::collections::BTreeMap;

/// A whole PTX module.
#[derive(Clone, Debug)]
pub struct ModuleAst {
    /// `.target`.
    pub target: Target,
    /// `.file` numbers and names.
    pub files: BTreeMap<u32, String>,
    /// Variables at module scope.
    pub variables: Vec<Variable>,
    /// Entries and device functions; a declaration has no body.
    pub functions: Vec<Function>,
}

/// A state space that a variable or an instruction names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// `.global`
    Global,
    /// `.shared` and `.shared::cta`
    Shared,
    /// `.shared::cluster`
    Cluster,
    /// `.local`
    Local,
    /// `.param`
    Param,
    /// `.const`
    Const,
    /// No space: a generic address.
    Generic,
}

/// A variable with an address (not a register).
#[derive(Clone, Debug)]
pub struct Variable {
    /// Where it lives.
    pub space: Space,
    /// Name.
    pub name: String,
    /// Alignment in bytes.
    pub align: u64,
    /// Size of one element in bytes.
    pub element: u64,
    /// Number of elements; zero for `name[]`.
    pub count: u64,
    /// Declared `.extern`.
    pub external: bool,
    /// Initial bytes, when the text gives them.
    pub init: Option<Vec<u8>>,
    /// Addresses of other variables among the initial bytes.
    pub references: Vec<Reference>,
    /// Where it is declared.
    pub at: Position,
}

impl Variable {
    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.element.saturating_mul(self.count)
    }
}

/// The address of a variable as (a part of) an initial value.
#[derive(Clone, Debug)]
pub struct Reference {
    /// Offset in the initial bytes.
    pub at: usize,
    /// Bytes that it takes.
    pub bytes: usize,
    /// The variable.
    pub name: String,
    /// What is added to its address.
    pub offset: i64,
    /// `0xff00(name)`: bits to take from the address, moved down to the lowest of them.
    pub mask: u64,
    /// Where it stands.
    pub position: Position,
}

/// An entry or a device function.
#[derive(Clone, Debug)]
pub struct Function {
    /// Name.
    pub name: String,
    /// Whether it is an `.entry`.
    pub entry: bool,
    /// Formal parameters; those of a `.func` may be registers.
    pub params: Vec<Formal>,
    /// Return values of a `.func`.
    pub returns: Vec<Formal>,
    /// `.reqntid` or `.maxntid`, with `true` for the former.
    pub threads: Option<([u32; 3], bool)>,
    /// `.maxnreg`.
    pub max_registers: Option<u32>,
    /// `.reqnctapercluster`.
    pub cluster: Option<[u32; 3]>,
    /// Statements, when this is a definition.
    pub body: Option<Vec<Statement>>,
    /// Where it is declared.
    pub at: Position,
}

/// A formal parameter or return value.
#[derive(Clone, Debug)]
pub enum Formal {
    /// In the `.param` space.
    Param(Variable),
    /// A register (`.func` only): name and type suffix.
    Register(String, String),
}

/// One statement of a body.
#[derive(Clone, Debug)]
pub enum Statement {
    /// `{`
    Open,
    /// `}`
    Close,
    /// `name:`
    Label(String, Position),
    /// `.reg .type name<count>`; `count` is `None` for a single register.
    Register {
        /// Type suffix without the dot.
        ty: String,
        /// Name or prefix.
        name: String,
        /// Number of registers of a `name<count>` declaration.
        count: Option<u32>,
        /// Where it is declared.
        at: Position,
    },
    /// A variable in `.shared`, `.local` or `.param` space.
    Variable(Variable),
    /// `.loc file line column`
    Loc(u32, u32),
    /// `name: .callprototype ...;` or `name: .calltargets ...;`
    CallPrototype(String),
    /// `name: .branchtargets a, b, c;`
    BranchTargets(String, Vec<String>),
    /// An instruction.
    Instruction(Instruction),
}

/// One instruction as written.
#[derive(Clone, Debug)]
pub struct Instruction {
    /// `@p` (false) or `@!p` (true).
    pub guard: Option<(String, bool)>,
    /// The opcode's parts: `["ld", "global", "u32"]`.
    pub opcode: Vec<String>,
    /// Operands in order.
    pub operands: Vec<Operand>,
    /// Where the opcode stands.
    pub at: Position,
}

impl Instruction {
    /// Whether the opcode has this modifier.
    pub fn has(&self, modifier: &str) -> bool {
        self.opcode.iter().skip(1).any(|m| m == modifier)
    }
}

/// One operand as written.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// A register, symbol, label or special register (with its member: `%tid.x`).
    Name(String),
    /// An integer constant.
    Int(i128),
    /// A floating-point constant written in decimal.
    Float(f64),
    /// `0fXXXXXXXX`
    F32Bits(u32),
    /// `0dXXXXXXXXXXXXXXXX`
    F64Bits(u64),
    /// `!p`
    Not(Box<Operand>),
    /// `{a, b, ...}`
    Vector(Vec<Operand>),
    /// `[base+offset]`, with the coordinates of `[map, {x, y}]` when given.
    Address(Box<Operand>, i64, Option<Box<Operand>>),
    /// `a|b`
    Pair(Box<Operand>, Box<Operand>),
    /// `(a, b)` of a call.
    List(Vec<Operand>),
    /// `name+offset` outside of brackets.
    Offset(String, i64),
    /// `_`
    Sink,
}
