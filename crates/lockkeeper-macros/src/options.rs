//! What stands in the brackets of `#[locked(…)]`.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens as _, quote_spanned};
use syn::ext::IdentExt as _;
use syn::parse::{ParseStream, Parser as _};
use syn::spanned::Spanned as _;
use syn::{Error, Expr, ExprLit, Ident, Lit, LitStr, Path, Result, Token};

use crate::nearest;

const KNOWN: &[&str] =
    &["name", "key", "system", "wait", "ttl", "max_hold", "try", "locker", "or", "or_else", "guard", "crate"];
const NAME_IT: &str = "say what to lock: `#[locked(\"product:{product_id}\")]` or \
    `#[locked(name = \"product\", key = product_id)]`";

/// All that was said, checked as far as it can be without the function.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) format: Option<(LitStr, Vec<Expr>)>,
    pub(crate) name: Option<LitStr>,
    pub(crate) key: Option<Expr>,
    pub(crate) system: Option<Expr>,
    pub(crate) wait: Option<TokenStream>,
    pub(crate) ttl: Option<TokenStream>,
    pub(crate) max_hold: Option<TokenStream>,
    pub(crate) attempt: bool,
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
    if input.peek(LitStr) {
        options.format = Some((input.parse()?, Vec::new()));
        comma(input)?;
    }
    let mut seen: Vec<(String, Span)> = Vec::new();
    while !input.is_empty() {
        if let Some(word) = option_ahead(input)? {
            if seen.iter().any(|it| word == it.0) {
                return Err(Error::new(word.span(), format!("`{word}` is said twice")));
            }
            seen.push((word.to_string(), word.span()));
            options.set(&word, input)?;
        } else {
            let argument = input.parse::<Expr>()?;
            let Some((_, arguments)) = &mut options.format else {
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

/// The word of the option that comes next, or `None` if an argument of the format string does.
fn option_ahead(input: ParseStream) -> Result<Option<Ident>> {
    let ahead = input.fork();
    let Ok(word) = ahead.call(Ident::parse_any) else { return Ok(None) };
    let has_value = ahead.peek(Token![=]) && !ahead.peek(Token![==]);
    let is_flag = word == "try" || word == "shared";
    if !has_value && !is_flag {
        return Ok(None);
    }
    input.call(Ident::parse_any).map(Some)
}

impl Options {
    fn set(&mut self, word: &Ident, input: ParseStream) -> Result<()> {
        match word.to_string().as_str() {
            "try" if input.peek(Token![=]) => {
                return Err(Error::new(word.span(), "`try` stands alone, without a value"));
            }
            "try" => self.attempt = true,
            "shared" | "permits" | "weight" => return Err(not_yet(word)),
            "name" => self.name = Some(name(&value(input)?)?),
            "key" => self.key = Some(value(input)?),
            "system" => self.system = Some(value(input)?),
            "wait" => self.wait = Some(span(&value(input)?)?),
            "ttl" => self.ttl = Some(some_span(word, &value(input)?)?),
            "max_hold" => self.max_hold = Some(some_span(word, &value(input)?)?),
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
        if self.format.is_none() && self.name.is_none() {
            return Err(Error::new(said("key").unwrap_or_else(Span::call_site), NAME_IT));
        }
        if self.format.is_some()
            && let Some(at) = said("name").or(said("key"))
        {
            return Err(Error::new(at, "the lock has a format string already; leave this out, or that"));
        }
        let clashes = [
            ("try", "wait", "`try` does not wait; leave one of the two out"),
            ("or", "or_else", "`or` and `or_else` both say what to answer; leave one of the two out"),
        ];
        for (one, other, text) in clashes {
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

fn not_yet(word: &Ident) -> Error {
    let text = format!(
        "`{word}`: locks that several may hold at a time are not available yet; \
         every `#[locked]` function runs alone"
    );
    Error::new(word.span(), text)
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
            Err(Error::new(value.span(), format!("`{word}` must be longer than nothing")))
        }
        Some(span) => Ok(duration(span, value.span())),
        None => Ok(value.to_token_stream()),
    }
}

fn literal(value: &Expr) -> Result<Option<std::time::Duration>> {
    let Expr::Lit(ExprLit { lit, .. }) = value else { return Ok(None) };
    let help = "write a span such as \"1s\", \"500ms\" or \"1m 30s\"";
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
