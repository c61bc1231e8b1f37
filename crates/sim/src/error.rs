//! What can go wrong: text that is not PTX, a launch that no GPU would take, a kernel that misbehaves.

use std::fmt;

/// A position in the PTX text, counted from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Position {
    /// Line of the PTX text.
    pub line: u32,
    /// Column, in bytes.
    pub column: u32,
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PTX line {}, column {}", self.line, self.column)
    }
}

/// PTX that could not be read, with the place in its text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {message}")]
pub struct ParseError {
    /// Where.
    pub at: Position,
    /// What, in one sentence.
    pub message: String,
}

/// The kind of a [`Fault`]: what a test asserts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// The launch exceeds a limit or does not fit the entry.
    Launch,
    /// An access outside of every allocation.
    OutOfBounds,
    /// An access that is not aligned to its size.
    Misaligned,
    /// A read of global memory, shared memory or a register that nothing wrote.
    Uninitialized,
    /// Two unordered accesses to the same shared or global memory, one of them a write.
    Race,
    /// A generic write and an access through the async proxy with no proxy fence between them.
    ProxyOrder,
    /// A register of a `wgmma` in flight was touched, or `wgmma.fence` is missing.
    WgmmaRegister,
    /// Tensor memory used behind a synchronization of threads without the `tcgen05.fence` that the manual asks for.
    TensorFence,
    /// Tensor memory that is not allocated, that the warp cannot reach, or that is freed or kept against the rules.
    TensorMemory,
    /// A tensor map was changed while in use, or used without the fence that orders its change.
    TensorMap,
    /// More arrivals than a phase of an mbarrier expects.
    OverArrival,
    /// Bytes that an mbarrier expects and bytes that arrive differ.
    TransactionCount,
    /// A wait for a phase of an mbarrier that ended long ago, or that lies two ahead.
    WrongParity,
    /// An mbarrier used before its initialization (or its fence), or initialized twice.
    BarrierInit,
    /// Shared memory of a CTA that has exited.
    PeerExited,
    /// A CTA exits with asynchronous work in flight.
    WorkInFlight,
    /// Nothing can run any more.
    Deadlock,
    /// A warp has diverged at an instruction that needs its lanes converged.
    Divergence,
    /// An operand value that the instruction does not allow.
    BadOperand,
    /// `trap`
    Trap,
    /// A loop that nothing ends.
    EndlessLoop,
    /// More memory than [`crate::Options::memory_limit`].
    MemoryLimit,
    /// More instructions than [`crate::Options::instruction_limit`].
    InstructionLimit,
    /// The run was asked to end: [`crate::Machine::interrupt`].
    Interrupted,
}

impl FaultKind {
    /// Every kind.
    pub const ALL: [FaultKind; 24] = [
        FaultKind::Launch,
        FaultKind::OutOfBounds,
        FaultKind::Misaligned,
        FaultKind::Uninitialized,
        FaultKind::Race,
        FaultKind::ProxyOrder,
        FaultKind::WgmmaRegister,
        FaultKind::TensorFence,
        FaultKind::TensorMemory,
        FaultKind::TensorMap,
        FaultKind::OverArrival,
        FaultKind::TransactionCount,
        FaultKind::WrongParity,
        FaultKind::BarrierInit,
        FaultKind::PeerExited,
        FaultKind::WorkInFlight,
        FaultKind::Deadlock,
        FaultKind::Divergence,
        FaultKind::BadOperand,
        FaultKind::Trap,
        FaultKind::EndlessLoop,
        FaultKind::MemoryLimit,
        FaultKind::InstructionLimit,
        FaultKind::Interrupted,
    ];

    /// Its name: what [`FromStr`](std::str::FromStr) reads.
    pub fn name(self) -> String {
        format!("{self:?}")
    }

    /// Whether a run can go on after a fault of this kind: [`Options::allow`](crate::Options::allow) and
    /// [`Options::keep_going`](crate::Options::keep_going) have an effect on it. Some faults of these kinds still end
    /// a run: an mbarrier that was never initialized, a tensor map that is none.
    pub fn can_go_on(self) -> bool {
        use FaultKind::*;
        matches!(
            self,
            Uninitialized
                | Race
                | ProxyOrder
                | WgmmaRegister
                | TensorFence
                | TensorMemory
                | TensorMap
                | BarrierInit
                | PeerExited
                | WorkInFlight
                | Divergence
        )
    }
}

impl std::str::FromStr for FaultKind {
    type Err = String;

    /// By its name, in upper or lower case.
    fn from_str(name: &str) -> Result<FaultKind, String> {
        FaultKind::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name)).ok_or_else(|| {
            let names: Vec<String> = FaultKind::ALL.into_iter().map(FaultKind::name).collect();
            format!("`{name}` is not a kind of fault: they are {}", names.join(", "))
        })
    }
}

/// A set of kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultKinds(u32);

impl FaultKinds {
    /// Adds a kind.
    pub fn insert(&mut self, kind: FaultKind) {
        self.0 |= 1 << kind as u32;
    }

    /// Whether it has a kind.
    pub fn contains(self, kind: FaultKind) -> bool {
        self.0 >> kind as u32 & 1 == 1
    }
}

impl FromIterator<FaultKind> for FaultKinds {
    fn from_iter<I: IntoIterator<Item = FaultKind>>(kinds: I) -> FaultKinds {
        let mut set = FaultKinds::default();
        kinds.into_iter().for_each(|kind| set.insert(kind));
        set
    }
}

/// A place in a running kernel: the instruction, its source line and who ran it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Line of the PTX text.
    pub line: u32,
    /// Column of the PTX text.
    pub column: u32,
    /// Source file and line from `.file` and `.loc`, when the module has them.
    pub source: Option<(String, u32)>,
    /// The opcode.
    pub opcode: String,
    /// CTA (linear index in the grid).
    pub cta: u32,
    /// Warp in the CTA.
    pub warp: u32,
    /// The device, where there are several.
    pub device: Option<u32>,
}

impl Place {
    /// The source line where there is one, else that of the PTX text.
    pub(crate) fn line_text(&self) -> String {
        match &self.source {
            Some((file, line)) => format!("{file}:{line}"),
            None => format!("PTX line {}", self.line),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((file, line)) = &self.source {
            write!(f, "{file}:{line} ")?;
        }
        let Place { opcode, line, column, cta, warp, .. } = self;
        write!(f, "`{opcode}` (PTX line {line}, column {column}, ")?;
        if let Some(device) = self.device {
            write!(f, "device {device}, ")?;
        }
        write!(f, "CTA {cta}, warp {warp})")
    }
}

/// The part of a [`Launch`](crate::Launch) that a refusal is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LaunchPart {
    /// The name of the entry.
    Entry,
    /// The grid.
    Grid,
    /// The block.
    Block,
    /// The cluster.
    Cluster,
    /// The dynamic shared memory.
    SharedBytes,
    /// The number of parameters.
    Params,
    /// One parameter.
    Param(usize),
}

/// A kernel that misbehaved, or a launch that was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Fault {
    /// What happened.
    pub kind: FaultKind,
    /// One sentence with the values involved.
    pub message: String,
    /// The instruction that was running.
    pub at: Option<Box<Place>>,
    /// The other side, when there is one.
    pub other: Option<Box<Place>>,
    /// The part of the launch that is wrong, where the kernel was not run.
    pub launch: Option<LaunchPart>,
    /// More lines: the barriers involved, what every warp waits for.
    pub notes: Vec<String>,
}

impl Fault {
    pub(crate) fn new(kind: FaultKind, message: impl Into<String>) -> Fault {
        Fault { kind, message: message.into(), at: None, other: None, launch: None, notes: Vec::new() }
    }

    pub(crate) fn launch(part: LaunchPart, message: impl Into<String>) -> Fault {
        Fault { launch: Some(part), ..Fault::new(FaultKind::Launch, message) }
    }

    pub(crate) fn note(mut self, note: impl Into<String>) -> Fault {
        self.notes.push(note.into());
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)?;
        if let Some(at) = &self.at {
            write!(f, "\n  at    {at}")?;
        }
        if let Some(other) = &self.other {
            write!(f, "\n  other {other}")?;
        }
        for note in &self.notes {
            write!(f, "\n  note  {note}")?;
        }
        Ok(())
    }
}
