//! A number that everybody adds to under the lock, and nobody may touch otherwise.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Answer;

/// Read and written apart on purpose, so that two holders at once would lose an update.
#[derive(Clone)]
pub(super) enum Shared {
    /// Between processes: a plain file.
    File(Arc<File>),
    /// Within one.
    Memory(Arc<AtomicU64>),
}

impl Shared {
    pub(super) fn file(path: &Path) -> Answer<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        if file.metadata()?.len() == 0 {
            file.write_all_at(&0_u64.to_le_bytes(), 0)?;
        }
        Ok(Shared::File(Arc::new(file)))
    }

    pub(super) fn memory() -> Self {
        Shared::Memory(Arc::default())
    }

    pub(super) fn read(&self) -> Answer<u64> {
        match self {
            Shared::Memory(number) => Ok(number.load(Ordering::Relaxed)),
            Shared::File(file) => {
                let mut bytes = [0; 8];
                file.read_exact_at(&mut bytes, 0)?;
                Ok(u64::from_le_bytes(bytes))
            }
        }
    }

    pub(super) fn add_one(&self) -> Answer<()> {
        let next = self.read()? + 1;
        match self {
            Shared::Memory(number) => number.store(next, Ordering::Relaxed),
            // In place: a file system takes its time to empty a file.
            Shared::File(file) => file.write_all_at(&next.to_le_bytes(), 0)?,
        }
        Ok(())
    }
}
