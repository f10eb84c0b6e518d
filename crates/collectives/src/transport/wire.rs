//! A connection's two directions, plain or encrypted.

use std::io::{ErrorKind, Read, Result, Write};
use std::net::TcpStream;

use crate::encrypted::{Decryptor, Encryptor};

/// Bytes that are read or written at a time on an encrypted connection: two of the longest records.
const AT_ONCE: usize = 128 << 10;

/// A connection to another rank, whose ends have shaken hands.
#[derive(Debug)]
pub(crate) enum Wire {
    Plain(TcpStream),
    Encrypted(Box<(Encryptor, Decryptor)>, TcpStream),
}

impl Wire {
    /// Returns the socket.
    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) | Self::Encrypted(_, stream) => stream,
        }
    }

    /// Splits a wire into the halves that different threads read and write.
    pub(super) fn split(self) -> Result<WireHalves> {
        Ok(match self {
            Self::Plain(stream) => WireHalves::Plain(stream.try_clone()?, stream),
            Self::Encrypted(ends, stream) => {
                let (encryptor, decryptor) = *ends;
                let reading = EncryptedReader { decryptor, stream: stream.try_clone()? };
                WireHalves::Encrypted(reading, EncryptedWriter { encryptor, stream, out: Vec::new() })
            }
        })
    }
}

/// The halves of a wire.
pub(super) enum WireHalves {
    Plain(TcpStream, TcpStream),
    Encrypted(EncryptedReader, EncryptedWriter),
}

/// The reading half of an encrypted connection.
pub(super) struct EncryptedReader {
    decryptor: Decryptor,
    stream: TcpStream,
}

impl Read for EncryptedReader {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        loop {
            if let Some(count) = self.decryptor.take(into)? {
                return Ok(count);
            }
            match self.stream.read(self.decryptor.room(AT_ONCE))? {
                0 if self.decryptor.is_between_records() => return Ok(0),
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => self.decryptor.put(count),
            }
        }
    }
}

/// The writing half of an encrypted connection.
pub(super) struct EncryptedWriter {
    encryptor: Encryptor,
    stream: TcpStream,
    out: Vec<u8>,
}

impl EncryptedWriter {
    /// Writes all bytes, as soon as the socket takes them.
    pub(super) fn write_all(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            self.out.clear();
            let count = self.encryptor.records(bytes, &mut self.out, AT_ONCE)?;
            self.stream.write_all(&self.out)?;
            bytes = &bytes[count..];
        }
        Ok(())
    }
}
