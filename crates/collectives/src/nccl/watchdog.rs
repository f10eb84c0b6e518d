//! Watches the operations of a GPU: if one does not end in time, the world breaks, even if no caller waits.

use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Sender, unbounded};
use cudarc::driver::CudaEvent;

use super::link::Link;

/// The name of an issued operation, and the event after it.
type IssuedOperation = (&'static str, Arc<CudaEvent>);

/// A thread that waits for one operation after the other.
pub(super) struct Watchdog {
    /// `None` when it is to end.
    queue: Option<Sender<IssuedOperation>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    pub(super) fn start(link: Arc<Link>) -> std::io::Result<Self> {
        let (queue, issued) = unbounded::<IssuedOperation>();
        let thread = std::thread::Builder::new().name("phalanx-nccl-watch".into()).spawn(move || {
            for (operation, done) in issued {
                // A failure breaks the world, which ends everything else on this link.
                if link.finish(&done, operation, link.watch.wait(operation).at_leisure()).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { queue: Some(queue), thread: Some(thread) })
    }

    /// Queues an operation to wait for.
    pub(super) fn mind(&self, operation: &'static str, done: Arc<CudaEvent>) {
        // After a failure it has nothing more to watch.
        let _ = self.queue.as_ref().map(|queue| queue.send((operation, done)));
    }
}

impl Drop for Watchdog {
    /// Waits until the GPU is done, or has failed.
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
