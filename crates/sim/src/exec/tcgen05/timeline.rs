//! Bars of tensor memory in the timeline: allocations, loads and stores, each until it is over.

use crate::exec::context::Cx;
use crate::report::TraceUnit;
use crate::units::tensor_memory::Use;

impl Cx<'_> {
    /// Begins a bar, which ends here if nothing else ends it.
    pub(super) fn trace_tensor_memory(
        &mut self,
        (warp, pc): (u32, u32),
        cta: usize,
        of: Use,
        detail: impl FnOnce(&Self) -> String,
    ) {
        if self.options.trace {
            let event = self.report.trace.len();
            self.trace(TraceUnit::TensorMemory, warp, pc, self.report.instructions, None, detail);
            self.cluster.ctas[cta].tensor().traced.push((of, event));
        }
    }

    /// Ends the bars of a use: it is over.
    pub(super) fn end_tensor_memory(&mut self, cta: usize, of: Use) {
        if self.options.trace {
            let now = self.report.instructions;
            for (_, event) in self.cluster.ctas[cta].tensor().traced.extract_if(.., |(other, _)| *other == of)
            {
                self.report.trace[event].end = now;
            }
        }
    }
}
