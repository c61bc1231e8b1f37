//! Mutants of a kernel: its text with one synchronization instruction deleted or weakened.
//!
//! The initialization of barriers is left alone: without it any simulator stops at once.
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
const SYNCHRONIZATION: [&str; 18] = [
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
];

/// One statement of the text: an instruction with its guard, without labels and directives before it.
struct Statement<'a> {
    start: usize,
    end: usize,
    opcode: &'a str,
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

/// Every mutant of a module.
///
/// A statement is deleted; a wait for an mbarrier's phase succeeds at once instead; an expectation of bytes
/// is dropped, or made too large or too small by 16; a wait for groups leaves one more of them unfinished.
pub fn mutants(text: &str) -> Vec<Mutant> {
    let mut list = Vec::new();
    for s in statements(text) {
        let synchronizes = SYNCHRONIZATION.iter().any(|o| s.opcode.starts_with(o));
        if !synchronizes || s.opcode.starts_with("wgmma.mma_async") {
            continue;
        }
        let original = &text[s.start..s.end];
        let line = 1 + text[..s.start].matches('\n').count() as u32;
        let mut push = |what: &str, new: &str| {
            let text = format!("{}{new}{}", &text[..s.start], &text[s.end..]);
            list.push(Mutant { line, what: format!("{what}: {original}"), text });
        };
        let operands = original.split_once(s.opcode).map_or("", |o| o.1).trim_end_matches(';');
        if s.opcode.starts_with("mbarrier.try_wait") || s.opcode.starts_with("mbarrier.test_wait") {
            let predicate = operands.split(',').next().unwrap_or("").trim();
            push("does not wait", &format!("setp.eq.u32 {predicate}, 0, 0;"));
        } else {
            push("deleted", "");
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
}
