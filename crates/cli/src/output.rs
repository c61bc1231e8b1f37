//! Tables for people, JSON for machines, and progress for the patient.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// Prints a value as one line of JSON.
pub fn print_json(value: &impl Serialize) {
    let text = serde_json::to_string(value).expect("every result is made of numbers and names");
    print_line(&text);
}

/// Prints a line. What cannot be written is remembered: see [`flush`].
pub fn print_line(line: &str) {
    note_failure(writeln!(io::stdout().lock(), "{line}"));
}

/// Prints an error. Where that fails too, the exit status has to do.
pub fn print_error(text: &str) {
    let _ = writeln!(io::stderr().lock(), "error: {text}");
}

/// Whether something could not be written to standard output.
static FAILED: AtomicBool = AtomicBool::new(false);

/// Remembers and reports a write that failed, and says whether it went well. A closed pipe is not an error of ours.
pub fn note_failure(written: io::Result<()>) -> bool {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            if !FAILED.swap(true, Ordering::Relaxed) {
                print_error(&format!("standard output cannot be written to: {error}"));
            }
            false
        }
        _ => true,
    }
}

/// Writes what is still buffered, and says whether everything could be written.
pub fn flush() -> bool {
    note_failure(io::stdout().flush()) && !FAILED.load(Ordering::Relaxed)
}

/// A table whose columns are as wide as their content. Text is aligned left, numbers right.
#[derive(Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub fn new<'a>(headings: impl IntoIterator<Item = &'a str>) -> Table {
        Table { rows: vec![headings.into_iter().map(str::to_owned).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Prints it.
    pub fn print(&self) {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let number = |cell: &str| cell.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+');
        let right: Vec<bool> = (0..columns)
            .map(|column| self.rows.iter().skip(1).filter_map(|row| row.get(column)).all(|cell| number(cell)))
            .collect();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).zip(&right).map(|((cell, width), right)| {
                if *right { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            });
            print_line(cells.collect::<Vec<_>>().join("  ").trim_end());
        }
    }
}

/// A table whose rows are printed as they come, so the widths of its columns are known before their content.
pub struct LiveTable {
    widths: Vec<usize>,
}

impl LiveTable {
    /// Prints the headings of a table. The first column, of names, is as wide as the longest of them; others are of
    /// numbers.
    pub fn new<'a>(headings: impl IntoIterator<Item = &'a str>, longest_name: usize) -> LiveTable {
        let headings: Vec<&str> = headings.into_iter().collect();
        let width = |(i, heading): (usize, &&str)| heading.len().max(if i == 0 { longest_name } else { 8 });
        let table = LiveTable { widths: headings.iter().enumerate().map(width).collect() };
        print_line(&table.line(headings));
        table
    }

    /// Prints a row, past a progress bar.
    pub fn row(&self, bar: &ProgressBar, cells: impl IntoIterator<Item = String>) {
        bar.suspend(|| print_line(&self.line(cells)));
    }

    fn line<T: AsRef<str>>(&self, cells: impl IntoIterator<Item = T>) -> String {
        let aligned = cells.into_iter().zip(&self.widths).enumerate().map(|(i, (cell, width))| match i {
            0 => format!("{:<width$}", cell.as_ref()),
            _ => format!("{:>width$}", cell.as_ref()),
        });
        aligned.collect::<Vec<_>>().join("  ")
    }
}

/// A progress bar on stderr; nothing where that is not a terminal.
pub fn progress(steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len}  {msg:40!}  {elapsed}/{duration}");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Does work that takes long, with what it is and its time on stderr, where that is a terminal.
pub fn waiting<T>(what: String, work: impl FnOnce() -> T) -> T {
    let spinner = ProgressBar::new_spinner().with_message(what);
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}  {elapsed}") {
        spinner.set_style(style);
    }
    spinner.enable_steady_tick(Duration::from_millis(200));
    let done = work();
    spinner.finish_and_clear();
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_left_and_numbers_right_in_every_line() {
        let table = LiveTable::new(["case", "us"], 6);
        assert_eq!(table.line(["copy", "12.5"]), "copy        12.5");
        assert_eq!(table.line(["longer than that", "1"]), "longer than that         1");
    }
}
