//! Reading the characters of PTX: names, numbers, strings, comments.
//!
//! Nothing here indexes past the end, and every loop consumes input.

use crate::error::{ParseError, Position};
use crate::text::ast::Operand;

pub(crate) type Result<T> = std::result::Result<T, ParseError>;

/// The text and a place in it.
pub(crate) struct Parser<'a> {
    pub(crate) text: &'a [u8],
    pub(crate) at: usize,
    pub(crate) line: u32,
    pub(crate) line_start: usize,
}

impl<'a> Parser<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        // NULs behind the text are how the driver takes a module.
        Parser { text: text.trim_end_matches('\0').as_bytes(), at: 0, line: 1, line_start: 0 }
    }

    /// Refuses a NUL, and what is not ASCII, also in comments, as assemblers do.
    pub(crate) fn expect_ascii(&self) -> Result<()> {
        let Some(at) = self.text.iter().position(|c| *c == 0 || !c.is_ascii()) else { return Ok(()) };
        let line_start = self.text[..at].iter().rposition(|c| *c == b'\n').map_or(0, |before| before + 1);
        let line = 1 + self.text[..at].iter().filter(|c| **c == b'\n').count() as u32;
        let position = Position { line, column: (at - line_start + 1) as u32 };
        let what = if self.text[at] == 0 { "a NUL" } else { "a character that is not ASCII" };
        Err(ParseError { at: position, message: format!("{what} in the text") })
    }

    pub(crate) fn position(&self) -> Position {
        Position { line: self.line, column: (self.at - self.line_start + 1) as u32 }
    }

    pub(crate) fn error<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(ParseError { at: self.position(), message: message.into() })
    }

    pub(crate) fn peek(&self) -> u8 {
        self.text.get(self.at).copied().unwrap_or(0)
    }

    pub(crate) fn peek_at(&self, ahead: usize) -> u8 {
        self.text.get(self.at + ahead).copied().unwrap_or(0)
    }

    pub(crate) fn bump(&mut self) {
        if self.at < self.text.len() {
            if self.text[self.at] == b'\n' {
                self.line += 1;
                self.line_start = self.at + 1;
            }
            self.at += 1;
        }
    }

    pub(crate) fn skip_space(&mut self) {
        loop {
            match self.peek() {
                b' ' | b'\t' | b'\r' | b'\n' => self.bump(),
                b'/' if self.peek_at(1) == b'/' => {
                    while self.at < self.text.len() && self.peek() != b'\n' {
                        self.bump();
                    }
                }
                b'/' if self.peek_at(1) == b'*' => {
                    self.bump();
                    self.bump();
                    while self.at < self.text.len() && !(self.peek() == b'*' && self.peek_at(1) == b'/') {
                        self.bump();
                    }
                    self.bump();
                    self.bump();
                }
                // Line markers of a preprocessor.
                b'#' => {
                    while self.at < self.text.len() && self.peek() != b'\n' {
                        self.bump();
                    }
                }
                _ => return,
            }
        }
    }

    pub(crate) fn at_end(&mut self) -> bool {
        self.skip_space();
        self.at >= self.text.len()
    }

    pub(crate) fn eat(&mut self, c: u8) -> bool {
        self.skip_space();
        if self.at < self.text.len() && self.peek() == c {
            self.bump();
            true
        } else {
            false
        }
    }

    pub(crate) fn expect(&mut self, c: u8) -> Result<()> {
        if self.eat(c) {
            Ok(())
        } else {
            self.error(format!("expected `{}`, found {}", c as char, self.found()))
        }
    }

    pub(crate) fn found(&self) -> String {
        if self.at >= self.text.len() {
            "the end of the text".into()
        } else {
            let rest = &self.text[self.at..(self.at + 12).min(self.text.len())];
            let word: String =
                String::from_utf8_lossy(rest).chars().take_while(|c| !c.is_whitespace()).collect();
            format!("`{word}`")
        }
    }

    pub(crate) fn is_name_start(c: u8) -> bool {
        c.is_ascii_alphabetic() || matches!(c, b'_' | b'$' | b'%')
    }

    pub(crate) fn is_name(c: u8) -> bool {
        c.is_ascii_alphanumeric() || matches!(c, b'_' | b'$')
    }

    pub(crate) fn word(&mut self) -> String {
        let start = self.at;
        while Self::is_name(self.peek()) {
            self.bump();
        }
        String::from_utf8_lossy(&self.text[start..self.at]).into_owned()
    }

    /// Decimal digits as they stand, where they make a number.
    pub(crate) fn digits(&mut self) -> Option<u32> {
        let start = self.at;
        while self.peek().is_ascii_digit() {
            self.bump();
        }
        std::str::from_utf8(&self.text[start..self.at]).ok()?.parse().ok()
    }

    pub(crate) fn name(&mut self) -> Result<String> {
        self.skip_space();
        if !Self::is_name_start(self.peek()) {
            return self.error(format!("expected a name, found {}", self.found()));
        }
        let start = self.at;
        self.bump();
        while Self::is_name(self.peek()) {
            self.bump();
        }
        Ok(String::from_utf8_lossy(&self.text[start..self.at]).into_owned())
    }

    /// A modifier after its dot: letters, digits and `::`.
    pub(crate) fn modifier(&mut self) -> Result<String> {
        let start = self.at;
        loop {
            if Self::is_name(self.peek()) {
                self.bump();
            } else if self.peek() == b':' && self.peek_at(1) == b':' {
                self.bump();
                self.bump();
            } else {
                break;
            }
        }
        if self.at == start {
            return self.error("expected a modifier after `.`");
        }
        Ok(String::from_utf8_lossy(&self.text[start..self.at]).into_owned())
    }

    pub(crate) fn directive(&mut self) -> Result<String> {
        self.expect(b'.')?;
        self.modifier()
    }

    pub(crate) fn string(&mut self) -> Result<String> {
        self.expect(b'"')?;
        let start = self.at;
        while self.at < self.text.len() && self.peek() != b'"' {
            self.bump();
        }
        let s = String::from_utf8_lossy(&self.text[start..self.at]).into_owned();
        self.expect(b'"')?;
        Ok(s)
    }

    /// A number: integer in four bases, decimal float, or the exact `0f`/`0d` forms.
    pub(crate) fn number(&mut self) -> Result<Operand> {
        self.skip_space();
        if !self.peek().is_ascii_digit() {
            return self.error(format!("expected a number, found {}", self.found()));
        }
        if self.peek() == b'0'
            && matches!(self.peek_at(1), b'f' | b'F' | b'd' | b'D' | b'x' | b'X' | b'b' | b'B')
        {
            let kind = self.peek_at(1).to_ascii_lowercase();
            self.bump();
            self.bump();
            let word = self.word();
            let digits = word.trim_end_matches(['U', 'u']);
            let radix = if kind == b'b' { 2 } else { 16 };
            let Ok(value) = u64::from_str_radix(digits, radix) else {
                return self.error(format!("`{word}` is not a 64-bit number"));
            };
            return match kind {
                b'f' if digits.len() == 8 => Ok(Operand::F32Bits(value as u32)),
                b'd' if digits.len() == 16 => Ok(Operand::F64Bits(value)),
                b'f' | b'd' => self.error("an exact float takes 8 digits after 0f and 16 after 0d"),
                _ => Ok(Operand::Int(i128::from(value))),
            };
        }
        let start = self.at;
        while self.peek().is_ascii_digit() {
            self.bump();
        }
        let mut float = false;
        if self.peek() == b'.' && self.peek_at(1).is_ascii_digit() {
            float = true;
            self.bump();
            while self.peek().is_ascii_digit() {
                self.bump();
            }
        }
        if matches!(self.peek(), b'e' | b'E')
            && (self.peek_at(1).is_ascii_digit()
                || (matches!(self.peek_at(1), b'+' | b'-') && self.peek_at(2).is_ascii_digit()))
        {
            float = true;
            self.bump();
            self.bump();
            while self.peek().is_ascii_digit() {
                self.bump();
            }
        }
        let text = std::str::from_utf8(&self.text[start..self.at]).unwrap_or("");
        if float {
            return match text.parse() {
                Ok(v) => Ok(Operand::Float(v)),
                Err(_) => self.error(format!("`{text}` is not a number")),
            };
        }
        let parsed = if text.len() > 1 && text.starts_with('0') {
            u64::from_str_radix(&text[1..], 8)
        } else {
            text.parse()
        };
        match parsed {
            Ok(v) => {
                if matches!(self.peek(), b'U' | b'u') {
                    self.bump();
                }
                Ok(Operand::Int(i128::from(v)))
            }
            Err(_) => self.error(format!("`{text}` is not a 64-bit number")),
        }
    }

    pub(crate) fn signed(&mut self) -> Result<i64> {
        let negative = self.eat(b'-');
        match self.number()? {
            Operand::Int(v) => Ok(if negative { (v as i64).wrapping_neg() } else { v as i64 }),
            _ => self.error("expected an integer"),
        }
    }

    pub(crate) fn unsigned32(&mut self) -> Result<u32> {
        match self.number()? {
            Operand::Int(v) if (0..=i128::from(u32::MAX)).contains(&v) => Ok(v as u32),
            _ => self.error("expected a 32-bit unsigned integer"),
        }
    }
}
