//! `vprintf`: what a kernel prints.

use super::Issue;
use super::access::Access;
use super::context::Cx;
use super::warp::Warp;
use crate::decode::control::{Passed, Print};
use crate::error::Fault;
use crate::lanes::lanes;
use crate::text::ast::Space;

/// Bytes that a run may print, as many as a GPU's buffer has; what follows is lost there too.
const MOST: usize = 1 << 20;
/// Longest format and longest string argument.
const LONGEST: usize = 4096;

/// Prints, lane by lane.
pub(super) fn print(warp: &mut Warp, cx: &mut Cx<'_>, call: &Print, at: Issue) -> Result<(), Fault> {
    for lane in lanes(at.active) {
        let mut access = Access::new(warp.index, at.pc, None);
        let format = passed(warp, lane, call.format);
        let mut reader =
            Reader { warp, cx, access: &mut access, lane, arguments: passed(warp, lane, call.arguments) };
        let format = reader.string(format)?;
        let (text, count) = reader.formatted(&format)?;
        if cx.output.len() + text.len() <= MOST {
            cx.output.push_str(&text);
        }
        match call.result {
            Some(Passed::Local(to)) => {
                let base = lane * warp.local_bytes + to as usize;
                warp.local[base..base + 4].copy_from_slice(&count.to_le_bytes());
            }
            Some(Passed::Value(_)) | None => {}
        }
        if let Some(register) = call.register {
            warp.set(register, lane, u64::from(count));
        }
    }
    Ok(())
}

/// A pointer that is passed.
fn passed(warp: &Warp, lane: usize, value: Passed) -> u64 {
    match value {
        Passed::Local(at) => {
            let base = lane * warp.local_bytes + at as usize;
            crate::memory::word(&warp.local[base..base + 8])
        }
        Passed::Value(src) => warp.value(src, lane),
    }
}

/// Reads what a lane passes.
struct Reader<'a, 'c, 'm> {
    warp: &'a Warp,
    cx: &'a mut Cx<'c>,
    access: &'m mut Access,
    lane: usize,
    /// The address of the next argument.
    arguments: u64,
}

impl Reader<'_, '_, '_> {
    fn bytes<const N: usize>(&mut self, address: u64) -> Result<[u8; N], Fault> {
        let mut bytes = [0; N];
        let location = self.cx.resolve(self.warp, Space::Generic, address)?;
        self.cx.read(self.warp, self.lane, self.access, location, &mut bytes)?;
        Ok(bytes)
    }

    fn string(&mut self, mut address: u64) -> Result<String, Fault> {
        let mut text = Vec::new();
        while text.len() < LONGEST {
            match self.bytes::<1>(address)? {
                [0] => break,
                [byte] => text.push(byte),
            }
            address += 1;
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// An argument of 4 or 8 bytes, each aligned to its size.
    fn argument(&mut self, size: u64) -> Result<u64, Fault> {
        let at = self.arguments.next_multiple_of(size);
        self.arguments = at + size;
        Ok(match size {
            4 => u64::from(u32::from_le_bytes(self.bytes(at)?)),
            _ => u64::from_le_bytes(self.bytes(at)?),
        })
    }

    /// The text of a format with its arguments, and how many there are.
    fn formatted(&mut self, format: &str) -> Result<(String, u32), Fault> {
        let (mut out, mut count) = (String::new(), 0);
        let mut rest = format.chars().peekable();
        while let Some(c) = rest.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut spec = Spec::default();
            while let Some(flag) = rest.next_if(|c| "-+ #0".contains(*c)) {
                spec.flags.push(flag);
            }
            spec.width = self.number(&mut rest)?.unwrap_or(0);
            if rest.next_if_eq(&'.').is_some() {
                spec.precision = Some(self.number(&mut rest)?.unwrap_or(0));
            }
            let mut wide = false;
            while let Some(size) = rest.next_if(|c| "hlLjzt".contains(*c)) {
                wide |= matches!(size, 'l' | 'j' | 'z' | 't');
            }
            let Some(kind) = rest.next() else { break };
            if kind == '%' {
                out.push('%');
                continue;
            }
            let text = match kind {
                'd' | 'i' => {
                    let value = self.argument(if wide { 8 } else { 4 })?;
                    let value = if wide { value as i64 } else { i64::from(value as i32) };
                    spec.number(&value.unsigned_abs().to_string(), value < 0)
                }
                'u' => spec.number(&self.argument(if wide { 8 } else { 4 })?.to_string(), false),
                'x' => spec.number(&format!("{:x}", self.argument(if wide { 8 } else { 4 })?), false),
                'X' => spec.number(&format!("{:X}", self.argument(if wide { 8 } else { 4 })?), false),
                'o' => spec.number(&format!("{:o}", self.argument(if wide { 8 } else { 4 })?), false),
                'p' => spec.padded(&format!("{:#x}", self.argument(8)?)),
                'c' => spec.padded(&char::from(self.argument(4)? as u8).to_string()),
                's' => {
                    let address = self.argument(8)?;
                    let mut text = self.string(address)?;
                    if let Some(most) = spec.precision {
                        text = text.chars().take(most).collect();
                    }
                    spec.padded(&text)
                }
                'f' | 'F' | 'e' | 'E' | 'g' | 'G' | 'a' | 'A' => {
                    spec.float(kind, f64::from_bits(self.argument(8)?))
                }
                other => format!("%{other}"),
            };
            count += 1;
            out.push_str(&text);
        }
        Ok((out, count))
    }

    /// A width or a precision: digits, or `*` for an argument.
    fn number(
        &mut self,
        rest: &mut std::iter::Peekable<std::str::Chars<'_>>,
    ) -> Result<Option<usize>, Fault> {
        if rest.next_if_eq(&'*').is_some() {
            return Ok(Some((self.argument(4)? as usize).min(LONGEST)));
        }
        let mut digits = String::new();
        while let Some(digit) = rest.next_if(char::is_ascii_digit) {
            digits.push(digit);
        }
        Ok(digits.parse().ok().map(|n: usize| n.min(LONGEST)))
    }
}

/// Flags, width and precision of a conversion.
#[derive(Default)]
struct Spec {
    flags: String,
    width: usize,
    precision: Option<usize>,
}

impl Spec {
    fn has(&self, flag: char) -> bool {
        self.flags.contains(flag)
    }

    fn padded(&self, text: &str) -> String {
        let width = self.width;
        if self.has('-') { format!("{text:<width$}") } else { format!("{text:>width$}") }
    }

    /// Digits with their sign, padded.
    fn number(&self, digits: &str, negative: bool) -> String {
        let digits = match self.precision {
            Some(least) => format!("{digits:0>least$}"),
            None => digits.to_owned(),
        };
        let sign = match (negative, self.has('+'), self.has(' ')) {
            (true, ..) => "-",
            (_, true, _) => "+",
            (.., true) => " ",
            _ => "",
        };
        if self.has('0') && !self.has('-') && self.precision.is_none() {
            let width = self.width.saturating_sub(sign.len());
            return format!("{sign}{digits:0>width$}");
        }
        self.padded(&format!("{sign}{digits}"))
    }

    fn float(&self, kind: char, value: f64) -> String {
        let precision = self.precision.unwrap_or(6).min(100);
        let size = value.abs();
        let digits = match kind.to_ascii_lowercase() {
            _ if !value.is_finite() => if value.is_nan() { "nan" } else { "inf" }.to_owned(),
            'f' => format!("{size:.precision$}"),
            'e' => exponent(&format!("{size:.precision$e}")),
            'a' => format!("{:#x}", size.to_bits()),
            _ => general(size, precision.max(1), self.has('#')),
        };
        let digits = if kind.is_ascii_uppercase() { digits.to_uppercase() } else { digits };
        let plain = Spec { flags: self.flags.clone(), width: self.width, precision: None };
        let plain = match value.is_finite() {
            true => plain,
            false => Spec { flags: self.flags.replace('0', ""), ..plain },
        };
        plain.number(&digits, value.is_sign_negative() && !value.is_nan())
    }
}

/// `1.5e3` as C writes it: `1.5e+03`.
fn exponent(text: &str) -> String {
    let Some((digits, power)) = text.split_once('e') else { return text.to_owned() };
    let (sign, power) = power.strip_prefix('-').map_or(('+', power), |power| ('-', power));
    format!("{digits}e{sign}{power:0>2}")
}

/// `%g`: the shorter of two forms, without zeros at its end.
fn general(value: f64, precision: usize, keep: bool) -> String {
    let scientific = format!("{value:.*e}", precision - 1);
    let power: i32 = scientific.split_once('e').and_then(|(_, power)| power.parse().ok()).unwrap_or(0);
    let trimmed = |text: &str| {
        if keep || !text.contains('.') {
            return text.to_owned();
        }
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    if power < -4 || power >= precision as i32 {
        let (digits, power) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        return exponent(&format!("{}e{power}", trimmed(digits)));
    }
    trimmed(&format!("{value:.*}", (precision as i32 - 1 - power).max(0) as usize))
}
