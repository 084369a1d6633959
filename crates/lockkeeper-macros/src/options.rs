//! What stands in the brackets of `#[locked(…)]`.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens as _, quote_spanned};
use syn::ext::IdentExt as _;
use syn::parse::{ParseStream, Parser as _};
use syn::spanned::Spanned as _;
use syn::{Error, Expr, ExprLit, Ident, Lit, LitStr, Path, Result, Token};

use crate::nearest;

const KNOWN: &[&str] = &[
    "name", "key", "system", "wait", "ttl", "max_hold", "at_least", "try", "shared", "permits", "warm",
    "cold", "note", "locker", "or", "or_else", "guard", "crate",
];
/// Those that stand alone, without a value.
const FLAGS: &[&str] = &["try", "shared", "warm", "cold"];
const NAME_IT: &str = "say what to lock: `#[locked(\"product:{product_id}\")]` or \
    `#[locked(name = \"product\", key = product_id)]`";

/// Two options that do not go together, and why.
const CLASHES: &[(&str, &str, &str)] = &[
    ("shared", "permits", "`shared` and `permits` both say how the lock is shared; leave one of the two out"),
    (
        "shared",
        "at_least",
        "a lock that is shared cannot be kept for nobody; leave `at_least` or `shared` out",
    ),
    ("permits", "at_least", "permits cannot be kept for nobody; leave `at_least` or `permits` out"),
    ("warm", "cold", "`warm` and `cold` say the opposite; leave one of the two out"),
    ("try", "wait", "`try` does not wait; leave one of the two out"),
    ("or", "or_else", "`or` and `or_else` both say what to answer; leave one of the two out"),
];

/// All that was said, checked as far as it can be without the function.
#[derive(Default)]
pub(crate) struct Options {
    /// One for each lock: its text, and what goes into it.
    pub(crate) formats: Vec<(LitStr, Vec<Expr>)>,
    pub(crate) name: Option<LitStr>,
    pub(crate) key: Option<Expr>,
    pub(crate) system: Option<Expr>,
    pub(crate) wait: Option<TokenStream>,
    pub(crate) ttl: Option<TokenStream>,
    pub(crate) max_hold: Option<TokenStream>,
    pub(crate) at_least: Option<TokenStream>,
    pub(crate) attempt: bool,
    pub(crate) shared: bool,
    /// An expression of type `(u32, u32)`.
    pub(crate) permits: Option<TokenStream>,
    /// Whether it stays after it was given back; else as the locker says.
    pub(crate) warm: Option<bool>,
    /// A format string, or an expression that becomes a text.
    pub(crate) note: Option<Expr>,
    pub(crate) locker: Option<Expr>,
    pub(crate) or: Option<Expr>,
    pub(crate) or_else: Option<Expr>,
    pub(crate) guard: Option<Ident>,
    pub(crate) krate: Option<Path>,
}

pub(crate) fn parse(tokens: TokenStream) -> Result<Options> {
    (|input: ParseStream| read(input)).parse2(tokens)
}

fn read(input: ParseStream) -> Result<Options> {
    let mut options = Options::default();
    let mut seen: Vec<(String, Span)> = Vec::new();
    while !input.is_empty() {
        if text_ahead(input) {
            options.formats.push((input.parse()?, Vec::new()));
        } else if let Some(word) = option_ahead(input)? {
            if seen.iter().any(|it| word == it.0) {
                return Err(Error::new(word.span(), format!("`{word}` is said twice")));
            }
            seen.push((word.to_string(), word.span()));
            options.set(&word, input)?;
        } else {
            let argument = input.parse::<Expr>()?;
            let Some((_, arguments)) = options.formats.last_mut() else {
                return Err(Error::new(argument.span(), NAME_IT));
            };
            arguments.push(argument);
        }
        comma(input)?;
    }
    options.check(&seen)?;
    Ok(options)
}

fn comma(input: ParseStream) -> Result<()> {
    if input.is_empty() {
        return Ok(());
    }
    input.parse::<Token![,]>().map(drop)
}

/// Whether a text comes next that names a lock: one that stands alone, not one that something is done with.
fn text_ahead(input: ParseStream) -> bool {
    let ahead = input.fork();
    ahead.parse::<LitStr>().is_ok() && (ahead.is_empty() || ahead.peek(Token![,]))
}

/// The word of the option that comes next, or `None` if an argument of the format string does.
fn option_ahead(input: ParseStream) -> Result<Option<Ident>> {
    let ahead = input.fork();
    let Ok(word) = ahead.call(Ident::parse_any) else { return Ok(None) };
    let has_value = ahead.peek(Token![=]) && !ahead.peek(Token![==]);
    // Not `warm + 1`, which is an argument that only begins so.
    let stands_alone = ahead.is_empty() || ahead.peek(Token![,]);
    let is_flag = stands_alone && FLAGS.iter().any(|it| word == it);
    if !has_value && !is_flag {
        return Ok(None);
    }
    input.call(Ident::parse_any).map(Some)
}

impl Options {
    /// Whether one lock is taken alone.
    pub(crate) fn is_plain(&self) -> bool {
        !self.shared && self.permits.is_none() && self.formats.len() < 2
    }

    fn set(&mut self, word: &Ident, input: ParseStream) -> Result<()> {
        match word.to_string().as_str() {
            flag if FLAGS.contains(&flag) && input.peek(Token![=]) => {
                return Err(Error::new(word.span(), format!("`{word}` stands alone, without a value")));
            }
            "try" => self.attempt = true,
            "shared" => self.shared = true,
            "warm" => self.warm = Some(true),
            "cold" => self.warm = Some(false),
            "note" => self.note = Some(value(input)?),
            "permits" => self.permits = Some(permits(&value(input)?)?),
            "name" => self.name = Some(name(&value(input)?)?),
            "key" => self.key = Some(value(input)?),
            "system" => self.system = Some(value(input)?),
            "wait" => self.wait = Some(span(&value(input)?)?),
            "ttl" => self.ttl = Some(some_span(word, &value(input)?)?),
            "max_hold" => self.max_hold = Some(some_span(word, &value(input)?)?),
            "at_least" => self.at_least = Some(some_span(word, &value(input)?)?),
            "locker" => self.locker = Some(value(input)?),
            "or" => self.or = Some(value(input)?),
            "or_else" => self.or_else = Some(value(input)?),
            "guard" => {
                input.parse::<Token![=]>()?;
                self.guard = Some(input.parse()?);
            }
            "crate" => {
                input.parse::<Token![=]>()?;
                self.krate = Some(input.call(Path::parse_mod_style)?);
            }
            unknown => return Err(Error::new(word.span(), unknown_option(unknown))),
        }
        Ok(())
    }

    /// Words that do not go together.
    fn check(&self, seen: &[(String, Span)]) -> Result<()> {
        let said = |word: &str| seen.iter().find(|it| it.0 == word).map(|it| it.1);
        if self.formats.is_empty() && self.name.is_none() {
            return Err(Error::new(said("key").unwrap_or_else(Span::call_site), NAME_IT));
        }
        if !self.formats.is_empty()
            && let Some(at) = said("name").or(said("key"))
        {
            return Err(Error::new(at, "the lock has a format string already; leave this out, or that"));
        }
        if self.formats.len() > 1
            && let Some(at) = said("shared").or(said("permits"))
        {
            let text = "this function takes several locks, each of them alone; to share one of them call \
                `locker.lock_all([Wish::read(…), …])` in the body";
            return Err(Error::new(at, text));
        }
        if self.formats.len() > 1
            && let Some(at) = said("at_least").or(said("warm")).or(said("cold"))
        {
            let text =
                "this function takes several locks, and those are given back with its end; leave this out";
            return Err(Error::new(at, text));
        }
        for (one, other, text) in CLASHES {
            if let (Some(_), Some(at)) = (said(one), said(other)) {
                return Err(Error::new(at, text));
            }
        }
        Ok(())
    }
}

fn value(input: ParseStream) -> Result<Expr> {
    input.parse::<Token![=]>()?;
    input.parse()
}

const HOW_MANY: &str = "write how many permits of how many, such as `permits = \"2/5\"`, or two numbers of type `u32`, such \
    as `permits = (2, self.permits_max)`";

/// Permits: text that is read now, or an expression for both numbers.
fn permits(value: &Expr) -> Result<TokenStream> {
    let numbers = match value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => {
            let text = text.value();
            let read =
                |it: &str| it.bytes().all(|it| it.is_ascii_digit()).then(|| it.parse::<u32>().ok()).flatten();
            let both = text.split_once('/').and_then(|(count, of)| Some((read(count)?, read(of)?)));
            Some(both.ok_or_else(|| Error::new(value.span(), HOW_MANY))?)
        }
        Expr::Lit(_) => return Err(Error::new(value.span(), HOW_MANY)),
        Expr::Tuple(tuple) => {
            let number = |it: &Expr| match it {
                Expr::Lit(ExprLit { lit: Lit::Int(it), .. }) => it.base10_parse::<u32>().ok(),
                _ => None,
            };
            let all: Option<Vec<u32>> = tuple.elems.iter().map(number).collect();
            all.and_then(|it| <[u32; 2]>::try_from(it).ok()).map(|[count, of]| (count, of))
        }
        _ => None,
    };
    let refused = |text: String| Err(Error::new(value.span(), text));
    match numbers {
        Some((_, 0)) => refused("of 0 permits none can be granted; allow at least 1".into()),
        Some((0, _)) => refused("0 permits are nothing to hold; ask for at least 1".into()),
        Some((count, of)) if of < count => refused(format!(
            "{count} permits of {of} can never be granted; ask for {of} at most, or allow more"
        )),
        Some((count, of)) => Ok(quote_spanned!(value.span()=> (#count, #of))),
        None => Ok(value.to_token_stream()),
    }
}

fn unknown_option(word: &str) -> String {
    let known = KNOWN.join("`, `");
    match nearest::nearest(word, KNOWN) {
        Some(near) => format!("there is no option `{word}`; did you mean `{near}`?"),
        None => format!(
            "there is no option `{word}`; there are `{known}`. A named argument of the format string goes \
             in by position: `\"product:{{}}\", order.id`"
        ),
    }
}

/// The middle part of `system:name:key`.
fn name(value: &Expr) -> Result<LitStr> {
    let Expr::Lit(ExprLit { lit: Lit::Str(name), .. }) = value else {
        return Err(Error::new(value.span(), "the name is a text in quotes; what changes goes into `key`"));
    };
    let text = name.value();
    if text.is_empty() || text.chars().any(char::is_control) {
        return Err(Error::new(name.span(), "a name has at least one letter and no control characters"));
    }
    if text.contains(':') {
        return Err(Error::new(
            name.span(),
            "a name has no `:`, because that is what ends it in the lock's id",
        ));
    }
    Ok(name.clone())
}

/// A span: text that is read now, or an expression.
fn span(value: &Expr) -> Result<TokenStream> {
    Ok(match literal(value)? {
        Some(span) => duration(span, value.span()),
        None => value.to_token_stream(),
    })
}

/// A span that may not be nothing.
fn some_span(word: &Ident, value: &Expr) -> Result<TokenStream> {
    match literal(value)? {
        Some(span) if span.is_zero() => {
            Err(Error::new(value.span(), format!("`{word}` must be greater than 0")))
        }
        Some(span) => Ok(duration(span, value.span())),
        None => Ok(value.to_token_stream()),
    }
}

fn literal(value: &Expr) -> Result<Option<std::time::Duration>> {
    let Expr::Lit(ExprLit { lit, .. }) = value else { return Ok(None) };
    let help = "write a duration such as \"1s\", \"500ms\" or \"1m 30s\"";
    let Lit::Str(text) = lit else {
        return Err(Error::new(lit.span(), format!("a number has no unit; {help}")));
    };
    let span = humantime::parse_duration(&text.value());
    span.map(Some).map_err(|it| Error::new(text.span(), format!("{it}; {help}")))
}

fn duration(span: std::time::Duration, at: Span) -> TokenStream {
    let (seconds, nanos) = (span.as_secs(), span.subsec_nanos());
    quote_spanned!(at=> ::core::time::Duration::new(#seconds, #nanos))
}
