//! Mutants of a kernel: its text with one synchronization instruction deleted or weakened.
//!
//! The initialization of barriers is left alone by [`mutants`]: without it any simulator stops at once.
//! [`misvalued`] changes values instead: parities, counts, and descriptors of operands; [`misissued`] what the tensor core
//! is given and in which order, and for whom arrivals and commits count.
//!
//! A simulator that finds hazards should find something wrong with every mutant of a correct kernel, except
//! where the instruction was redundant. Running them all scores both the simulator and the kernel.

/// One changed module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// Line of the original text.
    pub line: u32,
    /// What was done, and to which instruction.
    pub what: String,
    /// The changed text.
    pub text: String,
}

/// Opcodes that synchronize.
const SYNCHRONIZATION: [&str; 25] = [
    "bar.sync",
    "bar.arrive",
    "bar.warp.sync",
    "barrier.sync",
    "barrier.arrive",
    "barrier.cta.",
    "barrier.cluster.",
    "mbarrier.arrive",
    "mbarrier.expect_tx",
    "mbarrier.try_wait",
    "mbarrier.test_wait",
    "fence.",
    "cp.async.commit_group",
    "cp.async.wait_",
    "cp.async.bulk.commit_group",
    "cp.async.bulk.wait_group",
    "cp.async.mbarrier.arrive",
    "wgmma.",
    "tcgen05.alloc",
    "tcgen05.dealloc",
    "tcgen05.relinquish_alloc_permit",
    "tcgen05.commit",
    "tcgen05.wait",
    "tcgen05.fence",
    "clusterlaunchcontrol.try_cancel",
];

/// One statement of the text: an instruction with its guard, without labels and directives before it.
struct Statement<'a> {
    start: usize,
    end: usize,
    opcode: &'a str,
}

impl Statement<'_> {
    fn line(&self, text: &str) -> u32 {
        1 + text[..self.start].matches('\n').count() as u32
    }

    /// The text with something else in the place of the statement.
    fn replaced(&self, text: &str, what: &str, new: &str) -> Mutant {
        let original = &text[self.start..self.end];
        Mutant {
            line: self.line(text),
            what: format!("{what}: {original}"),
            text: format!("{}{new}{}", &text[..self.start], &text[self.end..]),
        }
    }
}

/// Finds instructions: what stands between two of `;`, `{`, `}` or a label's colon and a `;`, line comments
/// and directives left out.
fn statements(text: &str) -> Vec<Statement<'_>> {
    let mut list = Vec::new();
    let bytes = text.as_bytes();
    let mut start = 0;
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => {
                let line = bytes[at..].iter().position(|b| *b == b'\n').unwrap_or(bytes.len() - at);
                if text[start..at].trim().is_empty() {
                    start = at + line;
                }
                at += line;
                continue;
            }
            b':' if bytes.get(at + 1) == Some(&b':') => at += 1,
            b':' => start = at + 1,
            // A directive without a semicolon, such as `.loc`, ends with its line.
            b'\n' if text[start..at].trim_start().starts_with('.') => start = at + 1,
            b';' => {
                let leading = text[start..at].len() - text[start..at].trim_start().len();
                let body = text[start..at].trim();
                let unguarded = match body.strip_prefix('@') {
                    Some(rest) => rest.trim_start_matches(|c: char| !c.is_whitespace()).trim_start(),
                    None => body,
                };
                let opcode = unguarded.split_whitespace().next().unwrap_or("");
                if !opcode.is_empty() && !opcode.starts_with('.') {
                    list.push(Statement { start: start + leading, end: at + 1, opcode });
                }
                start = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    list
}

/// Mutants of what orders devices: an instruction of system scope that reaches its GPU only, that is relaxed, or that is
/// not there.
///
/// ```
/// let text = "st.release.sys.global.u32 [flag], 1; ld.acquire.sys.global.u32 x, [flag];";
/// let what: Vec<String> = oxigemm_sim::misscoped(text).into_iter().map(|mutant| mutant.what).collect();
/// assert_eq!(what.len(), 5);
/// assert_eq!(what[0], "of GPU scope: st.release.sys.global.u32 [flag], 1;");
/// ```
pub fn misscoped(text: &str) -> Vec<Mutant> {
    let mut list = Vec::new();
    for s in statements(text).iter().filter(|s| s.opcode.split('.').any(|part| part == "sys")) {
        let original = &text[s.start..s.end];
        let mut push = |what: &str, new: &str| list.push(s.replaced(text, what, new));
        let narrow = if s.opcode.starts_with("membar") { ".gl" } else { ".gpu" };
        push("of GPU scope", &original.replacen(".sys", narrow, 1));
        let fences = s.opcode.starts_with("fence") || s.opcode.starts_with("membar");
        let strength = [".acq_rel", ".release", ".acquire"].into_iter().find(|m| s.opcode.contains(m));
        if let (Some(strength), false) = (strength, fences) {
            push("relaxed", &original.replacen(strength, ".relaxed", 1));
        }
        if fences || s.opcode.starts_with("st.") || s.opcode.starts_with("red.") {
            push("deleted", "");
        }
    }
    list
}

/// Every mutant of a module.
///
/// A statement is deleted; a commit of MMAs comes before the last of them; a wait for an mbarrier's phase succeeds at once instead; an expectation of bytes
/// is dropped, or made too large or too small by 16; a wait for groups leaves one more of them unfinished.
pub fn mutants(text: &str) -> Vec<Mutant> {
    let mut list = Vec::new();
    let statements = statements(text);
    for (index, s) in statements.iter().enumerate() {
        let synchronizes = SYNCHRONIZATION.iter().any(|o| s.opcode.starts_with(o));
        if !synchronizes || s.opcode.starts_with("wgmma.mma_async") {
            continue;
        }
        let original = &text[s.start..s.end];
        let mut push = |what: &str, new: &str| list.push(s.replaced(text, what, new));
        let operands = original.split_once(s.opcode).map_or("", |o| o.1).trim_end_matches(';');
        if s.opcode.starts_with("mbarrier.try_wait") || s.opcode.starts_with("mbarrier.test_wait") {
            let predicate = operands.split(',').next().unwrap_or("").trim();
            push("does not wait", &format!("setp.eq.u32 {predicate}, 0, 0;"));
        } else {
            push("deleted", "");
        }
        if s.opcode.starts_with("tcgen05.commit")
            && let Some(mma) = statements[..index].iter().rfind(|s| s.opcode.starts_with("tcgen05.mma"))
        {
            let moved =
                format!("{}{original} {}{}", &text[..mma.start], &text[mma.start..s.start], &text[s.end..]);
            list.push(Mutant { text: moved, ..s.replaced(text, "before the last MMA", "") });
            continue;
        }
        if s.opcode.contains("wait_group")
            && let Ok(pending) = operands.trim().parse::<u32>()
        {
            push("leaves one group more", &original.replacen(operands, &format!(" {}", pending + 1), 1));
        }
        if s.opcode.contains(".expect_tx") {
            let Some((before, bytes)) = original.trim_end_matches(';').rsplit_once(',') else { continue };
            if s.opcode.starts_with("mbarrier.arrive") {
                push("expects no bytes", &format!("{};", before.replace(".expect_tx", "")));
            }
            if let Ok(bytes) = bytes.trim().parse::<u32>() {
                push("expects 16 bytes more", &format!("{before}, {};", bytes + 16));
                push("expects 16 bytes less", &format!("{before}, {};", bytes.saturating_sub(16)));
            }
        }
    }
    list
}

/// Operands of an instruction of tensor memory that are shared-memory descriptors: where they stand, counted from the
/// destination on. A is none where it lies in tensor memory.
fn descriptors(opcode: &str) -> &'static [usize] {
    match opcode {
        _ if opcode.starts_with("tcgen05.mma") => &[1, 2],
        _ if opcode.starts_with("tcgen05.cp") => &[1],
        _ => &[],
    }
}

/// Every module with one value of its synchronization changed: a wait for the other parity of an mbarrier, an mbarrier
/// that expects one arrival more or less, a descriptor of `tcgen05` that lies 32 bytes further.
pub fn misvalued(text: &str) -> Vec<Mutant> {
    let mut list = Vec::new();
    for s in statements(text) {
        let original = &text[s.start..s.end];
        let Some((before, operands)) = original.split_once(s.opcode) else { continue };
        let operands: Vec<&str> = operands.trim_end_matches(';').split(',').map(str::trim).collect();
        // In a scope of its own, where the register has no other use.
        let with = |at: usize, declared: &str, name: &str| {
            let mut operands = operands.clone();
            operands[at] = name;
            format!("{{ {declared} {before}{} {}; }}", s.opcode, operands.join(", "))
        };
        let waits = s.opcode.starts_with("mbarrier.try_wait.parity")
            || s.opcode.starts_with("mbarrier.test_wait.parity");
        if waits && operands.len() > 2 {
            let declared = format!(".reg .b32 other_parity; xor.b32 other_parity, {}, 1;", operands[2]);
            list.push(s.replaced(text, "waits for the other parity", &with(2, &declared, "other_parity")));
        }
        if s.opcode.starts_with("mbarrier.init")
            && let Some(count) = operands.get(1).and_then(|count| count.parse::<u32>().ok())
        {
            let counts = |count: u32| format!("{before}{} {}, {count};", s.opcode, operands[0]);
            list.push(s.replaced(text, "expects one arrival more", &counts(count + 1)));
            if count > 1 {
                list.push(s.replaced(text, "expects one arrival less", &counts(count - 1)));
            }
        }
        for at in descriptors(s.opcode) {
            let Some(descriptor) = operands.get(*at).filter(|operand| !operand.starts_with('[')) else {
                continue;
            };
            // Addresses in descriptors count 16 bytes.
            let declared = format!(".reg .b64 moved; add.u64 moved, {descriptor}, 2;");
            let what = format!("descriptor {at} 32 bytes further");
            list.push(s.replaced(text, &what, &with(*at, &declared, "moved")));
        }
    }
    list
}

/// Every module with one instruction for the tensor core changed, one of programmatic launches deleted, or one arrival or
/// commit that reaches another CTA made to reach its own only.
///
/// An MMA or a copy to tensor memory is deleted; an MMA adds where it should overwrite and the other way round, takes eight
/// columns more, or scales that lie four columns further; a copy comes behind the next MMA.
pub fn misissued(text: &str) -> Vec<Mutant> {
    let mut list = Vec::new();
    let statements = statements(text);
    for (index, s) in statements.iter().enumerate() {
        let original = &text[s.start..s.end];
        let Some((before, operands)) = original.split_once(s.opcode) else { continue };
        let operands: Vec<&str> = operands.trim_end_matches(';').split(',').map(str::trim).collect();
        let with = |at: usize, declared: &str, name: &str| {
            let mut operands = operands.clone();
            operands[at] = name;
            format!("{{ {declared} {before}{} {}; }}", s.opcode, operands.join(", "))
        };
        let is_mma = s.opcode.starts_with("tcgen05.mma");
        let is_copy = s.opcode.starts_with("tcgen05.cp");
        if is_mma || is_copy || s.opcode.starts_with("griddepcontrol") {
            list.push(s.replaced(text, "deleted", ""));
        }
        let next_mma = || statements[index..].iter().find(|s| s.opcode.starts_with("tcgen05.mma"));
        if is_copy && let Some(mma) = next_mma() {
            let moved =
                format!("{}{}{original}{}", &text[..s.start], &text[s.end..mma.end], &text[mma.end..]);
            list.push(Mutant { text: moved, ..s.replaced(text, "behind the next MMA", "") });
        }
        if is_mma && operands.len() > 4 {
            let last = operands.len() - 1;
            let declared = format!(".reg .pred other; not.pred other, {};", operands[last]);
            list.push(s.replaced(text, "adds or overwrites wrongly", &with(last, &declared, "other")));
            // N is counted in eights from bit 17 on.
            let declared = format!(".reg .b32 other; add.u32 other, {}, 131072;", operands[3]);
            list.push(s.replaced(text, "eight columns more", &with(3, &declared, "other")));
            for at in (4..last).filter(|at| operands[*at].starts_with('[')) {
                let scales = operands[at].trim_matches(['[', ']']);
                let declared = format!(".reg .b32 other; add.u32 other, {scales}, 4;");
                let what = format!("scales {} four columns further", at - 4);
                list.push(s.replaced(text, &what, &with(at, &declared, "[other]")));
            }
        }
        if s.opcode.contains(".multicast::cluster") && s.opcode.starts_with("tcgen05.commit") {
            let declared = ".reg .b16 other; mov.b16 other, 1;";
            list.push(s.replaced(text, "reaches the first CTA only", &with(1, declared, "other")));
        }
        let scoped = [".release.cluster", ".acquire.cluster"];
        if s.opcode.starts_with("mbarrier.")
            && let Some(order) = scoped.into_iter().find(|order| s.opcode.contains(order))
        {
            let weaker = s.opcode.replacen(order, ".relaxed.cluster", 1);
            list.push(s.replaced(text, "relaxed", &original.replacen(s.opcode, &weaker, 1)));
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_found_behind_labels_guards_and_directives() {
        let text = "{ .reg .b32 r<2>; // a; comment\n.loc 1 2 3\nL: @!p bar.sync 0;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [r0], 64; mov.u32 r0, 1;\nW: mbarrier.try_wait.parity.shared::cta.b64 p1, [r0], r1; }";
        let all = mutants(text);
        let what: Vec<&str> = all.iter().map(|m| m.what.split(':').next().unwrap()).collect();
        assert_eq!(
            what,
            [
                "deleted",
                "deleted",
                "expects no bytes",
                "expects 16 bytes more",
                "expects 16 bytes less",
                "does not wait"
            ]
        );
        assert_eq!(all[0].line, 3);
        assert!(all[0].text.contains("L: \nmbarrier"));
        assert!(all[2].text.contains("mbarrier.arrive.shared::cta.b64 _, [r0];"));
        assert!(all[3].text.contains("[r0], 80;"));
        assert!(all[5].text.contains("W: setp.eq.u32 p1, 0, 0;"));
    }

    #[test]
    fn commits_are_deleted_and_moved_before_the_last_mma() {
        let text = "tcgen05.mma.cta_group::1.kind::f16 [d], a, b, i, p; mov.u32 r, 1;
            @e tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [m]; ret;";
        let all = mutants(text);
        assert_eq!(all.len(), 2);
        assert!(all[0].text.contains("mov.u32 r, 1;\n             ret;"), "{}", all[0].text);
        assert!(all[1].text.starts_with("@e tcgen05.commit"), "{}", all[1].text);
        assert!(all[1].text.contains("[m]; tcgen05.mma"), "{}", all[1].text);
        assert_eq!(all[1].line, 2);
    }

    #[test]
    fn values_are_changed_in_a_scope_of_their_own() {
        let text = "mbarrier.init.shared::cta.b64 [m], 2;
            @q mbarrier.try_wait.parity.shared::cta.b64 p, [m], 0;
            @e tcgen05.mma.cta_group::1.kind::f16 [ d + 0 ], [ a + 0 ], b, i, p;";
        let all = misvalued(text);
        let what: Vec<&str> = all.iter().map(|m| m.what.split(':').next().unwrap()).collect();
        assert_eq!(
            what,
            [
                "expects one arrival more",
                "expects one arrival less",
                "waits for the other parity",
                "descriptor 2 32 bytes further"
            ]
        );
        assert!(all[0].text.contains("[m], 3;"));
        assert!(all[2].text.contains(
            "{ .reg .b32 other_parity; xor.b32 other_parity, 0, 1; @q mbarrier.try_wait.parity.shared::cta.b64 p, [m], other_parity; }"
        ));
        assert!(
            all[3]
                .text
                .contains("@e tcgen05.mma.cta_group::1.kind::f16 [ d + 0 ], [ a + 0 ], moved, i, p; }")
        );
    }

    #[test]
    fn work_of_the_tensor_core_is_changed() {
        let text = "griddepcontrol.wait; tcgen05.cp.cta_group::1.32x128b.warpx4 [r1], d1;
            @e tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X [r0], d2, d3, 7, [r1], [r2], p;
            tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [r3], h0;
            mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r4];";
        let all = misissued(text);
        let what: Vec<&str> = all.iter().map(|m| m.what.split(": ").next().unwrap()).collect();
        assert_eq!(
            what,
            [
                "deleted",
                "deleted",
                "behind the next MMA",
                "deleted",
                "adds or overwrites wrongly",
                "eight columns more",
                "scales 0 four columns further",
                "scales 1 four columns further",
                "reaches the first CTA only",
                "relaxed"
            ]
        );
        assert!(all[2].text.contains("[r2], p;tcgen05.cp"), "{}", all[2].text);
        assert!(all[4].text.contains("not.pred other, p; @e tcgen05.mma"), "{}", all[4].text);
        assert!(all[7].text.contains("add.u32 other, r2, 4;") && all[7].text.contains("[r1], [other], p; }"));
        assert!(all[9].text.contains("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [r4];"));
    }
}
