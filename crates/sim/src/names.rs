//! Names that a kernel's text gives to its parts, in comments that no assembler reads.
//!
//! ```text
//! //@ shared full 65536 8 4      the four 8-byte things at byte 65536 of dynamic shared memory
//! //@ role producer              what follows is done by warps of this role...
//! //@ end producer               ...up to here
//! ```
//!
//! The timeline has a track for every role, and messages say `full[2]` for the third barrier.

/// Equal things in a row in dynamic shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Region {
    name: String,
    start: u32,
    bytes: u32,
    count: u32,
}

/// A role and the lines of its code.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Role {
    name: String,
    lines: std::ops::Range<u32>,
}

/// The names of one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    regions: Vec<Region>,
    /// Inner roles behind those around them.
    roles: Vec<Role>,
}

impl Names {
    /// Reads the names of the kernel whose text is lines `lines` of `text`. A comment that is not of these forms is
    /// a comment.
    pub(crate) fn read(text: &str, lines: std::ops::Range<u32>) -> Names {
        let mut names = Names::default();
        let mut open: Vec<Role> = Vec::new();
        for (number, line) in (1u32..).zip(text.lines()).filter(|(number, _)| lines.contains(number)) {
            let Some(comment) = line.trim_start().strip_prefix("//@ ") else { continue };
            let words: Vec<&str> = comment.split_whitespace().collect();
            match words[..] {
                ["shared", name, start, bytes, count] => {
                    if let (Ok(start), Ok(bytes), Ok(count)) = (start.parse(), bytes.parse(), count.parse()) {
                        names.regions.push(Region { name: name.to_owned(), start, bytes, count });
                    }
                }
                ["role", ..] => {
                    let name = words[1..].join(" ");
                    open.push(Role { name, lines: number..lines.end });
                }
                ["end", ..] => {
                    if let Some(mut role) = open.pop() {
                        role.lines.end = number;
                        names.roles.push(role);
                    }
                }
                _ => {}
            }
        }
        names.roles.append(&mut open);
        names.roles.sort_by_key(|role| role.lines.start);
        names
    }

    /// The innermost role that a line belongs to.
    pub(crate) fn role(&self, line: u32) -> Option<&str> {
        self.roles.iter().rev().find(|role| role.lines.contains(&line)).map(|role| role.name.as_str())
    }

    /// What lies at this byte of dynamic shared memory.
    pub(crate) fn shared(&self, at: u32) -> Option<String> {
        let inside = |r: &&Region| {
            at.checked_sub(r.start)
                .is_some_and(|d| r.bytes > 0 && u64::from(d / r.bytes) < u64::from(r.count))
        };
        let r = self.regions.iter().find(inside)?;
        Some(if r.count == 1 { r.name.clone() } else { format!("{}[{}]", r.name, (at - r.start) / r.bytes) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_from_comments() {
        let text = "x\n//@ shared full 64 8 2\n//@ shared out 128 512 1\n//@ role warps that load\na\n//@ role one lane\nb\n//@ end\nc\n//@ end\nd\n//@ shared bad\n";
        let names = Names::read(text, 1..100);
        let role = |line| names.role(line);
        assert_eq!(
            [role(5), role(7), role(9), role(11)],
            [Some("warps that load"), Some("one lane"), Some("warps that load"), None]
        );
        let at = |at| names.shared(at);
        assert_eq!(
            [at(64), at(79), at(80), at(639)],
            [Some("full[0]".into()), Some("full[1]".into()), None, Some("out".into())]
        );
        assert_eq!(Names::read(text, 3..4).regions.len(), 1, "only those of its lines");
    }
}
