//! A link with its stream, which submits operations in order.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result};

use super::bootstrap::OPENING;
use super::calls::{Call, Member};
use super::link::Link;
use super::raw::{ID, RawComm};
use super::watch::Watch;
use super::watchdog::Watchdog;
use crate::error::Result;

/// The queue of operations.
pub(super) struct Channel {
    pub(super) member: Member,
    pub(super) link: Arc<Link>,
    /// Held while an operation is submitted, until NCCL is ready for the next.
    turn: Mutex<()>,
    watchdog: Option<Watchdog>,
    stream: Arc<CudaStream>,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Member { rank, world_size } = self.member;
        write!(f, "Channel(rank {rank} of {world_size}, GPU {})", self.context().ordinal())
    }
}

/// The stream of all channels of a GPU, with a high priority: a reduction that is ready does not wait for the rest of the
/// computation. NCCL needs the operations of several communicators in one order on all GPUs, or they may wait for each other for
/// ever; on one stream they have the order of their issue.
fn urgent_stream(context: &Arc<CudaContext>) -> Result<Arc<CudaStream>, DriverError> {
    static STREAMS: Mutex<Vec<(usize, Weak<CudaStream>)>> = Mutex::new(Vec::new());

    let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    streams.retain(|(_, stream)| stream.strong_count() > 0);
    // A stream holds its context, so the address is unique as long as the stream exists.
    let own = Arc::as_ptr(context) as usize;
    let known = streams.iter().find(|(context, _)| *context == own).and_then(|(_, stream)| stream.upgrade());
    if let Some(stream) = known {
        return Ok(stream);
    }
    context.bind_to_thread()?;
    let (_, greatest) = result::stream::get_priority_range()?;
    let stream = context.new_stream_with_priority(greatest)?;
    streams.push((own, Arc::downgrade(&stream)));
    Ok(stream)
}

impl Channel {
    /// Opens a channel between all ranks with this `id`. Returns when all have come.
    pub(super) fn open(
        context: Arc<CudaContext>,
        id: &[u8; ID],
        member: Member,
        watch: Watch,
    ) -> Result<Arc<Self>> {
        let begin = || {
            let stream = urgent_stream(&context).map_err(|error| error.to_string())?;
            Ok((RawComm::open(member, id)?, stream))
        };
        let (comm, stream) = begin().map_err(|problem| watch.fail(OPENING, problem))?;
        let link = Link::new(context, comm, watch);
        let watchdog =
            Watchdog::start(link.clone()).map_err(|error| link.broken(OPENING, error.to_string()))?;
        let channel = Self { member, link, turn: Mutex::default(), watchdog: Some(watchdog), stream };
        channel.link.settle(OPENING)?;
        Ok(Arc::new(channel))
    }

    /// Returns the stream of operations.
    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    pub(super) fn context(&self) -> &Arc<CudaContext> {
        self.link.context()
    }

    /// Submits calls as one operation. Returns when they are on the stream; calls that move nothing are left out.
    pub(super) fn enqueue(&self, operation: &'static str, calls: &[Call<'_>]) -> Result<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let link = &self.link;
        link.watch.next();
        link.watch.look(operation)?;
        let calls: Vec<_> = calls.iter().filter(|call| !call.is_empty()).collect();
        if calls.is_empty() {
            return Ok(());
        }
        self.context().bind_to_thread().map_err(|error| link.driver(operation, error))?;
        let begun = link.comm().as_ref().map(|comm| comm.enqueue(&calls, &self.stream));
        match begun {
            Some(Ok(())) => link.settle(operation),
            Some(Err(problem)) => Err(link.broken(operation, problem)),
            None => Err(link.gone(operation)),
        }
    }

    /// Records an event after all issued work.
    pub(super) fn record(&self, operation: &'static str) -> Result<CudaEvent> {
        self.stream.record_event(None).map_err(|error| self.link.driver(operation, error))
    }

    /// Records an event after all issued work, which the caller watches.
    pub(super) fn watched(&self, operation: &'static str) -> Result<Arc<CudaEvent>> {
        let done = Arc::new(self.record(operation)?);
        if let Some(watchdog) = &self.watchdog {
            watchdog.mind(operation, done.clone());
        }
        Ok(done)
    }

    /// Waits on the host until the GPU has reached an event.
    pub(super) fn finish(&self, event: &CudaEvent, operation: &'static str) -> Result<()> {
        self.link.finish(event, operation, self.link.watch.wait(operation))
    }
}

impl Drop for Channel {
    /// Lets the GPU finish issued work, as other ranks rely on it. After a panic they may never come.
    fn drop(&mut self) {
        const CLOSING: &str = "closing";
        let link = &self.link;
        let sound = !std::thread::panicking() && link.comm().is_some() && link.watch.look(CLOSING).is_ok();
        let finished = sound && self.record(CLOSING).and_then(|event| self.finish(&event, CLOSING)).is_ok();
        if !finished {
            link.abort();
        }
        drop(self.watchdog.take());
        let comm = link.comm().take();
        if let Some(Err(problem)) = comm.map(RawComm::close) {
            tracing::warn!(problem, "NCCL did not close in good order");
        }
    }
}
