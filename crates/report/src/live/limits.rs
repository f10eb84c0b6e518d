//! Limits of the live page: the number of connections, and the time of one on which no answer makes progress.

use std::future::Future as _;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

/// The limits of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServeLimits {
    /// The most connections at a time. Further ones wait until one is closed.
    pub connections: usize,
    /// The time after which a connection is closed on which the server has sent nothing. Pages that follow a run receive something
    /// every 15 seconds.
    pub idle: Duration,
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self { connections: 256, idle: Duration::from_secs(60) }
    }
}

/// The pause after a failed accept, for example because no descriptor is left.
const PAUSE: Duration = Duration::from_millis(100);

/// A listener that accepts a limited number of connections at a time.
pub(super) struct LimitedListener {
    inner: TcpListener,
    places: Arc<Semaphore>,
    idle: Duration,
}

impl LimitedListener {
    pub(super) fn new(inner: TcpListener, limits: ServeLimits) -> Self {
        let places = Arc::new(Semaphore::new(limits.connections.clamp(1, Semaphore::MAX_PERMITS)));
        Self { inner, places, idle: limits.idle }
    }
}

impl Listener for LimitedListener {
    type Io = LimitedStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (LimitedStream, SocketAddr) {
        loop {
            // The semaphore is never closed.
            let Ok(place) = self.places.clone().acquire_owned().await else {
                std::future::pending::<()>().await;
                continue;
            };
            match self.inner.accept().await {
                Ok((stream, from)) => {
                    let limit = Box::pin(tokio::time::sleep(self.idle));
                    return (LimitedStream { stream, limit, idle: self.idle, _place: place }, from);
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }
}

/// A connection that ends when nothing was sent on it for some time: reading alone does not count, so a request that comes byte by
/// byte ends too.
pub(super) struct LimitedStream {
    stream: TcpStream,
    limit: Pin<Box<Sleep>>,
    idle: Duration,
    /// Its place among the connections.
    _place: OwnedSemaphorePermit,
}

impl LimitedStream {
    /// Returns an error if the time is up, and wakes the task when it is.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.limit.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }

    /// Begins the time anew after bytes were sent.
    fn sent(&mut self, result: &Poll<io::Result<usize>>) {
        if matches!(result, Poll::Ready(Ok(1..))) {
            let until = Instant::now() + self.idle;
            self.limit.as_mut().reset(until);
        }
    }
}

impl AsyncRead for LimitedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for LimitedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.sent(&result);
        if result.is_pending() {
            self.check(context)?;
        }
        result
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.sent(&result);
        if result.is_pending() {
            self.check(context)?;
        }
        result
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
