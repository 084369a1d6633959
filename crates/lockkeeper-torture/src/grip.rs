//! Whatever a round has got hold of, in one shape: is it valid, when is it lost, give it back.

use std::future::Future;
use std::pin::Pin;

use lockkeeper::{Guard, Leadership, MultiGuard, Result, SharedGuard};

pub(crate) enum Grip {
    Alone(Guard),
    Beside(SharedGuard),
    Several(MultiGuard),
    Lead(Leadership),
}

pub(crate) type Loss = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Grip {
    /// What it locks, with the fence of each.
    pub(crate) fn keys(&self, asked: &[String]) -> Vec<(String, u64)> {
        match self {
            Grip::Alone(it) => vec![(asked[0].clone(), it.fence().get())],
            Grip::Beside(it) => vec![(asked[0].clone(), it.fence().get())],
            Grip::Lead(it) => vec![(asked[0].clone(), it.term().get())],
            Grip::Several(it) => {
                let fence = |key: &String| it.fence(key).map(|fence| (key.clone(), fence.get()));
                asked.iter().filter_map(fence).collect()
            }
        }
    }

    pub(crate) fn is_valid(&self) -> bool {
        match self {
            Grip::Alone(it) => it.is_valid(),
            Grip::Beside(it) => it.is_valid(),
            Grip::Several(it) => it.is_valid(),
            Grip::Lead(it) => it.is_valid(),
        }
    }

    pub(crate) fn lost(&self) -> Loss {
        match self {
            Grip::Alone(it) => told(it.lost()),
            Grip::Beside(it) => told(it.lost()),
            Grip::Several(it) => told(it.lost()),
            Grip::Lead(it) => match it.lost() {
                Ok(lost) => told(lost),
                Err(_) => told(std::future::ready(())),
            },
        }
    }

    pub(crate) async fn release(self) -> Result<()> {
        match self {
            Grip::Alone(it) => it.release().await,
            Grip::Beside(it) => it.release().await,
            Grip::Several(it) => it.release().await,
            Grip::Lead(it) => it.resign().await,
        }
    }
}

fn told<T>(lost: impl Future<Output = T> + Send + 'static) -> Loss {
    Box::pin(async move {
        lost.await;
    })
}
