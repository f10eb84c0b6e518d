//! Operations on GPU buffers, ordered after the work of the computing streams, and before their later work.

use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaStream};

use super::calls;
use super::channel::Channel;
use super::memory::lend;
use crate::buffer::DeviceMut;
use crate::engine::{DeviceOperation, DeviceQueue, Part};
use crate::error::{CommError, Result};
use crate::operation::{Algorithm, Tag};

/// An operation that was issued.
struct OnGpu {
    channel: Arc<Channel>,
    operation: &'static str,
    done: Arc<CudaEvent>,
    /// The streams that compute on its buffers.
    compute: Vec<Arc<CudaStream>>,
    /// Functions that submit work which the streams' users hold back.
    issue: Vec<Arc<dyn Fn() + Send + Sync>>,
    moved: (u64, u64),
}

impl DeviceOperation for OnGpu {
    fn moved(&self) -> (u64, u64) {
        self.moved
    }

    fn is_done(&self) -> bool {
        // A failed operation is over.
        self.channel.link.has_reached(&self.done, self.operation).unwrap_or(true)
    }

    fn hand_over(&self) -> Result<()> {
        let link = &self.channel.link;
        self.issue.iter().for_each(|issue| issue());
        for compute in &self.compute {
            compute.wait(&self.done).map_err(|error| link.driver(self.operation, error))?;
        }
        link.watch.look(self.operation)
    }
}

impl Channel {
    fn check_buffer(&self, operation: &'static str, buffer: &DeviceMut<'_>) -> Result<()> {
        let own = self.context();
        if buffer.contexts().iter().all(|context| *context == own) {
            return Ok(());
        }
        let (own, other) = (own.ordinal(), buffer.gpu());
        let problem = format!(
            "the buffer and the stream that computes on it must be of the primary context of GPU {own}; the buffer is of \
             GPU {other}"
        );
        Err(CommError::Argument { operation, problem })
    }
}

impl DeviceQueue for Channel {
    fn check(&self, tag: Tag, whole: &DeviceMut<'_>, part: &Part<'_>) -> Result<()> {
        let operation = tag.kind.name();
        check_algorithm(tag)?;
        self.check_buffer(operation, whole)?;
        match part {
            Part::Apart(part) | Part::Exchange { to: part, .. } => self.check_buffer(operation, part),
            Part::Chunk | Part::Lengths(_) => Ok(()),
        }
    }

    fn issue(
        self: Arc<Self>,
        tag: Tag,
        mut whole: DeviceMut<'_>,
        part: Part<'_>,
    ) -> Result<Box<dyn DeviceOperation>> {
        let (operation, stream) = (tag.kind.name(), self.stream().clone());
        let (mut apart, lengths, exchange) = match part {
            Part::Chunk => (None, None, None),
            Part::Lengths(lengths) => (None, Some(lengths), None),
            Part::Apart(part) => (Some(part), None, None),
            Part::Exchange { out, to, inn } => (Some(to), None, Some((out, inn))),
        };
        let compute: Vec<_> =
            std::iter::once(&whole).chain(&apart).map(|buffer| buffer.compute().clone()).collect();
        let issue = std::iter::once(&whole).chain(&apart).filter_map(DeviceMut::issue).collect();
        for compute in &compute {
            stream.join(compute).map_err(|error| self.link.driver(operation, error))?;
        }
        let issued = {
            let (whole, _noted) = lend(&mut whole, &stream);
            let (part, _noted_too) = apart.as_mut().map(|part| lend(part, &stream)).unzip();
            let calls = match (lengths, exchange, part) {
                (Some(lengths), ..) => {
                    let own = whole.part(lengths[self.member.rank].clone()).read();
                    calls::all_gather_parts(self.member, own, whole, lengths)
                }
                (None, Some((out, inn)), Some(to)) => {
                    let mut calls = calls::send_parts(whole.read(), out);
                    calls.extend(calls::receive_parts(to, inn));
                    calls
                }
                (None, _, part) => calls::of(tag, self.member, whole, part)?,
            };
            let moved = calls.iter().map(|call| call.moved(self.member));
            let moved = moved.fold((0, 0), |sum, call| (sum.0 + call.0, sum.1 + call.1));
            self.enqueue(operation, &calls).and_then(|()| Ok((moved, self.watched(operation)?)))
        };
        match issued {
            Ok((moved, done)) => {
                Ok(Box::new(OnGpu { channel: self, operation, done, compute, issue, moved }))
            }
            Err(error) => {
                // Some of it may be on the stream all the same, and its caller frees the buffers now.
                for compute in &compute {
                    let _ = compute.join(&stream);
                }
                Err(error)
            }
        }
    }
}

/// Returns an error if an algorithm is required.
pub(super) fn check_algorithm(tag: Tag) -> Result<()> {
    if tag.algorithm == Algorithm::Auto {
        return Ok(());
    }
    let problem = format!("NCCL chooses the way itself; there is none by {}", tag.algorithm);
    Err(CommError::Argument { operation: tag.kind.name(), problem })
}
