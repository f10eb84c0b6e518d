//! The request to stop the run, and callbacks for it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A request to stop the run after the current step. Clones share the flag.
#[derive(Debug, Clone, Default)]
pub struct StopFlag(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    raised: AtomicBool,
    listeners: Mutex<Listeners>,
}

#[derive(Default)]
struct Listeners {
    next: u64,
    waiting: BTreeMap<u64, Box<dyn FnOnce() + Send>>,
}

impl std::fmt::Debug for Listeners {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} listeners", self.waiting.len())
    }
}

/// A subscription to the stop request. It ends when dropped.
#[derive(Debug)]
pub struct StopSubscription {
    flag: StopFlag,
    number: u64,
}

impl Drop for StopSubscription {
    fn drop(&mut self) {
        self.flag.listeners().waiting.remove(&self.number);
    }
}

impl StopFlag {
    /// Requests the stop. Returns true for the first request.
    pub fn raise(&self) -> bool {
        let first = !self.0.raised.swap(true, Ordering::SeqCst);
        // Called without the lock, so that a listener may block or unsubscribe.
        let waiting = std::mem::take(&mut self.listeners().waiting);
        waiting.into_values().for_each(|callback| callback());
        first
    }

    /// Returns true if the stop was requested.
    pub fn is_raised(&self) -> bool {
        self.0.raised.load(Ordering::SeqCst)
    }

    /// Calls `callback` once: on the thread that requests the stop, or immediately if the stop was already requested.
    pub fn subscribe(&self, callback: impl FnOnce() + Send + 'static) -> StopSubscription {
        let mut listeners = self.listeners();
        let number = listeners.next;
        listeners.next += 1;
        // The flag is raised before the lock is taken: either `raise` finds this listener, or this code sees the flag.
        if self.is_raised() {
            drop(listeners);
            callback();
        } else {
            listeners.waiting.insert(number, Box::new(callback));
        }
        StopSubscription { flag: self.clone(), number }
    }

    fn listeners(&self) -> MutexGuard<'_, Listeners> {
        self.0.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn a_subscriber_is_called_once_and_not_after_it_is_dropped() {
        let (flag, heard) = (StopFlag::default(), Arc::new(AtomicUsize::new(0)));
        let count = |by: usize| {
            let heard = heard.clone();
            move || {
                heard.fetch_add(by, Ordering::SeqCst);
            }
        };
        let _stays = flag.subscribe(count(1));
        drop(flag.subscribe(count(10)));
        assert!(flag.clone().raise() && !flag.raise() && flag.is_raised());
        assert_eq!(heard.load(Ordering::SeqCst), 1);
        let _late = flag.subscribe(count(100));
        assert_eq!(heard.load(Ordering::SeqCst), 101);
    }
}
