//! The coordinator's side of a rejoin: the surviving ranks of a broken world agree on the members of a new one.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::command::{RejoinRefusal, RejoinRequest};
use super::quorum::may_go_on;
use super::timeouts::EXITING;
use crate::failure::{Cause, Failure};

/// The ranks that asked for a new world, and those that are awaited.
pub(super) struct Rejoin {
    own: usize,
    world_size: usize,
    /// The other ranks that asked.
    asked: Vec<usize>,
    /// This rank's own request.
    request: Option<RejoinRequest>,
    /// Ranks that may yet come to this one, which took over, and the end of that wait.
    awaited: Vec<usize>,
    awaited_until: Instant,
    /// The end of the wait for unreachable processes to turn out to have exited, where that decides.
    in_doubt_until: Option<Instant>,
    /// True once members were agreed on. Other ranks are refused from then on.
    has_members: bool,
    /// The failure flag of the last agreed meeting. It breaks if a member is lost.
    meeting: Option<Arc<Failure>>,
}

/// The decision about a new world.
pub(super) enum RejoinDecision {
    /// These ranks form it.
    Form(Vec<usize>),
    /// No new world is formed.
    Refuse(RejoinRefusal),
}

impl Rejoin {
    /// The state of rank `own` of `world_size`, which waits up to `timeout` for the ranks `awaited`.
    pub(super) fn new(own: usize, world_size: usize, awaited: Vec<usize>, timeout: Duration) -> Self {
        Self {
            own,
            world_size,
            asked: Vec::new(),
            request: None,
            awaited,
            awaited_until: Instant::now() + timeout,
            in_doubt_until: None,
            has_members: false,
            meeting: None,
        }
    }

    /// True if this rank has asked and there is no decision yet.
    pub(super) fn is_open(&self) -> bool {
        self.request.is_some()
    }

    /// Records this rank's own request.
    pub(super) fn request(&mut self, own: RejoinRequest) {
        self.request = Some(own);
    }

    /// Records the request of another rank.
    pub(super) fn ask(&mut self, rank: usize) {
        self.asked.push(rank);
    }

    /// Accepts an awaited rank. False if the rank is not awaited.
    pub(super) fn accept(&mut self, rank: usize) -> bool {
        let before = self.awaited.len();
        self.awaited.retain(|awaited| *awaited != rank);
        self.awaited.len() < before
    }

    /// True if members were agreed on, so that lost ranks that come back are too late.
    pub(super) fn has_members(&self) -> bool {
        self.has_members
    }

    /// Records the loss of a rank.
    pub(super) fn lose(&mut self, rank: usize) {
        self.asked.retain(|asked| *asked != rank);
        // Its process may have exited a moment ago.
        self.in_doubt_until = None;
        if let Some(meeting) = &self.meeting {
            meeting.set(Cause::Lost(rank));
        }
    }

    /// Decides once this rank and all `others` that are connected have asked; returns the decision with this rank's request.
    pub(super) fn decide(
        &mut self,
        others: &[usize],
        has_ended: impl Fn(usize) -> bool,
    ) -> Option<(RejoinDecision, RejoinRequest)> {
        self.request.as_ref()?;
        let now = Instant::now();
        let waits = now < self.awaited_until;
        self.awaited.retain(|rank| waits && !has_ended(*rank));
        if !self.awaited.is_empty() || !others.iter().all(|rank| self.asked.contains(rank)) {
            return None;
        }
        let mut left: Vec<usize> = others.iter().copied().chain([self.own]).collect();
        left.sort_unstable();
        let lost = (0..self.world_size).filter(|rank| !left.contains(rank) && !has_ended(*rank));
        let lost: Vec<usize> = lost.collect();
        let decision = if may_go_on(&left, &lost) {
            self.has_members = true;
            RejoinDecision::Form(left)
        } else if now < *self.in_doubt_until.get_or_insert(now + EXITING) {
            return None;
        } else {
            RejoinDecision::Refuse(RejoinRefusal::Minority { left, lost, world_size: self.world_size })
        };
        self.in_doubt_until = None;
        self.asked.clear();
        Some((decision, self.request.take()?))
    }

    /// Returns the failure flag of the meeting that begins. It breaks if a member is lost.
    pub(super) fn begin_meeting(&mut self) -> Arc<Failure> {
        self.meeting.insert(Arc::default()).clone()
    }
}
