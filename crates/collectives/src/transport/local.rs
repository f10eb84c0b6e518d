//! Ranks as threads of one process: a channel from each to each.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};

use super::{LinkError, Transport};
use crate::failure::Failure;

/// How often a waiting rank looks whether the world is broken.
const LOOK: Duration = Duration::from_millis(50);

/// One rank's ends of the channels.
pub(crate) struct Local {
    to: Vec<Option<Sender<Vec<u8>>>>,
    from: Vec<Option<Receiver<Vec<u8>>>>,
    /// Bytes that arrived but were not asked for yet, by rank.
    rest: Vec<(VecDeque<Vec<u8>>, usize)>,
    failure: Arc<Failure>,
    timeout: Duration,
}

/// The transports of a world of threads.
pub(crate) fn world(size: usize, failures: &[Arc<Failure>], timeout: Duration) -> Vec<Local> {
    let mut to: Vec<Vec<Option<Sender<Vec<u8>>>>> =
        (0..size).map(|_| (0..size).map(|_| None).collect()).collect();
    let mut from: Vec<Vec<Option<Receiver<Vec<u8>>>>> =
        (0..size).map(|_| (0..size).map(|_| None).collect()).collect();
    for a in 0..size {
        for b in (0..size).filter(|b| *b != a) {
            let (sender, receiver) = unbounded();
            to[a][b] = Some(sender);
            from[b][a] = Some(receiver);
        }
    }
    to.into_iter()
        .zip(from)
        .zip(failures)
        .map(|((to, from), failure)| Local {
            rest: (0..size).map(|_| (VecDeque::new(), 0)).collect(),
            to,
            from,
            failure: failure.clone(),
            timeout,
        })
        .collect()
}

impl Transport for Local {
    fn send(&mut self, to: usize, parts: [&[u8]; 2]) -> Result<(), LinkError> {
        let sender = self.to[to].as_ref().ok_or(LinkError::Closed(to))?;
        sender.send(parts.concat()).map_err(|_| LinkError::Closed(to))
    }

    fn receive(&mut self, from: usize, mut into: &mut [u8]) -> Result<(), LinkError> {
        let start = Instant::now();
        while !into.is_empty() {
            let (queue, used) = &mut self.rest[from];
            if let Some(front) = queue.front() {
                let count = into.len().min(front.len() - *used);
                let (now, later) = into.split_at_mut(count);
                now.copy_from_slice(&front[*used..*used + count]);
                into = later;
                *used += count;
                if *used == front.len() {
                    queue.pop_front();
                    *used = 0;
                }
                continue;
            }
            let receiver = self.from[from].as_ref().ok_or(LinkError::Closed(from))?;
            match receiver.recv_timeout(LOOK) {
                Ok(bytes) if bytes.is_empty() => {}
                Ok(bytes) => queue.push_back(bytes),
                Err(RecvTimeoutError::Disconnected) => return Err(LinkError::Closed(from)),
                Err(RecvTimeoutError::Timeout) if self.failure.get().is_some() => {
                    return Err(LinkError::Closed(from));
                }
                Err(RecvTimeoutError::Timeout) if start.elapsed() > self.timeout => {
                    return Err(LinkError::Timeout(from));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        Ok(())
    }
}
