//! Where the ranks of one host meet.

use std::io;
use std::net::{TcpListener, UdpSocket};
use std::ops::Range;

/// Below the ports of jobs, and below those that systems give to outgoing connections: such a connection might take the
/// port before rank 0 listens on it.
const PORTS: Range<u16> = 10_240..20_000;

/// The number of ports tried.
const DRAWN: usize = 16;

/// A free port of the loopback interface that the system gives to no outgoing connection. As long as this lives, nothing else
/// draws it: launchers that start at the same time have ports of their own, before their ranks listen.
#[derive(Debug)]
pub struct MeetingPort {
    number: u16,
    /// The UDP port of the same number. Ranks use the TCP port, so it is a mark that ends with this process.
    _mark: UdpSocket,
}

impl MeetingPort {
    /// Draws a port.
    ///
    /// # Errors
    /// If the system has no random numbers or no free port.
    pub fn draw() -> io::Result<Self> {
        for _ in 0..DRAWN {
            let mut drawn = [0; 8];
            getrandom::fill(&mut drawn).map_err(|error| io::Error::other(error.to_string()))?;
            let among = u64::from(PORTS.end - PORTS.start);
            if let Ok(port) = Self::marked(PORTS.start + (u64::from_le_bytes(drawn) % among) as u16) {
                return Ok(port);
            }
        }
        Self::marked(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
    }

    /// Marks the port, and checks that nothing listens on it.
    fn marked(number: u16) -> io::Result<Self> {
        let mark = UdpSocket::bind(("127.0.0.1", number))?;
        TcpListener::bind(("127.0.0.1", number))?;
        Ok(Self { number, _mark: mark })
    }

    /// The port's number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_free_and_none_of_those_that_connections_are_given() {
        for _ in 0..20 {
            let port = MeetingPort::draw().expect("there are thousands");
            assert!(PORTS.contains(&port.number()), "{port:?}");
            TcpListener::bind(("127.0.0.1", port.number())).expect("the port is free");
        }
    }

    #[test]
    fn a_port_is_drawn_once_until_it_is_given_back() {
        let port = MeetingPort::draw().expect("there are thousands");
        MeetingPort::marked(port.number()).expect_err("it is drawn");
        let number = port.number();
        drop(port);
        let listener = TcpListener::bind(("127.0.0.1", number)).expect("nothing listens");
        MeetingPort::marked(number).expect_err("something listens");
        drop(listener);
        MeetingPort::marked(number).expect("it is free again");
    }
}
