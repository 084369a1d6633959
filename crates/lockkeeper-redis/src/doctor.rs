//! The doctor: which settings of this store endanger locks.

use lockkeeper_core::backend::Result;
use lockkeeper_core::inspect::Finding;

use crate::store::Store;

pub(crate) async fn examine(_store: &Store) -> Result<Vec<Finding>> {
    Ok(Vec::new())
}
