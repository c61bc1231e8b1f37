//! Which instruction forms the corpus uses.

use crate::kernel::Kernel;

/// A form: its name, and words that an opcode of it has, all of them. `!` before a word: it has not.
struct Form {
    name: &'static str,
    words: &'static [&'static str],
}

const fn form(name: &'static str, words: &'static [&'static str]) -> Form {
    Form { name, words }
}

const ONE: &str = "cta_group::1";
const TWO: &str = "cta_group::2";

/// The forms of tensor memory and of what came with it.
const FORMS: &[Form] = &[
    form("`tcgen05.alloc`, `dealloc`, `relinquish_alloc_permit`, one CTA", &["tcgen05.alloc", ONE]),
    form("the same, CTA pair", &["tcgen05.alloc", TWO]),
    form("`mma` f16", &["tcgen05.mma", "kind::f16", ONE]),
    form("`mma` f16, CTA pair", &["tcgen05.mma", "kind::f16", TWO]),
    form("`mma` tf32", &["tcgen05.mma", "kind::tf32", ONE]),
    form("`mma` tf32, CTA pair", &["tcgen05.mma", "kind::tf32", TWO]),
    form("`mma` f8f6f4", &["tcgen05.mma", "kind::f8f6f4", ONE]),
    form("`mma` f8f6f4, CTA pair", &["tcgen05.mma", "kind::f8f6f4", TWO]),
    form("`mma` i8", &["tcgen05.mma", "kind::i8", ONE]),
    form("`mma` i8, CTA pair", &["tcgen05.mma", "kind::i8", TWO]),
    form("`mma` mxf8f6f4 block32", &["tcgen05.mma", "kind::mxf8f6f4", ONE]),
    form("`mma` mxf8f6f4 block32, CTA pair", &["tcgen05.mma", "kind::mxf8f6f4", TWO]),
    form("`mma` mxf4 block32", &["tcgen05.mma", "kind::mxf4.", ONE]),
    form("`mma` mxf4 block32, CTA pair", &["tcgen05.mma", "kind::mxf4.", TWO]),
    form("`mma` mxf4nvf4 block16", &["tcgen05.mma", "kind::mxf4nvf4", "block16", ONE]),
    form("`mma` mxf4nvf4 block16, CTA pair", &["tcgen05.mma", "kind::mxf4nvf4", "block16", TWO]),
    form("`mma` mxf4nvf4 block32", &["tcgen05.mma", "kind::mxf4nvf4", "block32"]),
    form("`mma` with a collector buffer", &["tcgen05.mma", "collector"]),
    form("`mma.ws`", &["tcgen05.mma.ws"]),
    form("`mma.sp`", &["tcgen05.mma.sp"]),
    form("`cp` 32x128b.warpx4", &["tcgen05.cp", "32x128b", ONE]),
    form("`cp` 32x128b.warpx4, CTA pair", &["tcgen05.cp", "32x128b", TWO]),
    form("`cp` 128x256b", &["tcgen05.cp", "128x256b"]),
    form("`cp` 128x128b", &["tcgen05.cp", "128x128b"]),
    form("`cp` 4x256b", &["tcgen05.cp", "4x256b"]),
    form("`cp` 64x128b.warpx2", &["tcgen05.cp", "64x128b"]),
    form("`cp`, decompressing 4-bit or 6-bit elements", &["tcgen05.cp", "b8x16"]),
    form("`ld` 32x32b", &["tcgen05.ld", "32x32b", "!pack", "!red"]),
    form("`ld` 16x64b", &["tcgen05.ld", "16x64b"]),
    form("`ld` 16x128b", &["tcgen05.ld", "16x128b"]),
    form("`ld` 16x256b", &["tcgen05.ld", "16x256b"]),
    form("`ld` 16x32bx2", &["tcgen05.ld", "16x32bx2"]),
    form("`ld` with pack::16b", &["tcgen05.ld", "pack::16b"]),
    form("`ld.red` (sm_103)", &["tcgen05.ld.red"]),
    form("`st` 32x32b", &["tcgen05.st", "32x32b", "!unpack"]),
    form("`st` 16x64b", &["tcgen05.st", "16x64b"]),
    form("`st` 16x128b", &["tcgen05.st", "16x128b"]),
    form("`st` 16x256b", &["tcgen05.st", "16x256b"]),
    form("`st` 16x32bx2", &["tcgen05.st", "16x32bx2"]),
    form("`st` with unpack::16b", &["tcgen05.st", "unpack::16b"]),
    form("`commit`", &["tcgen05.commit", "!multicast"]),
    form("`commit` with multicast", &["tcgen05.commit", "multicast"]),
    form("`wait::ld`", &["tcgen05.wait::ld"]),
    form("`wait::st`", &["tcgen05.wait::st"]),
    form("`tcgen05.fence`", &["tcgen05.fence"]),
    form("`tcgen05.shift`", &["tcgen05.shift"]),
    form("TMA load with cta_group::2", &["cp.async.bulk.tensor", TWO, "!multicast"]),
    form("TMA load with cta_group::2 and multicast", &["cp.async.bulk.tensor", TWO, "multicast"]),
    form("TMA im2col", &["cp.async.bulk.tensor", "im2col"]),
    form("TMA gather4", &["cp.async.bulk.tensor", "gather4"]),
    form("TMA scatter4", &["cp.async.bulk.tensor", "scatter4"]),
    form("TMA reduction", &["cp.reduce.async.bulk.tensor"]),
    form("`tensormap.replace`", &["tensormap.replace"]),
    form("cluster launch control", &["clusterlaunchcontrol.try_cancel"]),
    form("`griddepcontrol`", &["griddepcontrol"]),
    form("`f32x2` arithmetic", &["f32x2"]),
    form("`cvt` of E2M1", &["cvt.", "e2m1"]),
    form("`cvt` of E2M3, E3M2", &["cvt.", "e2m3"]),
    form("`cvt` of UE8M0", &["cvt.", "ue8m0"]),
    form("`mma.sync` with block scales, scale_vec::1X", &["mma.sync", "scale_vec::1X"]),
    form("`mma.sync` with block scales, scale_vec::2X", &["mma.sync", "scale_vec::2X"]),
    form("`mma.sync` with block scales, scale_vec::4X", &["mma.sync", "scale_vec::4X"]),
];

impl Form {
    fn is(&self, opcode: &str) -> bool {
        self.words.iter().all(|word| match word.strip_prefix('!') {
            Some(without) => !opcode.contains(without),
            None => opcode.contains(word),
        })
    }
}

/// Opcodes of a text.
fn opcodes(ptx: &str) -> impl Iterator<Item = &str> {
    let words = |line| str::split(line, |c: char| c.is_whitespace() || "{};,".contains(c));
    ptx.lines().map(|line| line.split("//").next().unwrap_or("")).flat_map(words).filter(|word| word.contains('.'))
}

/// The table of forms in Markdown: how many kernels of the corpus have an instruction of the form, and the first of them.
pub fn coverage(corpus: &[Kernel]) -> String {
    let mut table = "| form | kernels | such as |\n|---|---|---|\n".to_owned();
    for form in FORMS {
        let users: Vec<&str> = corpus
            .iter()
            .filter(|kernel| opcodes(&kernel.ptx).any(|opcode| form.is(opcode)))
            .map(|kernel| kernel.name.as_str())
            .collect();
        let such = match users[..] {
            [] => "**no oracle**".to_owned(),
            [one] => format!("`{one}`"),
            [one, .., last] => format!("`{one}`, `{last}`"),
        };
        table += &format!("| {} | {} | {such} |\n", form.name, users.len());
    }
    table
}
