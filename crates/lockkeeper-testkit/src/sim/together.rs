//! Users of a simulation that want several locks at once: all or nothing, held and lost together.

use std::future::{IntoFuture, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use lockkeeper_core::{Error, Key, Load, MultiGuard, Owner, Wish};

use super::users::{User, key, walk_away};

impl User {
    /// Want several, in whatever order, hold them for a while, and give them back.
    pub(super) async fn live_with_several(&mut self) {
        let wanted = self.several();
        let owner = Owner::new("user");
        let Some(guard) = self.want_all(&wanted, &owner).await else { return };
        let guard = self.witness.received_together(self.process.id(), guard, &wanted);
        let span = self.chance.span(self.ttl);
        match self.chance.below(3) {
            0 => drop(guard.run(self.clock.sleep(span)).await),
            1 => {
                let lost = guard.lost();
                walk_away(async { Ok::<_, Error>(lost.await) }, self.clock.sleep(span)).await.ok();
            }
            _ => self.clock.sleep(span).await,
        }
        if !guard.is_valid() {
            self.witness.count(|it| it.lost += 1);
        }
        self.give_all_back(guard).await;
    }

    /// Some of the names, each once, in no order.
    fn several(&mut self) -> Vec<(Key, Load)> {
        let first = self.chance.below(self.keys);
        let count = 2 + self.chance.below(self.keys - 1);
        let step = if self.chance.per_mille(500) { 1 } else { self.keys - 1 };
        let names = (0..count.min(self.keys)).map(|it| key((first + it * step) % self.keys));
        let loads = [Load::MUTEX, Load::WRITER, Load::READER, Load::new(1, 3), Load::new(2, 3)];
        let wanted = names.map(|it| (it, loads[usize::try_from(self.chance.below(5)).unwrap_or(0)]));
        wanted.filter_map(|(name, load)| Some((Key::new(&name).ok()?, load))).collect()
    }

    async fn want_all(&mut self, wanted: &[(Key, Load)], owner: &Owner) -> Option<MultiGuard> {
        let wishes = wanted.iter().map(|(key, load)| wish(key.as_str(), *load));
        let request = self.locker.lock_all(wishes).owner(owner).ttl(self.ttl);
        let (wait, bored) = (self.chance.span(self.ttl * 4), self.chance.span(self.ttl * 2));
        let answer = match self.chance.below(8) {
            0 => request.attempt().await,
            1 => walk_away(request.into_future(), poll_fn(|_| Poll::Ready(()))).await,
            2 | 3 => walk_away(request.into_future(), self.clock.sleep(bored)).await,
            _ => request.wait_at_most(wait).await.map(Some),
        };
        match answer {
            Ok(Some(guard)) => return Some(guard),
            Ok(None) => self.witness.count(|it| it.cancelled += 1),
            // One of them may be lost while the others are waited for.
            Err(Error::TimedOut { .. } | Error::Unavailable { .. } | Error::Lost { .. }) => {
                self.witness.count(|it| it.refused += 1);
            }
            Err(error) => self.witness.accuse(format!("a good request was answered with: {error}")),
        }
        None
    }

    async fn give_all_back(&mut self, guard: Arc<MultiGuard>) {
        let Some(guard) = Arc::into_inner(guard) else {
            self.witness.accuse("a guard was shared by mistake of the simulation".to_owned());
            return;
        };
        match self.chance.below(4) {
            0 | 1 => drop(guard.release().await),
            2 => drop(walk_away(guard.release(), poll_fn(|_| Poll::Ready(()))).await),
            _ => drop(guard),
        }
    }
}

fn wish(name: &str, load: Load) -> Wish {
    match load {
        Load::MUTEX => Wish::lock(name),
        Load::WRITER => Wish::write(name),
        Load::READER => Wish::read(name),
        Load { weight, capacity, .. } => Wish::permits(name, weight, capacity),
    }
}
