//! Names that a kernel's text gives to its parts, in comments that no assembler reads.
//!
//! ```text
//! //@ shared full 65536 8 4      the four 8-byte things at byte 65536 of dynamic shared memory
//! //@ shared a 1024 512 4 2048   the same where the next begins after 2048 bytes
//! //@ role producer              what follows is done by warps of this role...
//! //@ end producer               ...up to here
//! ```
//!
//! The timeline has a track for every role, and messages say `full[2]` for the third barrier.

/// Equal things at equal distances in dynamic shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Region {
    name: String,
    start: u32,
    bytes: u32,
    count: u32,
    /// From the beginning of one to that of the next.
    pitch: u32,
}

impl Region {
    /// Reads a region from the words behind `shared`.
    fn read(words: &[&str]) -> Option<Region> {
        let (name, numbers) = words.split_first()?;
        let numbers: Vec<u32> = numbers.iter().map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let (start, bytes, count, pitch) = match numbers[..] {
            [start, bytes, count] => (start, bytes, count, bytes),
            [start, bytes, count, pitch] => (start, bytes, count, pitch),
            _ => return None,
        };
        Some(Region { name: (*name).to_owned(), start, bytes, count, pitch })
    }

    /// Which of its things a byte belongs to.
    fn index(&self, at: u32) -> Option<u32> {
        let distance = at.checked_sub(self.start)?;
        let index = distance.checked_div(self.pitch)?;
        (index < self.count && distance % self.pitch < self.bytes).then_some(index)
    }
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
                ["shared", ..] => names.regions.extend(Region::read(&words[1..])),
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
        let (r, index) = self.regions.iter().find_map(|r| Some((r, r.index(at)?)))?;
        Some(if r.count == 1 { r.name.clone() } else { format!("{}[{index}]", r.name) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_from_comments() {
        let text = "x\n//@ shared full 64 8 2\n//@ shared out 128 512 1\n//@ role warps that load\na\n//@ role one lane\nb\n//@ end\nc\n//@ end\nd\n//@ shared bad\n//@ shared b 1024 64 3 256\n";
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
        assert_eq!(
            [at(1023), at(1024), at(1087), at(1088), at(1536), at(1792)],
            [None, Some("b[0]".into()), Some("b[0]".into()), None, Some("b[2]".into()), None],
            "things that do not touch"
        );
        assert_eq!(Names::read(text, 3..4).regions.len(), 1, "only those of its lines");
    }
}
