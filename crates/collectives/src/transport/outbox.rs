//! A queue for bytes that the other side does not take yet, and a thread that writes them.
//!
//! Sending must not wait for the peer to receive, or two ranks that send to each other would block. So a link writes as much as the
//! system takes, directly from the caller's memory, and leaves the rest to this thread in a reusable buffer. The queue is bounded,
//! so that a rank that is far ahead waits instead of filling its memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, SendTimeoutError, Sender, bounded};

use crate::waiting::{LinkFault, WaitLimits};

/// The time between two checks of a waiting rank for a timeout.
const LOOK: Duration = Duration::from_millis(100);

/// Messages that may be queued for the thread.
const QUEUE: usize = 64;

/// Writes all bytes, without a time limit; false if they cannot be written any more.
type Write = Box<dyn FnMut(&[u8]) -> bool + Send>;

/// A queue of bytes for one peer. The thread starts with the first bytes.
pub(super) struct Outbox {
    /// The writer, until the thread starts.
    write: Option<Write>,
    running: Option<Running>,
    /// Messages queued and not yet written. Only if there are none, the link may write itself.
    waiting: Arc<AtomicUsize>,
}

struct Running {
    messages: Sender<Vec<u8>>,
    returned: Receiver<Vec<u8>>,
    thread: std::thread::JoinHandle<()>,
}

impl Running {
    fn start(mut write: Write, waiting: Arc<AtomicUsize>) -> std::io::Result<Self> {
        let (messages, inbox) = bounded::<Vec<u8>>(QUEUE);
        let (give_back, returned) = bounded(QUEUE);
        let thread = std::thread::Builder::new().name("phalanx-send".into()).spawn(move || {
            for bytes in inbox {
                if !write(&bytes) {
                    // The receiving side sees the broken link too and reports it.
                    return;
                }
                waiting.fetch_sub(1, Ordering::Release);
                // If enough buffers are being returned, one more is dropped.
                let _ = give_back.try_send(bytes);
            }
        })?;
        Ok(Self { messages, returned, thread })
    }
}

impl Outbox {
    pub(super) fn new(write: impl FnMut(&[u8]) -> bool + Send + 'static) -> Self {
        Self { write: Some(Box::new(write)), running: None, waiting: Arc::default() }
    }

    /// True if nothing is queued, so that the link may write itself.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Acquire) == 0
    }

    /// Queues the bytes of `parts` from `skip` on.
    pub(super) fn push(
        &mut self,
        parts: [&[u8]; 2],
        skip: usize,
        limits: &WaitLimits,
    ) -> Result<(), LinkFault> {
        let start = Instant::now();
        let running = match (&mut self.running, self.write.take()) {
            (Some(running), _) => running,
            (empty, Some(write)) => match Running::start(write, self.waiting.clone()) {
                Ok(running) => empty.insert(running),
                Err(error) => {
                    tracing::error!(%error, "cannot start a thread for a link");
                    return Err(LinkFault::Closed);
                }
            },
            (None, None) => return Err(LinkFault::Closed),
        };
        let mut bytes = running.returned.try_recv().unwrap_or_default();
        bytes.clear();
        let head = skip.min(parts[0].len());
        bytes.extend_from_slice(&parts[0][head..]);
        bytes.extend_from_slice(&parts[1][skip - head..]);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        loop {
            bytes = match running.messages.send_timeout(bytes, LOOK) {
                Ok(()) => return Ok(()),
                Err(SendTimeoutError::Disconnected(_)) => return Err(LinkFault::Closed),
                Err(SendTimeoutError::Timeout(bytes)) => match limits.ended(start) {
                    Some(broken) => return Err(broken),
                    None => bytes,
                },
            };
        }
    }
}

impl Drop for Outbox {
    /// Writes queued bytes before the link closes, as a peer may need them.
    fn drop(&mut self) {
        if let Some(Running { messages, thread, .. }) = self.running.take() {
            drop(messages);
            let _ = thread.join();
        }
    }
}
