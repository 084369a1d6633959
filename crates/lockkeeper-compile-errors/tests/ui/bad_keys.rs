//! The key is checked as `format!` checks it.
use lockkeeper::{Error, locked};

struct Order {
    id: u64,
}

#[locked("product:{}")]
async fn missing(product_id: u64) -> Result<(), Error> {
    Ok(())
}

#[locked("product:{}", order.idd)]
async fn no_such_field(order: Order) -> Result<(), Error> {
    Ok(())
}

#[locked(name = "product", key = order)]
async fn cannot_be_written(order: Order) -> Result<(), Error> {
    Ok(())
}

#[locked(name = "a:b", key = order.id)]
async fn name_with_a_colon(order: Order) -> Result<(), Error> {
    Ok(())
}

#[locked(name = NAME)]
async fn name_that_is_no_text() -> Result<(), Error> {
    Ok(())
}

fn main() {}
