//! Mutants that survive and that no proof is known for, looked at one by one.

use crate::mutation::{Kind, Survivor};

/// Why nothing is lost without an instruction: kernel, line of the PTX, what was done, the reason.
const EXPLAINED: &[(&str, u32, &str, &str)] = &[
    (
        "gluon_clc",
        48,
        "deleted",
        "it lies between reads of the response and the next write by the async proxy: the simulator asks for a proxy \
         fence behind generic writes, as main loops that run on the chips free a stage without one",
    ),
    ("sm90_bf16_device_maps", 107, "deleted", MAPS),
    ("sm90_bf16_device_maps", 161, "deleted", MAPS),
    ("sm90_bf16_device_maps", 640, "", EPILOGUE),
    ("sm90_e4m3_device_maps_ws", 105, "deleted", MAPS),
    ("sm90_e4m3_device_maps_ws", 156, "deleted", MAPS),
    ("sm90_e4m3_device_maps_ws", 766, "", EPILOGUE),
];

const MAPS: &str = "`tensormap.cp_fenceproxy` releases and the `fence.proxy.tensormap` behind it acquires, in every lane \
                    of the one warp that touches these words";

const EPILOGUE: &str =
    "the epilogue of the last tile has waited for all groups, and none is issued behind it";

/// What is known of the permit to allocate, in every kernel.
const PERMIT: &str =
    "only a CTA that waits for tensor memory on the same SM needs it: it says nothing to its own CTA";

/// Why nothing is lost without this instruction of a kernel, where somebody has looked.
pub(crate) fn why(kernel: &str, survivor: &Survivor) -> Option<&'static str> {
    if survivor.kind == Kind::Permit {
        return Some(PERMIT);
    }
    EXPLAINED
        .iter()
        .find(|(name, line, what, _)| {
            *name == kernel && *line == survivor.line && survivor.what.starts_with(what)
        })
        .map(|(.., why)| *why)
}
