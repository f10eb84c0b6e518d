//! A connection's two directions, plain or encrypted.

use std::io::{Read, Write};
use std::net::TcpStream;

/// A connection to another rank.
#[derive(Debug)]
pub(crate) enum Wire {
    Plain(TcpStream),
    #[cfg(feature = "tls")]
    Encrypted(Box<rustls::Connection>, TcpStream),
}

impl Wire {
    /// The socket underneath.
    pub(super) fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            #[cfg(feature = "tls")]
            Self::Encrypted(_, stream) => stream,
        }
    }
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(into),
            #[cfg(feature = "tls")]
            Self::Encrypted(connection, stream) => encrypted::read(connection, stream, into),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            #[cfg(feature = "tls")]
            Self::Encrypted(connection, stream) => encrypted::write(connection, stream, bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            #[cfg(feature = "tls")]
            Self::Encrypted(connection, stream) => encrypted::write(connection, stream, &[]).map(drop),
        }
    }
}

/// The ends of a wire that is read and written by different threads.
pub(super) enum Ends {
    Plain(TcpStream, TcpStream),
    #[cfg(feature = "tls")]
    Encrypted(encrypted::Reading, encrypted::Writing),
}

impl Wire {
    /// Takes a wire apart.
    pub(super) fn split(self) -> std::io::Result<Ends> {
        Ok(match self {
            Self::Plain(stream) => Ends::Plain(stream.try_clone()?, stream),
            #[cfg(feature = "tls")]
            Self::Encrypted(connection, stream) => {
                let (reading, writing) = encrypted::split(*connection, stream)?;
                Ends::Encrypted(reading, writing)
            }
        })
    }
}

#[cfg(feature = "tls")]
pub(super) mod encrypted {
    //! The state of an encrypted connection is one for both directions, so both ends share it; neither holds it while it
    //! waits for the socket.

    use std::io::{ErrorKind, Read, Result, Write};
    use std::net::TcpStream;
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

    use rustls::Connection;

    /// Reads, for whoever has both directions; encryption is agreed upon first.
    pub(super) fn read(
        connection: &mut Connection,
        stream: &mut TcpStream,
        into: &mut [u8],
    ) -> Result<usize> {
        loop {
            write(connection, stream, &[])?;
            match connection.reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                done => return done,
            }
            let (came, _) = connection.complete_io(stream)?;
            if came == 0 {
                return Ok(0);
            }
        }
    }

    /// Writes, for whoever has both directions; encryption is agreed upon first.
    pub(super) fn write(connection: &mut Connection, stream: &mut TcpStream, bytes: &[u8]) -> Result<usize> {
        if connection.is_handshaking() {
            connection.complete_io(stream)?;
        }
        let count = connection.writer().write(bytes)?;
        while connection.wants_write() {
            connection.write_tls(stream)?;
        }
        Ok(count)
    }

    type State = Arc<Mutex<Connection>>;

    fn lock(state: &State) -> MutexGuard<'_, Connection> {
        state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end that reads.
    pub(in crate::transport) struct Reading {
        state: State,
        stream: TcpStream,
        /// Bytes as they came, of which the state has taken so many.
        came: Vec<u8>,
        taken: usize,
        filled: usize,
    }

    /// The end that writes.
    pub(in crate::transport) struct Writing {
        state: State,
        stream: TcpStream,
        /// Encrypted bytes on their way to the socket.
        out: Vec<u8>,
    }

    pub(super) fn split(connection: Connection, stream: TcpStream) -> Result<(Reading, Writing)> {
        let state = Arc::new(Mutex::new(connection));
        let (theirs, other) = (state.clone(), stream.try_clone()?);
        let came = vec![0; 64 << 10];
        let reading = Reading { state: theirs, stream: other, came, taken: 0, filled: 0 };
        Ok((reading, Writing { state, stream, out: Vec::new() }))
    }

    impl Read for Reading {
        fn read(&mut self, into: &mut [u8]) -> Result<usize> {
            loop {
                let mut state = lock(&self.state);
                match state.reader().read(into) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    done => return done,
                }
                if self.taken < self.filled {
                    let mut rest = &self.came[self.taken..self.filled];
                    self.taken += state.read_tls(&mut rest)?;
                    state.process_new_packets().map_err(std::io::Error::other)?;
                    continue;
                }
                drop(state);
                self.filled = self.stream.read(&mut self.came)?;
                self.taken = 0;
                if self.filled == 0 {
                    return Ok(0);
                }
            }
        }
    }

    impl Writing {
        pub(in crate::transport) fn write_all(&mut self, mut bytes: &[u8]) -> Result<()> {
            while !bytes.is_empty() {
                let mut state = lock(&self.state);
                let count = state.writer().write(bytes)?;
                bytes = &bytes[count..];
                self.out.clear();
                while state.wants_write() {
                    state.write_tls(&mut self.out)?;
                }
                drop(state);
                self.stream.write_all(&self.out)?;
            }
            Ok(())
        }
    }
}
