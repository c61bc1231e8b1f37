//! Mutants of Blackwell's kernels that survive without a proof, looked at one by one.

use std::collections::BTreeMap;

/// Instructions that may be missing: in kernels whose name contains this, what is done contains that, in a file, so many
/// times in a kernel, and why nothing is lost without them.
struct Explained {
    kernels: &'static str,
    what: &'static str,
    file: &'static str,
    times: usize,
    why: &'static str,
}

const EXPLAINED: &[Explained] = &[
    Explained {
        kernels: "sm100_",
        what: "tcgen05.relinquish_alloc_permit",
        file: "",
        times: 1,
        why: "only a CTA that waits for tensor memory on the same SM needs it: it says nothing to its own CTA",
    },
    Explained {
        kernels: "sm100_",
        what: "griddepcontrol.launch_dependents",
        file: "",
        times: 1,
        why: "without it the next kernel starts when this one has ended: later, and no less right",
    },
];

/// Why nothing is lost without an instruction, where somebody has looked; `uses` counts how often a reason was given.
pub(super) fn why(
    kernel: &str,
    source: &str,
    what: &str,
    uses: &mut BTreeMap<usize, usize>,
) -> Option<&'static str> {
    let fits =
        |e: &Explained| kernel.contains(e.kernels) && what.contains(e.what) && source.starts_with(e.file);
    for (nth, explained) in EXPLAINED.iter().enumerate().filter(|(_, e)| fits(e)) {
        let used = uses.entry(nth).or_default();
        if *used < explained.times {
            *used += 1;
            return Some(explained.why);
        }
    }
    None
}
