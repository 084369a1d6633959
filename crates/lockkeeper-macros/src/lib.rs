//! The attribute `#[locked]`: run a function while holding a lock.
//!
//! Use it as `lockkeeper::locked`, with the feature `macros` of the crate `lockkeeper`. What a function with
//! the attribute does is written in three files: `options.rs` reads what stands in the brackets, `expand.rs`
//! writes the new function, and `locked.rs` of the facade is what the new function calls.

mod expand;
mod nearest;
mod options;

use proc_macro::TokenStream;
use quote::quote;
use syn::ItemFn;

/// Run a function while holding a lock.
///
/// ```
/// # async fn example() -> Result<(), lockkeeper::Error> {
/// use lockkeeper::locked;
///
/// #[locked("product:{product_id}", wait = "1s")]
/// async fn place_order(product_id: u64, account: u64) -> Result<u64, lockkeeper::Error> {
///     Ok(product_id + account) // nobody else is in here for this product, on any machine
/// }
///
/// # lockkeeper::set_default(lockkeeper::connect("memory:").await?, Some("shop"))?;
/// assert_eq!(place_order(7, 1).await?, 8); // under the lock `shop:product:7`
/// # Ok(())
/// # }
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(example()).unwrap();
/// ```
///
/// It goes on `async` and on plain functions and methods, generic or not. The lock's id is
/// `system:name:key`; the system comes from the configuration of the process.
///
/// # What is locked
/// - `#[locked("product:{product_id}")]`: a format string over the arguments, checked as `format!` is. More
///   than names go behind it: `#[locked("product:{}", order.product_id)]`.
/// - `#[locked(name = "product", key = order.product_id)]`: a fixed name and anything that has `Display`.
///   Without `key` the name alone is the lock.
/// - `system = "shop"` overrides the system of the process.
///
/// # How
/// - `wait = "1s"`, `ttl = "10s"`, `max_hold = "1m"`: spans, as text or as any expression of type `Duration`.
///   Without them the settings of the locker count.
/// - `try`: do not wait.
/// - `locker = self.locker`: which locker, from a field or an argument. Without it: the process-wide one, see
///   `lockkeeper::init` and `lockkeeper::set_default`.
/// - `guard = lock`: calls the guard `lock` inside the body, for `lock.fence()` and the like.
/// - `crate = path`: where the crate `lockkeeper` is, if not at `::lockkeeper`.
///
/// # If the lock is not obtained
/// The body does not run, whatever the reason. The caller gets
/// - an error, if nothing else is said; the function must return a `Result` whose error is
///   `From<lockkeeper::Error>`;
/// - `or = value`: this value;
/// - `or_else = function`: what this function makes of the [error](https://docs.rs/lockkeeper/latest/lockkeeper/enum.Error.html).
///
/// # If the lock is lost while the body runs
/// An `async` body is stopped where it awaits next, before the store may give the lock to somebody else, and
/// the caller gets `Error::Lost`. A plain function cannot be stopped: it runs to its end, its answer is
/// thrown away, and the caller gets `Error::Lost` then. If a plain body is long, ask `lock.check()?` on the
/// way. So an answer always says that the lock was held from the first line to the last.
///
/// `or_else` is called with the loss as well. With `or`, a function that returns a `Result` answers the
/// loss as an error, because the body has begun; any other function answers the value.
///
/// # Reentrancy
/// All calls within one call of a locked function are one owner, so a locked function may call another one
/// with the same lock, or itself. Tasks and threads that the body starts are other owners. Futures that
/// one body polls side by side, as with `join!`, are the *same* owner and do not exclude each other.
///
/// # Cancel safety
/// Dropping the future stops the body and gives the lock back in the background. A panic does the same.
///
/// # Blocking functions
/// They wait on their thread. Inside a runtime, call them as every blocking function, with `spawn_blocking`.
#[proc_macro_attribute]
pub fn locked(options: TokenStream, function: TokenStream) -> TokenStream {
    let original = proc_macro2::TokenStream::from(function.clone());
    let function = match syn::parse::<ItemFn>(function) {
        Ok(it) => it,
        Err(error) => {
            let text = format!("`#[locked]` goes on a function or method with a body: {error}");
            let error = syn::Error::new(error.span(), text).into_compile_error();
            return quote!(#error #original).into();
        }
    };
    let expanded = options::parse(options.into()).and_then(|options| expand::expand(&options, &function));
    // The function itself is kept on an error, so that its callers do not complain as well.
    expanded
        .unwrap_or_else(|error| {
            let error = error.into_compile_error();
            quote!(#error #original)
        })
        .into()
}
