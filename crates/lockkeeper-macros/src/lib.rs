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
/// ```
/// # use lockkeeper::locked;
/// # struct Mail { locker: lockkeeper::Locker }
/// # impl Mail {
/// #[locked("prices", shared, locker = self.locker)] // beside other readers
/// async fn report(&self) -> Result<(), lockkeeper::Error> {
///     # Ok(())
/// }
///
/// #[locked("mail", permits = "1/5", locker = self.locker)] // at most five at a time, over all machines
/// async fn send(&self) -> Result<(), lockkeeper::Error> {
///     # Ok(())
/// }
///
/// #[locked("account:{from}", "account:{to}", locker = self.locker)] // both or none, and no deadlock
/// fn transfer(&self, from: u64, to: u64) -> Result<(), lockkeeper::Error> {
///     # Ok(())
/// }
///
/// #[locked("tenant:{id}", warm, note = "import of {file}", locker = self.locker)] // again without a trip
/// async fn import(&self, id: u64, file: &str) -> Result<(), lockkeeper::Error> {
///     # Ok(())
/// }
///
/// #[locked("nightly", try, at_least = "50s", or = Ok(()), locker = self.locker)] // once, though clocks differ
/// async fn nightly(&self) -> Result<(), lockkeeper::Error> {
///     # Ok(())
/// }
/// # }
/// ```
///
/// It goes on `async` and on plain functions and methods, generic or not. The lock's id is
/// `system:name:key`; the system comes from the configuration of the process.
///
/// # What is locked
/// - `#[locked("product:{product_id}")]`: a format string over the arguments, checked as `format!` is. Other
///   expressions follow as arguments: `#[locked("product:{}", order.product_id)]`.
/// - `#[locked(name = "product", key = order.product_id)]`: a fixed name and anything that has `Display`.
///   Without `key` the name alone is the lock.
/// - `#[locked("account:{from}", "account:{to}")]`: several locks, all or none, always taken in the order of
///   their names; what goes into a text by position stands behind it: `"a:{}", one.id, "b:{}", other.id`.
/// - `system = "shop"` overrides the system of the process.
///
/// # How
/// - `wait = "1s"`, `ttl = "10s"`, `max_hold = "1m"`: durations, as text or as any expression of type `Duration`.
///   Without them the settings of the locker count.
/// - `at_least = "50s"`: keep the lock for others to find taken at least this long, also after the function has ended:
///   for short jobs on several machines. Not with `shared`, `permits` or several locks.
/// - `try`: do not wait.
/// - `shared`: beside other functions that share this lock, on any machine, but not beside one without it.
/// - `permits = "2/5"`: takes two of five permits. It may be an expression for both numbers, of type `(u32, u32)`:
///   `permits = (2, self.permits_max)`.
/// - `warm`: the lock stays with this process after the function has ended, as long as nobody else wants it; `cold`: it
///   does not, also where the locker keeps locks warm. Not with several locks.
/// - `note = "import of {file}"`: a free text, shown to whoever lists the locks. In quotes it is a format string over the
///   arguments; else any expression that is `Into<String>`.
/// - `locker = self.locker`: which locker, from a field or an argument. Without it: the process-wide one, see
///   `lockkeeper::init` and `lockkeeper::set_default`.
/// - `guard = lock`: calls the guard `lock` inside the body, for `lock.fence()` and the like: a `&Guard`, with
///   `shared` or `permits` a `&SharedGuard`, of several locks a `&MultiGuard`.
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
/// with the same lock, or itself. One that shares its lock may call another that shares it, also while somebody waits
/// to have it alone; if it calls one that wants it alone, that call is refused at once, because it would wait for
/// itself. Tasks and threads that the body starts are other owners. Futures that
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
