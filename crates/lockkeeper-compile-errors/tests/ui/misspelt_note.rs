//! A note that names an argument that is not there.
use lockkeeper::{Error, locked};

#[locked("x", note = "order {order_id}")]
async fn names_no_argument(order: u64) -> Result<u64, Error> {
    Ok(order)
}

fn main() {}
