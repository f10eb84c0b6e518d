//! Operations on buffers that may be in GPU memory. Those are issued at once, on the caller's thread.

use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{AlgorithmChoice, Communicator, Job, perform, span};
use crate::buffer::{DeviceMut, FlatBuffer};
use crate::engine::{DeviceOperation, Engine, Facts, Part};
use crate::error::{CommError, Result};
use crate::handle::Handle;
use crate::operation::{Scope, Tag};

/// An operation on a GPU; `None` for buffers on the host.
type OnDevice = Result<Option<Box<dyn DeviceOperation>>>;

impl Communicator {
    /// Runs an operation of all ranks on one buffer: by `run` on this thread, or on its GPU.
    pub(super) fn run_on<B: FlatBuffer + ?Sized>(
        &self,
        tag: Tag,
        buffer: &mut B,
        run: impl FnOnce(&mut dyn Engine, &mut B) -> Result<()>,
    ) -> Result<()> {
        match self.one_on_device(tag, buffer)? {
            Some(under_way) => under_way.hand_over(),
            None => self.run(Scope::World, tag, |engine| run(engine, buffer)),
        }
    }

    /// Issues an operation of all ranks on one buffer: by `run` to the communication thread, or to its GPU.
    pub(super) fn issue_on<B: FlatBuffer>(
        &self,
        tag: Tag,
        mut buffer: B,
        run: impl FnOnce(&mut dyn Engine, &mut B) -> Result<()> + Send + 'static,
    ) -> Handle<B> {
        match self.one_on_device(tag, &mut buffer) {
            Err(error) => Handle::failed(error, self.inner.counters.clone()),
            Ok(Some(under_way)) => Handle::on_device(buffer, under_way, self.inner.counters.clone()),
            Ok(None) => self.issue(Scope::World, tag, move |engine| {
                run(engine, &mut buffer)?;
                Ok(buffer)
            }),
        }
    }

    fn one_on_device<B: FlatBuffer + ?Sized>(&self, tag: Tag, buffer: &mut B) -> OnDevice {
        let len = tag.count as usize;
        opened(tag, buffer, len)?.map(|whole| self.issue_on_device(tag, whole, Part::Chunk)).transpose()
    }

    /// Describes an operation on a buffer with these parts.
    pub(super) fn parts_on_device<B: FlatBuffer + ?Sized>(
        &self,
        tag: Tag,
        buffer: &mut B,
        parts: &[Range<usize>],
    ) -> OnDevice {
        let len = buffer.len();
        opened(tag, buffer, len)?
            .map(|whole| self.issue_on_device(tag, whole, Part::Lengths(parts)))
            .transpose()
    }

    /// Describes an operation on a whole and a separate part. Both must be on the host or both on the GPU.
    pub(super) fn both_on_device<B: FlatBuffer + ?Sized, P: FlatBuffer + ?Sized>(
        &self,
        tag: Tag,
        whole: &mut B,
        part: &mut P,
    ) -> OnDevice {
        let of_part = part.len();
        match (opened(tag, whole, tag.count as usize)?, opened(tag, part, of_part)?) {
            (None, None) => Ok(None),
            (Some(whole), Some(part)) => self.issue_on_device(tag, whole, Part::Apart(part)).map(Some),
            (Some(on), None) | (None, Some(on)) => Err(apart(tag, &on)),
        }
    }

    /// Describes an exchange between two buffers. Both must be on the host or both on the GPU.
    pub(super) fn exchange_on_device<B: FlatBuffer + ?Sized, P: FlatBuffer + ?Sized>(
        &self,
        tag: Tag,
        (from, out): (&mut B, &[Range<usize>]),
        (to, inn): (&mut P, &[Range<usize>]),
    ) -> OnDevice {
        let lengths = (from.len(), to.len());
        match (opened(tag, from, lengths.0)?, opened(tag, to, lengths.1)?) {
            (None, None) => Ok(None),
            (Some(from), Some(to)) => {
                self.issue_on_device(tag, from, Part::Exchange { out, to, inn }).map(Some)
            }
            (Some(on), None) | (None, Some(on)) => Err(apart(tag, &on)),
        }
    }

    fn issue_on_device(
        &self,
        tag: Tag,
        whole: DeviceMut<'_>,
        part: Part<'_>,
    ) -> Result<Box<dyn DeviceOperation>> {
        let start = Instant::now();
        // Holding the queue keeps later operations of other threads behind this one.
        let queue = self.queue();
        let Some(jobs) = &queue.jobs else { return Err(CommError::Closed) };
        let device = self.inner.device.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(device) = device else {
            let (gpu, by) = (whole.gpu(), self.inner.by);
            let problem = format!(
                "the buffer lies in the memory of GPU {gpu}, and this communicator works by {by}, which does not reach it; \
                 one of `nccl::communicator` does"
            );
            return Err(CommError::Argument { operation: tag.kind.name(), problem });
        };
        let wanted = match self.choice {
            AlgorithmChoice::Only(algorithm) => tag.with_algorithm(algorithm),
            AlgorithmChoice::Prefer(_) => tag,
        };
        device.check(wanted, &whole, &part)?;
        if self.inner.moving.load(Ordering::Acquire) > 0 {
            self.fence(jobs)?;
        }
        let lengths = |parts: &[Range<usize>]| parts.iter().map(Range::len).collect();
        let facts = match &part {
            Part::Lengths(parts) => Facts::Same(format!("{} with parts at {parts:?}", tag.kind.name())),
            Part::Exchange { out, inn, .. } => Facts::Exchange { out: lengths(out), inn: lengths(inn) },
            Part::Chunk | Part::Apart(_) => Facts::Same(String::new()),
        };
        let (counters, choice, label) = (self.inner.counters.clone(), self.choice, self.label.clone());
        // Before the operation is issued, which may wait for ranks that have called another one.
        let agree: Job = Box::new(move |engine| {
            engine.in_background(true);
            // If it fails, the engine breaks the world, which tells the other ranks.
            let span = span::agreement(tag);
            let _ =
                perform(engine, &counters, (Scope::World, tag, choice), label.as_ref(), &span, |engine| {
                    engine.agree(&facts)
                });
            engine.in_background(false);
        });
        self.queue_job(jobs, agree)?;
        let span = span::issue(tag);
        let under_way = span.in_scope(|| device.issue(tag, whole, part))?;
        let (sent, received) = under_way.moved();
        span::moved(&span, sent, received);
        self.inner.counters.moved(sent, received);
        self.inner.counters.exposed(start.elapsed());
        Ok(under_way)
    }
}

/// The error of buffers of which only one is in GPU memory.
fn apart(tag: Tag, on: &DeviceMut<'_>) -> CommError {
    let problem = format!("one buffer lies in the memory of GPU {}, the other on the host", on.gpu());
    CommError::Argument { operation: tag.kind.name(), problem }
}

/// Opens a buffer in GPU memory, and checks its description.
fn opened<B: FlatBuffer + ?Sized>(tag: Tag, buffer: &mut B, len: usize) -> Result<Option<DeviceMut<'_>>> {
    let Some(memory) = buffer.device() else { return Ok(None) };
    if (memory.dtype(), memory.len()) == (tag.dtype, len) {
        return Ok(Some(memory));
    }
    let (says, is, holds) = (tag.dtype.name(), memory.dtype().name(), memory.len());
    let problem = format!("the buffer says that it holds {len} {says}, but has {holds} {is} on a GPU");
    Err(CommError::Argument { operation: tag.kind.name(), problem })
}
