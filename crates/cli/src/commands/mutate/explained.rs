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
    Explained {
        kernels: "sm100_mxfp4_gemm_persistent_nt_128x64",
        what: "behind the next MMA: tcgen05.cp",
        file: "scales.rs",
        times: 2,
        why: "it copies the second word of scales of A or of B, which the third MMA of a stage reads first",
    },
    Explained {
        kernels: "sm100_mxfp8_gemm_split_k_gated",
        what: "behind the next MMA: tcgen05.cp",
        file: "scales.rs",
        times: 1,
        why: "it copies the scales of the ups, whose MMAs come behind those of the gates",
    },
    Explained {
        kernels: "sm100_nvfp4_gemm_persistent_fused",
        what: "behind the next MMA: tcgen05.cp",
        file: "scales.rs",
        times: 6,
        why: "it copies a word of scales of A or of B that the second MMA of a stage or a later one reads first",
    },
    Explained {
        kernels: "sm100_mxfp8_gemm_persistent_k_grouped",
        what: "griddepcontrol.wait",
        file: "mod.rs",
        times: 1,
        why: "the kernel before it packs scales, and lets it start at its own end only, which is behind all before it",
    },
    Explained {
        kernels: "mqa_logits",
        what: "fence.mbarrier_init",
        file: "mod.rs",
        times: 1,
        why: "there is no cluster: the barrier of the CTA behind it orders the initialization for all warps and copies",
    },
    Explained {
        kernels: "paged_mqa_logits",
        what: "bar.warp.sync",
        file: "paged.rs",
        times: 1,
        why: "bytes may arrive before they are expected: the phase cannot end before the first lane has arrived",
    },
    Explained {
        kernels: "_k_grouped_",
        what: "fence.acq_rel",
        file: "dynamic_tensor_maps.rs",
        times: 1,
        why: "after a CTA claims a slot for its tensor maps: the CTAs of one launch have different slots",
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
