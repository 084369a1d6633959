//! A middleware that runs a handler under the lock of the product in its path, so that the handler need not know of locks.

use axum::extract::{Path, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use lockkeeper::Locker;

use crate::failure::Failure;

/// Wait for the product's turn, run the handler, give it back. The handler finds the fence among the extensions.
///
/// Its answer is passed on, also if the lock was lost in the meantime: what it wrote had the fence, and was made or refused.
/// The lock ends when the handler has answered: what it streams afterwards is not under it.
pub(crate) async fn under_lock(
    State(locker): State<Locker>,
    Path(product): Path<i64>,
    mut request: Request,
    next: Next,
) -> Result<Response, Failure> {
    let guard = locker.lock(format!("product/{product}")).await?;
    request.extensions_mut().insert(guard.fence());
    let answer = next.run(request).await;
    drop(guard);
    Ok(answer)
}
