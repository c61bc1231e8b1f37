//! Paths in Rust source that start at `crate`, `super` or `self`.

/// A path, from the root of the crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Import {
    pub(crate) line: usize,
    pub(crate) path: Vec<String>,
}

/// The paths of a file that holds `module`, in `use` lines and elsewhere.
pub(crate) fn paths(text: &str, module: &[String]) -> Vec<Import> {
    let tokens = tokens(text);
    let word = |i: usize| tokens.get(i).map_or("", |t: &Token| t.text.as_str());
    let mut imports = Vec::new();
    // Inline modules, with the depth of braces at which each ends.
    let mut module = module.to_vec();
    let (mut depth, mut inline) = (0, Vec::new());
    for i in 0..tokens.len() {
        match word(i) {
            "mod" if word(i + 2) == "{" => {
                module.push(word(i + 1).to_owned());
                inline.push(depth);
            }
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                if inline.last() == Some(&depth) {
                    inline.pop();
                    module.pop();
                }
            }
            "crate" | "super" | "self" if word(i + 1) == "::" && (i == 0 || word(i - 1) != "::") => {
                let mut prefix = if word(i) == "crate" { Vec::new() } else { module.clone() };
                let mut at = i;
                while matches!(word(at), "crate" | "super" | "self") && word(at + 1) == "::" {
                    if word(at) == "super" {
                        prefix.pop();
                    }
                    at += 2;
                }
                tree(&tokens, &mut at, &prefix, &mut imports);
            }
            _ => {}
        }
    }
    imports
}

/// One path, or those of a group in braces.
fn tree(tokens: &[Token], at: &mut usize, prefix: &[String], imports: &mut Vec<Import>) {
    let Some(token) = tokens.get(*at) else { return };
    *at += 1;
    if token.text == "{" {
        while tokens.get(*at).is_some_and(|t| t.text != "}") {
            if tokens[*at].text == "," {
                *at += 1;
            } else {
                tree(tokens, at, prefix, imports);
                // A new name.
                while tokens.get(*at).is_some_and(|t| t.text != "," && t.text != "}") {
                    *at += 1;
                }
            }
        }
        *at += 1;
        return;
    }
    let mut path = prefix.to_vec();
    if is_word(&token.text) && token.text != "self" {
        path.push(token.text.clone());
        if tokens.get(*at).is_some_and(|t| t.text == "::") {
            *at += 1;
            return tree(tokens, at, &path, imports);
        }
    }
    // `super::*` in a module of the root names nothing in particular.
    if !path.is_empty() {
        imports.push(Import { line: token.line, path });
    }
}

struct Token {
    line: usize,
    text: String,
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// Words, `::` and other characters, without comments, literals and lifetimes.
fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let starts = |at: usize, with: &str| with.chars().enumerate().all(|(i, c)| chars.get(at + i) == Some(&c));
    let (mut tokens, mut at, mut line) = (Vec::new(), 0, 1);
    while at < chars.len() {
        let start = at;
        at = match chars[at] {
            '/' if starts(at, "//") => (at..chars.len()).find(|i| chars[*i] == '\n').unwrap_or(chars.len()),
            '/' if starts(at, "/*") => block_comment(&chars, at),
            '"' => string(&chars, at),
            'r' if starts(at, "r\"") || starts(at, "r#") => match raw_string(&chars, at) {
                Some(end) => end,
                None => at + 2,
            },
            '\'' if starts(at + 1, "\\") => {
                (at + 3..chars.len()).find(|i| chars[*i] == '\'').map_or(at, |i| i) + 1
            }
            '\'' if chars.get(at + 2) == Some(&'\'') => at + 3,
            '\'' => at + 1,
            ':' if starts(at, "::") => {
                tokens.push(Token { line, text: "::".to_owned() });
                at + 2
            }
            c if is_word(&c.to_string()) => {
                let end = (at..chars.len()).find(|i| !is_word(&chars[*i].to_string())).unwrap_or(chars.len());
                // A lifetime is no word.
                if at == 0 || chars[at - 1] != '\'' {
                    tokens.push(Token { line, text: chars[at..end].iter().collect() });
                }
                end
            }
            c => {
                if !c.is_whitespace() {
                    tokens.push(Token { line, text: c.to_string() });
                }
                at + 1
            }
        };
        line += chars[start..at.min(chars.len())].iter().filter(|c| **c == '\n').count();
    }
    tokens
}

/// The end of a string that starts here.
fn string(chars: &[char], start: usize) -> usize {
    let mut at = start + 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// The end of a raw string that starts here; none where it is a raw identifier.
fn raw_string(chars: &[char], start: usize) -> Option<usize> {
    let hashes = chars[start + 1..].iter().take_while(|c| **c == '#').count();
    let first = start + 1 + hashes;
    if chars.get(first) != Some(&'"') {
        return None;
    }
    let closes = |i: &usize| {
        chars[*i] == '"' && chars[i + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes
    };
    Some((first + 1..chars.len()).find(closes).map_or(chars.len(), |i| i + 1 + hashes))
}

/// The end of a comment, with those inside it.
fn block_comment(chars: &[char], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0);
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (at, depth) = (at + 2, depth + 1),
            ('*', Some('/')) => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, module: &[&str]) -> Vec<String> {
        let module: Vec<String> = module.iter().map(|m| (*m).to_owned()).collect();
        paths(text, &module).iter().map(|i| format!("{}:{}", i.line, i.path.join("::"))).collect()
    }

    #[test]
    fn groups_aliases_and_inline_paths() {
        let text = "use crate::a::{self, B as C,\n    d::{E, f::*}};\npub(crate) fn g() -> crate::h::I<u8> { crate::j::<u8>() }";
        assert_eq!(found(text, &["m"]), ["1:a", "1:a::B", "2:a::d::E", "2:a::d::f", "3:h::I", "3:j"]);
    }

    #[test]
    fn relative_paths_know_their_module() {
        let text = "use super::x::Y;\nuse self::z::W;\nmod tests {\n    use super::*;\n    use super::super::v;\n}\nuse super::super::u;";
        assert_eq!(found(text, &["a", "b"]), ["1:a::x::Y", "2:a::b::z::W", "4:a::b", "5:a::v", "7:u"]);
    }

    #[test]
    fn comments_and_literals_are_left_out() {
        let text = "// crate::a\n/* crate::b /* */ crate::c */ /// [`crate::d`]\nlet s = \"crate::e \\\" crate::f\";\n\
                    let r = r#\"crate::g \" {\"#; let c = '\"'; let l: &'crate str = '{'; r#match; crate::h;";
        assert_eq!(found(text, &["m"]), ["4:h"]);
    }
}
