//! A connection's two directions, plain or encrypted.

use std::io::{ErrorKind, Read, Result, Write};
use std::net::TcpStream;

use crate::sealed::{Opener, Sealer};

/// What is read at once of an encrypted connection, and what is written at once: two of the longest records.
const AT_ONCE: usize = 128 << 10;

/// A connection to another rank, whose ends have shaken hands.
#[derive(Debug)]
pub(crate) enum Wire {
    Plain(TcpStream),
    Sealed(Box<(Sealer, Opener)>, TcpStream),
}

impl Wire {
    /// The socket underneath.
    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) | Self::Sealed(_, stream) => stream,
        }
    }

    /// Takes a wire apart into the ends that are read and written by different threads.
    pub(super) fn split(self) -> Result<Ends> {
        Ok(match self {
            Self::Plain(stream) => Ends::Plain(stream.try_clone()?, stream),
            Self::Sealed(ends, stream) => {
                let (sealer, opener) = *ends;
                let reading = SealedReader { opener, stream: stream.try_clone()? };
                Ends::Sealed(reading, SealedWriter { sealer, stream, out: Vec::new() })
            }
        })
    }
}

/// The ends of a wire.
pub(super) enum Ends {
    Plain(TcpStream, TcpStream),
    Sealed(SealedReader, SealedWriter),
}

/// The end of an encrypted connection that is read.
pub(super) struct SealedReader {
    opener: Opener,
    stream: TcpStream,
}

impl Read for SealedReader {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        loop {
            if let Some(count) = self.opener.take(into)? {
                return Ok(count);
            }
            match self.stream.read(self.opener.room(AT_ONCE))? {
                0 if self.opener.is_between_records() => return Ok(0),
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => self.opener.put(count),
            }
        }
    }
}

/// The end of an encrypted connection that is written.
pub(super) struct SealedWriter {
    sealer: Sealer,
    stream: TcpStream,
    out: Vec<u8>,
}

impl SealedWriter {
    /// Writes all bytes, as soon as the socket takes them.
    pub(super) fn write_all(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            self.out.clear();
            let count = self.sealer.records(bytes, &mut self.out, AT_ONCE)?;
            self.stream.write_all(&self.out)?;
            bytes = &bytes[count..];
        }
        Ok(())
    }
}
