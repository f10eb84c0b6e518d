//! Ranks as processes: one or more TCP connections between each two.
//!
//! A send writes as much as the system takes at once, straight from the caller's memory, and leaves only the rest to an
//! [`Outbox`]. On an encrypted connection the outbox does it all, so that another thread encrypts. The system sizes the
//! sockets' buffers: asking for 4 MiB gained nothing in measurements on Linux's loopback, and asking for less lost a third.
//!
//! With several connections (*lanes*) a large payload is cut into as many parts, which are on their way at the same time:
//! on a long or lossy way one connection's window does not fill the link.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use super::outbox::Outbox;
use super::wire::{Ends, Wire};
use super::{Link, Section};
use crate::partition::chunk;
use crate::patience::{Broken, Patience};
use crate::sealed::is_altered;

/// How often a waiting rank looks whether its time is up.
const LOOK: Duration = Duration::from_millis(500);

/// Payloads below this many bytes go through the first lane alone.
const WIDE: usize = 64 << 10;

/// The flags of a send that takes what fits and returns, and does not raise a signal on a closed connection.
/// The numbers are those of the systems' headers; elsewhere the thread writes everything.
#[cfg(any(target_os = "linux", target_os = "android"))]
const AT_ONCE: Option<i32> = Some(0x40 | 0x4000);
#[cfg(any(target_os = "macos", target_os = "ios"))]
const AT_ONCE: Option<i32> = Some(0x80);
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos", target_os = "ios")))]
const AT_ONCE: Option<i32> = None;

/// One connection.
struct Lane {
    /// What is read from.
    reading: Box<dyn Read + Send>,
    socket: TcpStream,
    /// Whether bytes may be written to the socket as they are.
    plain: bool,
    outbox: Outbox,
}

/// The connections to one other rank.
pub(crate) struct Tcp {
    lanes: Vec<Lane>,
    patience: Patience,
}

impl Tcp {
    /// Takes over established connections, in the order that both sides know them by.
    pub(crate) fn new(wires: Vec<Wire>, patience: Patience) -> std::io::Result<Self> {
        let lane = |wire: Wire| {
            let socket = wire.socket().try_clone()?;
            socket.set_nonblocking(false)?;
            socket.set_nodelay(true)?;
            socket.set_read_timeout(Some(LOOK))?;
            let waker = socket.try_clone()?;
            // Closing the socket is what ends a blocked read or write.
            patience.failure.on_break(move || drop(waker.shutdown(Shutdown::Both)));
            let (reading, plain, outbox): (Box<dyn Read + Send>, _, _) = match wire.split()? {
                Ends::Plain(reading, mut writing) => {
                    (Box::new(reading), true, Outbox::new(move |bytes| writing.write_all(bytes).is_ok()))
                }
                Ends::Sealed(reading, mut writing) => {
                    (Box::new(reading), false, Outbox::new(move |bytes| writing.write_all(bytes).is_ok()))
                }
            };
            Ok(Lane { reading, socket, plain, outbox })
        };
        let lanes = wires.into_iter().map(lane).collect::<std::io::Result<_>>()?;
        Ok(Self { lanes, patience })
    }

    /// Which part of a payload of `len` bytes goes through a lane.
    fn share(&self, len: usize, lane: usize) -> std::ops::Range<usize> {
        match (len < WIDE, lane) {
            (false, _) => chunk(len, self.lanes.len(), lane),
            (true, 0) => 0..len,
            (true, _) => 0..0,
        }
    }
}

impl Lane {
    /// Writes what the system takes without waiting, unless earlier messages still wait; returns how much.
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

    fn send(&mut self, parts: [&[u8]; 2], patience: &Patience) -> Result<(), Broken> {
        let written = self.write_at_once(parts).map_err(|_| Broken::Closed)?;
        if written == parts[0].len() + parts[1].len() {
            return Ok(());
        }
        self.outbox.push(parts, written, patience)
    }

    fn receive(&mut self, mut into: &mut [u8], patience: &Patience) -> Result<(), Broken> {
        let start = Instant::now();
        while !into.is_empty() {
            match self.reading.read(into) {
                Ok(0) => return Err(Broken::Closed),
                Ok(count) => into = &mut into[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if let Some(broken) = patience.ended(start) {
                        return Err(broken);
                    }
                }
                Err(error) if is_altered(&error) => return Err(Broken::Altered),
                Err(_) => return Err(Broken::Closed),
            }
        }
        Ok(())
    }
}

impl Link for Tcp {
    fn send(&mut self, [header, payload]: [&[u8]; 2]) -> Result<(), Broken> {
        for index in 0..self.lanes.len() {
            let share = self.share(payload.len(), index);
            let header = if index == 0 { header } else { &[] };
            if index == 0 || !share.is_empty() {
                self.lanes[index].send([header, &payload[share]], &self.patience)?;
            }
        }
        Ok(())
    }

    fn receive(&mut self, section: Section, into: &mut [u8]) -> Result<(), Broken> {
        if section == Section::Header {
            return self.lanes[0].receive(into, &self.patience);
        }
        for index in 0..self.lanes.len() {
            let share = self.share(into.len(), index);
            self.lanes[index].receive(&mut into[share], &self.patience)?;
        }
        Ok(())
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // What is queued is written before the connection closes.
        self.outbox = Outbox::new(|_| false);
        let _ = self.socket.shutdown(Shutdown::Write);
    }
}
