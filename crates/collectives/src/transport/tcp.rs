//! Links between processes: one or more TCP connections between each pair of ranks.
//!
//! A send writes as much as the system takes at once, directly from the caller's memory, and leaves only the rest to an [`Outbox`].
//! On an encrypted connection the outbox writes everything, so that another thread encrypts. The system sizes the sockets' buffers:
//! 4 MiB gained nothing in measurements on Linux's loopback, and less lost a third.
//!
//! With several connections (*lanes*) a large payload is cut into as many parts, which travel at the same time: over long or lossy
//! distances one connection's window does not fill the link.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use super::outbox::Outbox;
use super::wire::{Wire, WireHalves};
use super::{Link, Section};
use crate::encrypted::is_altered;
use crate::partition::chunk;
use crate::waiting::{LinkFault, WaitLimits};

/// The time between two checks of a waiting rank for a timeout.
const LOOK: Duration = Duration::from_millis(500);

/// Payloads below this many bytes use the first lane only.
const WIDE: usize = 64 << 10;

/// The flags of a send that takes the bytes that fit and raises no signal on a closed connection, from the systems' headers. On
/// other systems the thread writes everything.
#[cfg(any(target_os = "linux", target_os = "android"))]
const AT_ONCE: Option<i32> = Some(0x40 | 0x4000);
#[cfg(any(target_os = "macos", target_os = "ios"))]
const AT_ONCE: Option<i32> = Some(0x80);
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos", target_os = "ios")))]
const AT_ONCE: Option<i32> = None;

/// One connection.
struct Lane {
    /// The reading end.
    reading: Box<dyn Read + Send>,
    socket: TcpStream,
    /// True if bytes may be written to the socket unencrypted.
    plain: bool,
    outbox: Outbox,
}

/// The connections to one other rank.
pub(crate) struct Tcp {
    lanes: Vec<Lane>,
    limits: WaitLimits,
}

impl Tcp {
    /// Wraps established connections, in the same order on both sides.
    pub(crate) fn new(wires: Vec<Wire>, limits: WaitLimits) -> std::io::Result<Self> {
        let lane = |wire: Wire| {
            let socket = wire.socket().try_clone()?;
            socket.set_nonblocking(false)?;
            socket.set_nodelay(true)?;
            socket.set_read_timeout(Some(LOOK))?;
            let waker = socket.try_clone()?;
            // Closing the socket ends a blocked read or write.
            limits.failure.on_break(move || drop(waker.shutdown(Shutdown::Both)));
            let (reading, plain, outbox): (Box<dyn Read + Send>, _, _) = match wire.split()? {
                WireHalves::Plain(reading, mut writing) => {
                    (Box::new(reading), true, Outbox::new(move |bytes| writing.write_all(bytes).is_ok()))
                }
                WireHalves::Encrypted(reading, mut writing) => {
                    (Box::new(reading), false, Outbox::new(move |bytes| writing.write_all(bytes).is_ok()))
                }
            };
            Ok(Lane { reading, socket, plain, outbox })
        };
        let lanes = wires.into_iter().map(lane).collect::<std::io::Result<_>>()?;
        Ok(Self { lanes, limits })
    }

    /// Returns the part of a payload of `len` bytes for a lane.
    fn share(&self, len: usize, lane: usize) -> std::ops::Range<usize> {
        match (len < WIDE, lane) {
            (false, _) => chunk(len, self.lanes.len(), lane),
            (true, 0) => 0..len,
            (true, _) => 0..0,
        }
    }
}

impl Lane {
    /// Writes the bytes that the system takes without waiting, unless earlier messages wait; returns their number.
    fn write_at_once(&self, parts: [&[u8]; 2]) -> std::io::Result<usize> {
        let (Some(flags), true) = (AT_ONCE, self.plain && self.outbox.is_empty()) else { return Ok(0) };
        let socket = socket2::SockRef::from(&self.socket);
        loop {
            let slices = [IoSlice::new(parts[0]), IoSlice::new(parts[1])];
            match socket.send_vectored_with_flags(&slices, flags) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
                done => return done,
            }
        }
    }

    fn send(&mut self, parts: [&[u8]; 2], limits: &WaitLimits) -> Result<(), LinkFault> {
        let written = self.write_at_once(parts).map_err(|_| LinkFault::Closed)?;
        if written == parts[0].len() + parts[1].len() {
            return Ok(());
        }
        self.outbox.push(parts, written, limits)
    }

    fn receive(&mut self, mut into: &mut [u8], limits: &WaitLimits) -> Result<(), LinkFault> {
        let start = Instant::now();
        while !into.is_empty() {
            match self.reading.read(into) {
                Ok(0) => return Err(LinkFault::Closed),
                Ok(count) => into = &mut into[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if let Some(broken) = limits.ended(start) {
                        return Err(broken);
                    }
                }
                Err(error) if is_altered(&error) => return Err(LinkFault::Altered),
                Err(_) => return Err(LinkFault::Closed),
            }
        }
        Ok(())
    }
}

impl Link for Tcp {
    fn send(&mut self, [header, payload]: [&[u8]; 2]) -> Result<(), LinkFault> {
        for index in 0..self.lanes.len() {
            let share = self.share(payload.len(), index);
            let header = if index == 0 { header } else { &[] };
            if index == 0 || !share.is_empty() {
                self.lanes[index].send([header, &payload[share]], &self.limits)?;
            }
        }
        Ok(())
    }

    fn receive(&mut self, section: Section, into: &mut [u8]) -> Result<(), LinkFault> {
        if section == Section::Header {
            return self.lanes[0].receive(into, &self.limits);
        }
        for index in 0..self.lanes.len() {
            let share = self.share(into.len(), index);
            self.lanes[index].receive(&mut into[share], &self.limits)?;
        }
        Ok(())
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // Queued bytes are written before the connection closes.
        self.outbox = Outbox::new(|_| false);
        let _ = self.socket.shutdown(Shutdown::Write);
    }
}
