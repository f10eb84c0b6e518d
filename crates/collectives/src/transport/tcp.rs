//! Ranks as processes: a TCP connection between each two.
//!
//! A thread a connection writes, so that sending never waits for the peer to receive and two ranks that send to
//! each other cannot block. Buffers go back and forth between it and the communication thread.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::{LinkError, Transport};
use crate::failure::Failure;

/// How often a waiting rank looks whether its time is up.
const LOOK: Duration = Duration::from_millis(500);

/// Socket buffers: enough that a pipelined piece fits while the next is computed.
const SOCKET_BUFFER: usize = 4 << 20;

struct Peer {
    stream: TcpStream,
    outbox: Sender<Vec<u8>>,
    returned: Receiver<Vec<u8>>,
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
        let socket = socket2::SockRef::from(&stream);
        // The system may grant less; that costs speed, not correctness.
        let _ = socket.set_send_buffer_size(SOCKET_BUFFER);
        let _ = socket.set_recv_buffer_size(SOCKET_BUFFER);
        let mut writing = stream.try_clone()?;
        let (outbox, inbox) = unbounded::<Vec<u8>>();
        let (give_back, returned) = unbounded();
        let writer = std::thread::Builder::new().name("phalanx-send".into()).spawn(move || {
            for bytes in inbox {
                if writing.write_all(&bytes).is_err() {
                    // The reader sees the broken connection too and reports it.
                    return;
                }
                let _ = give_back.send(bytes);
            }
        })?;
        Ok(Self { stream, outbox, returned, writer: Some(writer) })
    }
}

impl Transport for Tcp {
    fn send(&mut self, to: usize, parts: [&[u8]; 2]) -> Result<(), LinkError> {
        let peer = self.peer(to)?;
        let mut bytes = peer.returned.try_recv().unwrap_or_default();
        bytes.clear();
        for part in parts {
            bytes.extend_from_slice(part);
        }
        peer.outbox.send(bytes).map_err(|_| LinkError::Closed(to))
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
            let (closed, _) = unbounded();
            peer.outbox = closed;
            if let Some(writer) = peer.writer.take() {
                let _ = writer.join();
            }
            let _ = peer.stream.shutdown(Shutdown::Write);
        }
    }
}
