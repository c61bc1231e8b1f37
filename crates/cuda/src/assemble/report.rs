//! Parsed output of `ptxas -v`.

/// The report of one run of the assembler.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// One for every kernel, in the order of the assembler.
    pub entries: Vec<EntryReport>,
    /// The numbered messages, such as C7508.
    pub notices: Vec<Notice>,
    /// The whole text.
    pub log: String,
}

/// What the assembler says about one kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EntryReport {
    /// Its name.
    pub name: String,
    /// Registers per thread.
    pub registers: u32,
    /// Stack per thread.
    pub stack_bytes: u32,
    /// Bytes that spilled registers write.
    pub spill_store_bytes: u32,
    /// Bytes that spilled registers read.
    pub spill_load_bytes: u32,
    /// Named barriers.
    pub barriers: u32,
    /// Static shared memory per block.
    pub shared_bytes: u32,
}

/// A numbered message of the assembler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Its number, with the letter: `C7508`.
    pub code: String,
    /// Its text.
    pub text: String,
}

/// Messages that mean ruined code: `setmaxnreg` ignored (C7504, C7508), `wgmma` serialized (C7510).
const RUINOUS: [&str; 3] = ["C7504", "C7508", "C7510"];

impl Report {
    /// Reads what `ptxas -v`, or the driver's compiler with a verbose log, wrote.
    ///
    /// ```
    /// use oxigemm_cuda::assemble::Report;
    ///
    /// let report = Report::parse("\
    /// ptxas info    : Compiling entry function 'gemm' for 'sm_90a'
    /// ptxas info    : Function properties for gemm
    ///     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
    /// ptxas info    : Used 168 registers, used 2 barriers, 1024 bytes smem
    /// ");
    /// assert_eq!(report.entries[0].registers, 168);
    /// assert_eq!(report.fault(), None);
    /// ```
    pub fn parse(log: &str) -> Self {
        let mut report = Self { log: log.trim_end().to_owned(), ..Self::default() };
        for line in log.lines() {
            report.read(line.trim());
        }
        report
    }

    fn read(&mut self, line: &str) {
        if let Some(rest) = after(line, "Compiling entry function '") {
            let name = rest.split('\'').next().unwrap_or_default().to_owned();
            self.entries.push(EntryReport { name, ..EntryReport::default() });
        } else if line.contains("bytes stack frame") {
            // A function that a kernel calls has such a line too: the worst one counts.
            if let Some(entry) = self.entries.last_mut() {
                entry.stack_bytes = entry.stack_bytes.max(before(line, "bytes stack frame"));
                entry.spill_store_bytes = entry.spill_store_bytes.max(before(line, "bytes spill stores"));
                entry.spill_load_bytes = entry.spill_load_bytes.max(before(line, "bytes spill loads"));
            }
        } else if let Some(rest) = after(line, "Used ")
            && rest.contains(" registers")
        {
            if let Some(entry) = self.entries.last_mut() {
                entry.registers = before(rest, "registers");
                entry.barriers = before(rest, "barriers");
                entry.shared_bytes = before(rest, "bytes smem");
                entry.stack_bytes = entry.stack_bytes.max(before(rest, "bytes cumulative stack size"));
            }
        } else if let Some(rest) = after(line, "(C")
            && let Some((code, text)) = rest.split_once(')')
            && !code.is_empty()
            && code.bytes().all(|b| b.is_ascii_digit())
        {
            self.notices.push(Notice { code: format!("C{code}"), text: text.trim().to_owned() });
        }
    }

    /// Why this code must not be used, in one sentence; nothing where it may be.
    pub fn fault(&self) -> Option<String> {
        if let Some(notice) = self.notices.iter().find(|n| RUINOUS.contains(&n.code.as_str())) {
            return Some(format!("{}: {}", notice.code, notice.text));
        }
        self.entries.iter().find_map(|e| {
            if e.spill_store_bytes + e.spill_load_bytes > 0 {
                let (stores, loads) = (e.spill_store_bytes, e.spill_load_bytes);
                return Some(format!(
                    "{} spills registers ({stores} bytes stored, {loads} bytes loaded)",
                    e.name
                ));
            }
            (e.stack_bytes > 0).then(|| format!("{} has a stack of {} bytes", e.name, e.stack_bytes))
        })
    }
}

fn after<'a>(line: &'a str, marker: &str) -> Option<&'a str> {
    line.split_once(marker).map(|(_, rest)| rest)
}

/// The number that stands before a phrase, 0 where there is none.
fn before(line: &str, phrase: &str) -> u32 {
    let Some((head, _)) = line.split_once(phrase) else { return 0 };
    let number = head.trim_end().rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    number.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_kernels_are_told_apart() {
        let report = Report::parse(
            "ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'two' for 'sm_90a'
ptxas info    : Function properties for two
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 4 registers, used 1 barriers, 256 bytes smem, 400 bytes cmem[0]
ptxas info    : Compile time = 2.240 ms
ptxas info    : Compiling entry function 'one' for 'sm_90a'
ptxas info    : Function properties for one
    304 bytes stack frame, 300 bytes spill stores, 296 bytes spill loads
ptxas info    : Used 24 registers, used 0 barriers, 304 bytes cumulative stack size
",
        );
        let two = EntryReport {
            name: "two".into(),
            registers: 4,
            barriers: 1,
            shared_bytes: 256,
            ..EntryReport::default()
        };
        let one = EntryReport {
            name: "one".into(),
            registers: 24,
            stack_bytes: 304,
            spill_store_bytes: 300,
            spill_load_bytes: 296,
            ..EntryReport::default()
        };
        assert_eq!(report.entries, [two, one]);
        assert_eq!(report.fault().unwrap(), "one spills registers (300 bytes stored, 296 bytes loaded)");
    }

    #[test]
    fn a_stack_without_spills_is_a_fault_too() {
        let report = Report::parse(
            "ptxas info    : Compiling entry function 'k' for 'sm_90a'
    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads",
        );
        assert_eq!(report.fault().unwrap(), "k has a stack of 8 bytes");
    }

    #[test]
    fn only_the_ruinous_notices_are_faults() {
        for code in ["C7504", "C7508", "C7510"] {
            let report =
                Report::parse(&format!("ptxas info    : ({code}) Potential Performance Loss: so what."));
            assert_eq!(report.fault().unwrap(), format!("{code}: Potential Performance Loss: so what."));
        }
        let report = Report::parse("ptxas info    : (C7519) warpgroup.arrive is injected in around line 12");
        assert_eq!(report.notices[0].code, "C7519");
        assert_eq!(report.fault(), None);
    }

    #[test]
    fn a_text_that_is_no_report_is_an_empty_one() {
        for text in
            ["", "bytes stack frame", "Used registers", "(C) x", "(Cx) y", "Compiling entry function '"]
        {
            assert_eq!(Report::parse(text).fault(), None, "{text}");
        }
    }
}
