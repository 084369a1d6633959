//! The function that `#[locked]` makes of the one it stands on.
//!
//! ```text
//! async fn place(id: u64) -> R {          fn place(id: u64) -> R {
//!     owner  = the task's, or a new one       owner  = the task's, or a new one
//!     guard  = obtain, else answer            guard  = obtain, else answer
//!     out    = run(body), stopped if lost     out    = body()
//!     release, answer out                     release; lost? answer that : out
//! }                                       }
//! ```
//!
//! The body becomes a future of its own that is pinned where it is made: handing it on by value would double
//! the size of every caller's future with each level of nesting.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned as _;
use syn::{
    Block, Error, Expr, ExprLit, FnArg, GenericArgument, ItemFn, Lit, Pat, PathArguments, Result, ReturnType,
    Type,
};

use crate::options::Options;

pub(crate) fn expand(options: &Options, function: &ItemFn) -> Result<TokenStream> {
    let ItemFn { attrs, vis, sig, block, .. } = function;
    check(options, function)?;
    let lk = options.krate.as_ref().map_or_else(|| quote!(::lockkeeper), |it| quote!(#it));
    let answer = Answer::new(options, &sig.output, sig.ident.span(), &lk);
    let name = sig.ident.to_string();
    let bind = options.guard.as_ref().map(|it| quote!(let #it = &__lockkeeper_guard;));
    let is_async = sig.asyncness.is_some();
    let rest = if is_async {
        awaiting(&answer, bind.as_ref(), block)
    } else {
        blocking(&answer, bind.as_ref(), block)
    };
    Ok(quote! {
        #(#attrs)*
        #vis #sig {
            let __lockkeeper_owner =
                #lk::__private::owner(::core::concat!(::core::module_path!(), "::", #name));
            #rest
        }
    })
}

/// The rest of an `async` function, after its request.
///
/// Everything is awaited right here: a helper that takes a future and awaits it would copy it.
fn awaiting(answer: &Answer<'_>, bind: Option<&TokenStream>, block: &Block) -> TokenStream {
    let Answer { options, lk, .. } = answer;
    let (key, request, locker) = (&answer.key, &answer.request, &answer.locker);
    let asked = match (options.is_plain(), options.attempt) {
        (true, true) => quote!({ #key #request.attempt() }.await.and_then(#lk::__private::tried)),
        // Pinned where it is made: awaiting it by value would keep room for it twice.
        (true, false) => quote!(::core::pin::pin!({ #key #request }).await),
        (false, attempt) => {
            let answered = if attempt {
                quote!(it.attempt().await.and_then(#lk::__private::tried))
            } else {
                quote!(it.await)
            };
            quote! {
                match { #key #request } {
                    ::core::result::Result::Ok(it) => #answered,
                    ::core::result::Result::Err(it) => ::core::result::Result::Err(it),
                }
            }
        }
    };
    let (on_refusal, on_loss, hint) = (answer.on_refusal(), answer.on_loss(), answer.hint());
    // The statements without their braces: around a body of one line the compiler finds them unnecessary, and says so
    // where the user wrote them.
    let body = &block.stmts;
    // Whatever is not needed later ends with its statement: the future keeps room for all that lives while it waits.
    quote! {
        let __lockkeeper_guard = match '__lockkeeper_ask: {
            let __lockkeeper_locker = match #locker {
                ::core::result::Result::Ok(it) => it,
                ::core::result::Result::Err(it) => break '__lockkeeper_ask ::core::result::Result::Err(it),
            };
            #asked
        } {
            ::core::result::Result::Ok(it) => it,
            ::core::result::Result::Err(__lockkeeper_error) => return #on_refusal,
        };
        let __lockkeeper_out = match {
            #bind
            let __lockkeeper_body = ::core::pin::pin!(async move { #hint #(#body)* });
            __lockkeeper_owner.scope(__lockkeeper_guard.run(__lockkeeper_body)).await
        } {
            ::core::result::Result::Ok(it) => it,
            ::core::result::Result::Err(__lockkeeper_error) => return #on_loss,
        };
        // The lock was held throughout: a release that the store does not confirm changes nothing about the
        // answer, and is tried again in the background.
        let _ = __lockkeeper_guard.release().await;
        __lockkeeper_out
    }
}

/// The rest of a function that does not await.
fn blocking(answer: &Answer<'_>, bind: Option<&TokenStream>, block: &Block) -> TokenStream {
    let Answer { options, lk, .. } = answer;
    let (key, request, locker) = (&answer.key, &answer.request, &answer.locker);
    let tried = quote!(attempt().blocking().and_then(#lk::__private::tried));
    let asked = match (options.is_plain(), options.attempt) {
        (true, true) => quote!(#request.#tried),
        (true, false) => quote!(#request.blocking()),
        (false, true) => quote!(#request.and_then(|it| it.#tried)),
        (false, false) => quote!(#request.and_then(|it| it.blocking())),
    };
    let (on_refusal, on_loss) = (answer.on_refusal(), answer.on_loss());
    let arrow = answer.known.as_ref().map(|it| quote!(-> #it));
    let there = at(lk, answer.at);
    let no_future = quote_spanned!(answer.at=> #there::__private::answer_is_no_future(&__lockkeeper_out));
    quote! {
        #key
        let __lockkeeper_asked = #locker.and_then(|__lockkeeper_locker| #asked);
        let __lockkeeper_guard = match __lockkeeper_asked {
            ::core::result::Result::Ok(it) => it,
            ::core::result::Result::Err(__lockkeeper_error) => return #on_refusal,
        };
        let __lockkeeper_out = {
            #bind
            __lockkeeper_owner.scope_blocking(move || #arrow #block)
        };
        #no_future;
        match #lk::__private::release_blocking(__lockkeeper_guard) {
            ::core::result::Result::Ok(()) => __lockkeeper_out,
            ::core::result::Result::Err(__lockkeeper_error) => #on_loss,
        }
    }
}

/// What cannot work, said where it stands.
fn check(options: &Options, function: &ItemFn) -> Result<()> {
    let sig = &function.sig;
    if let Some(it) = &sig.constness {
        return Err(Error::new(it.span(), "a `const fn` cannot take a lock"));
    }
    if sig.asyncness.is_none()
        && let ReturnType::Type(_, output) = &sig.output
        && names_a_future(output)
    {
        let text = "this function only makes a future, so the lock would be given back before the future \
            runs; write `async fn`; under `#[async_trait]`, let the method call a locked function";
        return Err(Error::new(output.span(), text));
    }
    let answers_nothing = match &sig.output {
        ReturnType::Default => Some(sig.ident.span()),
        ReturnType::Type(_, it) => matches!(&**it, Type::Tuple(it) if it.elems.is_empty()).then(|| it.span()),
    };
    if let Some(at) = answers_nothing
        && options.or.is_none()
        && options.or_else.is_none()
    {
        let text = "this function returns nothing, so it cannot tell that the lock was not obtained; \
            return a `Result` with an error that is `From<lockkeeper::Error>`, or say `or = ()` to skip \
            the body silently, or `or_else = |error| …`";
        return Err(Error::new(at, text));
    }
    guard_is_no_argument(options, function)
}

/// An argument of the guard's name would be hidden by it, which nobody means.
fn guard_is_no_argument(options: &Options, function: &ItemFn) -> Result<()> {
    let Some(guard) = &options.guard else { return Ok(()) };
    let same = function.sig.inputs.iter().find_map(|it| match it {
        FnArg::Typed(it) => match &*it.pat {
            Pat::Ident(it) if it.ident == *guard => Some(it.ident.span()),
            _ => None,
        },
        FnArg::Receiver(_) => None,
    });
    match same {
        Some(_) => {
            Err(Error::new(guard.span(), "an argument has this name already; call the guard otherwise"))
        }
        None => Ok(()),
    }
}

/// `impl Future`, `dyn Future` and the usual boxes of them. What hides behind other names is refused by the type
/// checker, less kindly.
fn names_a_future(output: &Type) -> bool {
    let bound =
        |it: &syn::TypeParamBound| matches!(it, syn::TypeParamBound::Trait(it) if ends(&it.path, "Future"));
    match output {
        Type::ImplTrait(it) => it.bounds.iter().any(bound),
        Type::TraitObject(it) => it.bounds.iter().any(bound),
        Type::Paren(it) => names_a_future(&it.elem),
        Type::Path(it) => {
            if ends(&it.path, "BoxFuture") || ends(&it.path, "LocalBoxFuture") {
                return true;
            }
            let Some(last) = it.path.segments.last() else { return false };
            let (is_box, PathArguments::AngleBracketed(arguments)) =
                (last.ident == "Pin" || last.ident == "Box", &last.arguments)
            else {
                return false;
            };
            is_box
                && arguments
                    .args
                    .iter()
                    .any(|it| matches!(it, GenericArgument::Type(it) if names_a_future(it)))
        }
        _ => false,
    }
}

fn ends(path: &syn::Path, name: &str) -> bool {
    path.segments.last().is_some_and(|it| it.ident == name)
}

/// The locker, as a `Result`.
fn locker(options: &Options, lk: &TokenStream) -> TokenStream {
    options.locker.as_ref().map_or_else(
        || quote!(#lk::default_locker()),
        |it| {
            let it = quote_spanned!(it.span()=> { let it: &#lk::Locker = &#it; it });
            quote!(::core::result::Result::<_, #lk::Error>::Ok(#it))
        },
    )
}

/// The lock's key. A statement of its own: what it borrows to format must be gone before the first await.
fn key(options: &Options, lk: &TokenStream) -> TokenStream {
    let system = options.system.as_ref().map_or_else(
        || quote!(#lk::__private::system()),
        |it| {
            let text = quote_spanned!(it.span()=> ::core::convert::AsRef::<str>::as_ref(&#it));
            quote!(::core::option::Option::Some(#text))
        },
    );
    let made = |words: TokenStream| quote!(#lk::__private::key(#system, #words));
    let format = |(text, arguments): &(syn::LitStr, Vec<syn::Expr>)| {
        made(quote_spanned!(text.span()=> ::core::format_args!(#text #(, #arguments)*)))
    };
    let key = match (&options.formats[..], &options.name, &options.key) {
        ([one], ..) => format(one),
        ([], Some(name), Some(key)) => {
            // `{}` of the key alone carries the key's span, so that a missing `Display` is shown there.
            let key = quote_spanned!(key.span()=> ::core::format_args!("{}", #key));
            made(quote!(::core::format_args!("{}:{}", #name, #key)))
        }
        ([], name, _) => made(quote!(::core::format_args!("{}", #name))),
        (several, ..) => {
            let keys = several.iter().map(format);
            quote!([#(#keys),*])
        }
    };
    let note = note(options);
    quote!(let __lockkeeper_key = #key; #note)
}

/// What is shown to whoever lists the locks: a format string as the lock's name is, or any expression that becomes a text.
fn note(options: &Options) -> Option<TokenStream> {
    let note = options.note.as_ref()?;
    let text = match note {
        // Not `format!`, of which lints say that a text without arguments needs none.
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => {
            quote_spanned!(text.span()=> ::std::fmt::format(::core::format_args!(#text)))
        }
        note => quote_spanned!(note.span()=> ::core::convert::Into::<::std::string::String>::into(#note)),
    };
    Some(quote!(let __lockkeeper_note: ::std::string::String = #text;))
}

/// What is asked beside the spans, as calls of a request of any kind.
fn wishes(options: &Options) -> TokenStream {
    let at_least = options.at_least.as_ref().map(|it| quote!(.hold_at_least(#it)));
    let warm = options.warm.map(|it| if it { quote!(.warm()) } else { quote!(.cold()) });
    let note = options.note.as_ref().map(|_| quote!(.note(__lockkeeper_note)));
    quote!(#at_least #warm #note)
}

/// What is asked of the locker.
fn request(options: &Options, lk: &TokenStream) -> TokenStream {
    let [wait, ttl, max_hold] = [&options.wait, &options.ttl, &options.max_hold].map(|it| {
        let none = || quote!(::core::option::Option::None);
        it.as_ref().map_or_else(none, |it| quote!(::core::option::Option::Some(#it)))
    });
    let spans = quote!(#lk::__private::Spans { wait: #wait, ttl: #ttl, max_hold: #max_hold });
    let who = quote!(&__lockkeeper_owner, __lockkeeper_locker, __lockkeeper_key);
    let wishes = wishes(options);
    let asked = match &options.permits {
        _ if options.formats.len() > 1 => quote!(#lk::__private::several(#who, #spans)),
        Some(permits) => {
            let permits = quote_spanned!(permits.span()=> { let it: (u32, u32) = #permits; it });
            quote!(#lk::__private::permits(#who, #permits, #spans))
        }
        None if options.shared => quote!(#lk::__private::shared(#who, #spans)),
        None => return quote!(#lk::__private::request(#who, #spans) #wishes),
    };
    // Of these a key that is none is noticed at once.
    if wishes.is_empty() { asked } else { quote!(#asked.map(|it| it #wishes)) }
}

/// What the function asks, and what it answers without its body.
struct Answer<'a> {
    options: &'a Options,
    lk: &'a TokenStream,
    /// The return type, unless it holds an `impl Trait`, which cannot be written inside a function.
    known: Option<TokenStream>,
    is_result: bool,
    at: Span,
    locker: TokenStream,
    key: TokenStream,
    request: TokenStream,
}

impl<'a> Answer<'a> {
    fn new(options: &'a Options, output: &ReturnType, name: Span, lk: &'a TokenStream) -> Self {
        let (locker, key, request) = (locker(options, lk), key(options, lk), request(options, lk));
        let (known, is_result, at) = match output {
            ReturnType::Default => (Some(quote!(())), false, name),
            ReturnType::Type(_, output) => {
                let text = quote!(#output);
                let is_result = matches!(&**output, Type::Path(it)
                    if it.path.segments.last().is_some_and(|it| it.ident.to_string().ends_with("Result")));
                ((!holds_impl(text.clone())).then_some(text), is_result, output.span())
            }
        };
        Answer { options, lk, known, is_result, at, locker, key, request }
    }

    fn on_refusal(&self) -> TokenStream {
        match (&self.options.or, &self.options.or_else) {
            (Some(value), _) => quote!({ ::core::mem::drop(__lockkeeper_error); #value }),
            (_, Some(function)) => {
                let lk = at(self.lk, function.span());
                quote_spanned!(function.span()=> #lk::__private::or_else(__lockkeeper_error, #function))
            }
            _ => self.error(),
        }
    }

    fn on_loss(&self) -> TokenStream {
        if self.options.or.is_some() && self.is_result { self.error() } else { self.on_refusal() }
    }

    fn error(&self) -> TokenStream {
        let lk = at(self.lk, self.at);
        let named = self.known.as_ref().map(|it| quote!(::<#it>));
        quote_spanned!(self.at=> #lk::__private::failed #named (__lockkeeper_error))
    }

    /// Tells the compiler what an `async` block answers, for `?` and `return` inside.
    fn hint(&self) -> Option<TokenStream> {
        let known = self.known.as_ref()?;
        Some(quote! {
            #[allow(unreachable_code, unused_variables)]
            if false {
                let __lockkeeper_hint: #known = loop {};
                return __lockkeeper_hint;
            }
        })
    }
}

/// The same path, as if it stood there: errors about a call point at the beginning of its path.
fn at(path: &TokenStream, span: Span) -> TokenStream {
    let moved = path.clone().into_iter().map(|mut it| {
        it.set_span(it.span().located_at(span));
        it
    });
    moved.collect()
}

fn holds_impl(tokens: TokenStream) -> bool {
    tokens.into_iter().any(|it| match it {
        proc_macro2::TokenTree::Ident(it) => it == "impl",
        proc_macro2::TokenTree::Group(it) => holds_impl(it.stream()),
        _ => false,
    })
}
