//! The threads of the CPU reference.

use oxigemm_threads::{Interrupt, Pool};

use crate::error::{Error, Result};

/// They run the loops of the reference, of casts and of metrics: not those of a caller who has a pool, and not those of
/// the simulator.
pub(crate) static THREADS: Pool = Pool::new("oxigemm");

/// Ends work that was asked to end.
pub(crate) fn refuse_interrupted(interrupt: &Interrupt) -> Result<()> {
    if interrupt.is_raised() { Err(Error::Interrupted) } else { Ok(()) }
}
