//! Ctrl-C during a call: the CPU reference and the simulator end early, and the call raises what a handler raised.

use std::cell::RefCell;

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

thread_local! {
    /// What a handler raised while this thread waited for its call.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Has running calls ask Python for signals. Python handles them on its main thread, and there alone the question has
/// an effect: a call of another thread goes on.
pub fn init() {
    oxigemm::set_interrupt_hook(Some(|| {
        // There is none to attach to where the interpreter is about to end.
        let raised = Python::try_attach(|py| py.check_signals().err()).flatten();
        let is_raised = raised.is_some();
        RAISED.set(raised);
        is_raised
    }));
}

/// The exception of an interrupted call.
pub fn exception() -> PyErr {
    RAISED.take().unwrap_or_else(|| PyKeyboardInterrupt::new_err(()))
}
