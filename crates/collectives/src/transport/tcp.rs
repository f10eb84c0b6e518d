//! Ranks as processes: a TCP connection between each two.
//!
//! Sending must not wait for the peer to receive, or two ranks that send to each other would block. So a send
//! writes as much as the system takes at once, straight from the caller's memory, and leaves only the rest to a
//! thread of the connection, in a buffer that comes back to be used again. The queue to that thread is bounded, so
//! that a rank which is far ahead waits instead of filling its memory. The system sizes the sockets' buffers:
//! asking for 4 MiB gained nothing in measurements on Linux's loopback, and asking for less lost a third.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, SendTimeoutError, Sender, bounded};

use super::{LinkError, Transport};
use crate::failure::Failure;

/// How often a waiting rank looks whether its time is up.
const LOOK: Duration = Duration::from_millis(500);

/// Messages that may wait for the thread that writes.
const QUEUE: usize = 64;

/// The flags of a send that takes what fits and returns, and does not raise a signal on a closed connection.
/// The numbers are those of the systems' headers; elsewhere the thread writes everything.
#[cfg(any(target_os = "linux", target_os = "android"))]
const AT_ONCE: Option<i32> = Some(0x40 | 0x4000);
#[cfg(any(target_os = "macos", target_os = "ios"))]
const AT_ONCE: Option<i32> = Some(0x80);
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos", target_os = "ios")))]
const AT_ONCE: Option<i32> = None;

struct Peer {
    stream: TcpStream,
    outbox: Sender<Vec<u8>>,
    returned: Receiver<Vec<u8>>,
    /// Messages queued and not yet written; only with none of them may this thread write itself.
    waiting: Arc<AtomicUsize>,
    writer: Option<std::thread::JoinHandle<()>>,
}

/// One rank's connections.
pub(crate) struct Tcp {
    peers: Vec<Option<Peer>>,
    timeout: Duration,
}

impl Tcp {
    /// Takes over established connections, by rank; this rank's own place is empty.
    pub(crate) fn new(
        streams: Vec<Option<TcpStream>>,
        failure: &Failure,
        timeout: Duration,
    ) -> std::io::Result<Self> {
        let mut peers = Vec::with_capacity(streams.len());
        for stream in streams {
            peers.push(match stream {
                Some(stream) => {
                    let waker = stream.try_clone()?;
                    // Closing the socket is what ends a blocked read or write.
                    failure.on_break(move || drop(waker.shutdown(Shutdown::Both)));
                    Some(Peer::new(stream)?)
                }
                None => None,
            });
        }
        Ok(Self { peers, timeout })
    }

    fn peer(&mut self, rank: usize) -> Result<&mut Peer, LinkError> {
        self.peers.get_mut(rank).and_then(Option::as_mut).ok_or(LinkError::Closed(rank))
    }
}

impl Peer {
    fn new(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LOOK))?;
        let mut writing = stream.try_clone()?;
        let (outbox, inbox) = bounded::<Vec<u8>>(QUEUE);
        let (give_back, returned) = bounded(QUEUE);
        let waiting = Arc::new(AtomicUsize::new(0));
        let written = waiting.clone();
        let writer = std::thread::Builder::new().name("phalanx-send".into()).spawn(move || {
            for bytes in inbox {
                if writing.write_all(&bytes).is_err() {
                    // The reader sees the broken connection too and reports it.
                    return;
                }
                written.fetch_sub(1, Ordering::Release);
                // With enough of them on their way back, one more is not worth waiting for.
                let _ = give_back.try_send(bytes);
            }
        })?;
        Ok(Self { stream, outbox, returned, waiting, writer: Some(writer) })
    }
}

impl Peer {
    /// Writes what the system takes without waiting, unless earlier messages still wait; returns how much.
    fn write_at_once(&self, parts: [&[u8]; 2]) -> std::io::Result<usize> {
        let (Some(flags), 0) = (AT_ONCE, self.waiting.load(Ordering::Acquire)) else { return Ok(0) };
        let socket = socket2::SockRef::from(&self.stream);
        loop {
            let slices = [IoSlice::new(parts[0]), IoSlice::new(parts[1])];
            match socket.send_vectored_with_flags(&slices, flags) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
                done => return done,
            }
        }
    }
}

impl Transport for Tcp {
    fn send(&mut self, to: usize, parts: [&[u8]; 2]) -> Result<(), LinkError> {
        let (start, timeout) = (Instant::now(), self.timeout);
        let peer = self.peer(to)?;
        let written = peer.write_at_once(parts).map_err(|_| LinkError::Closed(to))?;
        if written == parts[0].len() + parts[1].len() {
            return Ok(());
        }
        let mut bytes = peer.returned.try_recv().unwrap_or_default();
        bytes.clear();
        let head = written.min(parts[0].len());
        bytes.extend_from_slice(&parts[0][head..]);
        bytes.extend_from_slice(&parts[1][written - head..]);
        peer.waiting.fetch_add(1, Ordering::Relaxed);
        loop {
            bytes = match peer.outbox.send_timeout(bytes, LOOK) {
                Ok(()) => return Ok(()),
                Err(SendTimeoutError::Disconnected(_)) => return Err(LinkError::Closed(to)),
                Err(SendTimeoutError::Timeout(_)) if start.elapsed() > timeout => {
                    return Err(LinkError::Timeout(to));
                }
                Err(SendTimeoutError::Timeout(bytes)) => bytes,
            };
        }
    }

    fn receive(&mut self, from: usize, mut into: &mut [u8]) -> Result<(), LinkError> {
        let (start, timeout) = (Instant::now(), self.timeout);
        let peer = self.peer(from)?;
        while !into.is_empty() {
            match peer.stream.read(into) {
                Ok(0) => return Err(LinkError::Closed(from)),
                Ok(count) => into = &mut into[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if start.elapsed() > timeout {
                        return Err(LinkError::Timeout(from));
                    }
                }
                Err(_) => return Err(LinkError::Closed(from)),
            }
        }
        Ok(())
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        // What is queued is written before the connections close: a peer may still need it.
        for peer in self.peers.iter_mut().flatten() {
            let (closed, _) = bounded(0);
            peer.outbox = closed;
            if let Some(writer) = peer.writer.take() {
                let _ = writer.join();
            }
            let _ = peer.stream.shutdown(Shutdown::Write);
        }
    }
}
