//! Requests of users while a run trains. Rank 0 receives them, and all ranks act on them between the same two steps.

mod handler;

use std::collections::VecDeque;

pub(super) use handler::RequestHandler;

use crate::engine::TrainError;
use crate::engine::distributed::{Agreed, AgreedAction, Distributed, StopReason};
use crate::engine::observer::{Event, Observer, Started};
use phalanx_run::{Request, RunActivity, RunFolder};

/// The requests of users, as one rank has them.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// Receives requests, on rank 0.
    handler: Option<RequestHandler>,
    /// Actions that all ranks have agreed to take before the next step.
    agreed: VecDeque<AgreedAction>,
    /// True while the run is paused.
    pub(super) paused: bool,
}

impl Requests {
    /// Starts to receive requests on rank 0.
    pub(super) fn open(&mut self, folder: &RunFolder, started: &Started) -> Result<(), TrainError> {
        self.handler = Some(RequestHandler::open(folder, started)?);
        Ok(())
    }

    /// True on the rank that receives requests.
    pub(super) fn has_handler(&self) -> bool {
        self.handler.is_some()
    }

    /// The handler of requests, on rank 0.
    pub(super) fn handler(&mut self) -> Option<&mut RequestHandler> {
        self.handler.as_mut()
    }

    /// Takes over from the old rank 0.
    pub(super) fn set_handler(&mut self, handler: RequestHandler) {
        self.handler = Some(handler);
    }

    /// Gives up the handler.
    pub(super) fn take_handler(&mut self) -> Option<RequestHandler> {
        self.handler.take()
    }

    /// Returns the next action or stop that all ranks have agreed on before the step after `step`. After an action this is called
    /// again.
    pub(super) fn before_step(
        &mut self,
        step: u64,
        distributed: &Distributed,
        observer: &mut dyn Observer,
    ) -> Result<Option<Agreed>, TrainError> {
        self.poll(step, distributed, observer)?;
        match self.agreed.pop_front() {
            Some(action) => Ok(Some(Agreed::Action(action))),
            None => distributed.job().begin(2 * step),
        }
    }

    /// Returns the reason if all ranks have agreed to stop after `step`. Actions that were agreed on before wait until the next step.
    pub(super) fn after_step(
        &mut self,
        step: u64,
        distributed: &Distributed,
    ) -> Result<Option<StopReason>, TrainError> {
        loop {
            match distributed.job().begin(2 * step - 1)? {
                None => return Ok(None),
                Some(Agreed::Stop(reason)) => return Ok(Some(reason)),
                Some(Agreed::Action(action)) => self.agreed.push_back(action),
            }
        }
    }

    /// Waits a moment for the next action or stop, while the run is paused after `step`. No operation waits in that time, and the
    /// control plane sends heartbeats, so no rank takes another for dead.
    pub(super) fn while_paused(
        &mut self,
        step: u64,
        distributed: &Distributed,
        observer: &mut dyn Observer,
    ) -> Result<Option<Agreed>, TrainError> {
        self.poll(step, distributed, observer)?;
        match self.agreed.pop_front() {
            Some(action) => Ok(Some(Agreed::Action(action))),
            None => distributed.job().next(handler::LOOK),
        }
    }

    /// Puts an action back, to be taken first.
    pub(super) fn put_back(&mut self, action: AgreedAction) {
        self.agreed.push_front(action);
    }

    /// Removes the actions that were agreed on: after a world broke, some ranks may not know them.
    pub(super) fn clear_agreed(&mut self) {
        self.agreed.clear();
    }

    /// Removes a request that is done.
    pub(super) fn finish(&mut self, request: Request) {
        if let Some(handler) = &mut self.handler {
            handler.remove(request);
        }
    }

    /// Writes the activity of the run after `step`, on rank 0, and tells the observer.
    pub(super) fn announce(
        &mut self,
        doing: RunActivity,
        step: u64,
        text: &str,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        tracing::info!("{text}");
        if let Some(handler) = &mut self.handler {
            handler.set(doing, step)?;
            observer.event(&Event::Note(text.to_owned()));
        }
        Ok(())
    }

    fn poll(
        &mut self,
        step: u64,
        distributed: &Distributed,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        self.handler.as_mut().map_or(Ok(()), |handler| handler.poll(step, distributed, observer))
    }
}
