//! What stands in quotes in a Rust file, and inside which calls: enough of the language's grammar for that, and no more.

/// A text in quotes, as it is shown.
pub(super) struct Literal {
    pub(super) text: String,
    /// What stands before each bracket that is open around it, the innermost last: `format!`, `Err`, `#` for an attribute.
    pub(super) within: Vec<String>,
    /// Whether the innermost bracket is that of a list.
    pub(super) in_list: bool,
}

/// All texts of a file, comments left out.
pub(super) fn literals(code: &str) -> Vec<Literal> {
    let mut found = Vec::new();
    let mut open: Vec<(char, String)> = Vec::new();
    let mut at = 0;
    while let Some(letter) = code[at..].chars().next() {
        let rest = &code[at..];
        let passed = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(len) = character(rest) {
            len
        } else if let Some((text, len)) = quoted(rest, &code[..at]) {
            let in_list = open.last().is_some_and(|it| it.0 == '[' && !it.1.ends_with('!'));
            let within = open.iter().map(|it| it.1.clone()).collect();
            found.push(Literal { text, within, in_list });
            len
        } else {
            match letter {
                '(' | '[' | '{' => open.push((letter, before(&code[..at]))),
                ')' | ']' | '}' => drop(open.pop()),
                _ => {}
            }
            letter.len_utf8()
        };
        at += passed;
    }
    found
}

/// The text that begins here, and how long it is in the code.
fn quoted(rest: &str, above: &str) -> Option<(String, usize)> {
    if let Some(after) = rest.strip_prefix('"') {
        let mut escaped = false;
        let end = after.find(|it| {
            let ends = it == '"' && !escaped;
            escaped = it == '\\' && !escaped;
            ends
        })?;
        return Some((shown(&unescaped(&after[..end])), end + 2));
    }
    // `r#"…"#`, unless the letter is the last of a name.
    let after = rest.strip_prefix('r')?;
    let marks = after.len() - after.trim_start_matches('#').len();
    let text = after[marks..].strip_prefix('"')?;
    if above.ends_with(|it: char| it.is_alphanumeric() || it == '_') {
        return None;
    }
    let end = text.find(&format!("\"{}", "#".repeat(marks)))?;
    Some((shown(&text[..end]), 1 + marks + 1 + end + 1 + marks))
}

/// A character in quotes, which may be a quote itself, and how long it is. A lifetime is none.
fn character(rest: &str) -> Option<usize> {
    let after = rest.strip_prefix('\'')?;
    let escape = after.starts_with('\\');
    let mut letters = after.char_indices().skip(if escape { 2 } else { 1 });
    let end =
        if escape { letters.find(|it| it.1 == '\'')?.0 } else { letters.next().filter(|it| it.1 == '\'')?.0 };
    Some(1 + end + 1)
}

fn unescaped(text: &str) -> String {
    let (mut out, mut escaped) = (String::new(), false);
    for letter in text.chars() {
        match letter {
            // A line that is continued; its blanks go in `shown`.
            '\n' if escaped => out.push('\n'),
            'n' if escaped => out.push('\u{b6}'),
            _ if escaped => out.push(letter),
            '\\' => {}
            _ => out.push(letter),
        }
        escaped = letter == '\\' && !escaped;
    }
    out
}

/// A format as a reader meets it: `…` for what is filled in.
fn shown(format: &str) -> String {
    // A line that is continued: the blanks before its rest are not part of it.
    let format: String =
        format.split('\n').enumerate().map(|(i, it)| if i == 0 { it } else { it.trim_start() }).collect();
    let (mut out, mut rest) = (String::new(), format.as_str());
    while let Some((before, after)) = rest.split_once('{') {
        out.push_str(before);
        if let Some(after) = after.strip_prefix('{') {
            out.push('{');
            rest = after;
        } else {
            out.push('…');
            rest = after.split_once('}').map_or("", |it| it.1);
        }
    }
    out.push_str(rest);
    out.replace("}}", "}")
}

/// The name that a bracket belongs to.
fn before(code: &str) -> String {
    let code = code.trim_end();
    let name = |it: char| it.is_alphanumeric() || "_:.!#".contains(it);
    let start = code.char_indices().rev().take_while(|it| name(it.1)).last().map_or(code.len(), |it| it.0);
    code[start..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(code: &str) -> Vec<(String, Vec<String>)> {
        literals(code).into_iter().map(|it| (it.text, it.within)).collect()
    }

    #[test]
    fn texts_are_found_with_the_calls_around_them() {
        let code = "fn a<'a>(x: &'a str) -> char {\n    // \"a comment\"\n    let y = '\"';\n    \
            Err(format!(\"no {x} \\\n        here\\n\"))\n}\n";
        let within = ["char", "Err", "format!"].map(str::to_owned).to_vec();
        assert_eq!(seen(code), [("no … here\u{b6}".to_owned(), within)]);
    }

    #[test]
    fn raw_texts_and_braces_are_read() {
        let code = "const A: &str = r#\"a \"b\" {{c}}\"#; const BAR: &str = \"{d:?} \\\"e\\\"\";";
        let texts: Vec<String> = seen(code).into_iter().map(|it| it.0).collect();
        assert_eq!(texts, ["a \"b\" {c}", "… \"e\""]);
    }

    #[test]
    fn an_attribute_and_a_list_are_known() {
        let all = literals("#[must_use = \"x\"]\nfn a() { [\"y\"]; vec![\"z\"]; }");
        assert_eq!(all[0].within, ["#"]);
        assert_eq!(all.iter().map(|it| it.in_list).collect::<Vec<_>>(), [true, true, false]);
    }
}
