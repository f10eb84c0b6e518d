//! The meeting of those who are left of a broken world, as far as its hub has brought it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::quorum::may_go_on;
use super::{Unmet, Wanted};
use crate::failure::{Cause, Failure};

/// How long it may take until a process counts as ended whose connections are closed.
const ENDING: Duration = Duration::from_secs(2);

/// Who wants to meet again, and who is waited for.
pub(super) struct Reunion {
    own: usize,
    world_size: usize,
    /// The other ranks that want it.
    asked: Vec<usize>,
    /// This rank's own wish.
    wanted: Option<Wanted>,
    /// Ranks that may yet come to this one, which has taken over, and for how long.
    coming: Vec<usize>,
    coming_until: Instant,
    /// Until when those who cannot be reached may turn out to have ended, where that matters.
    in_doubt_until: Option<Instant>,
    /// Whether it was ever agreed on who meets: who was not among them is not let in any more.
    has_met: bool,
    /// The meeting that was agreed on last: broken when somebody is lost who was counted on.
    meeting: Option<Arc<Failure>>,
}

/// What has been agreed on.
pub(super) enum Agreed {
    /// These meet.
    Meet(Vec<usize>),
    /// Nobody does.
    Apart(Unmet),
}

impl Reunion {
    /// That of rank `own` of `world_size`, to which the ranks `coming` may yet come for so long.
    pub(super) fn new(own: usize, world_size: usize, coming: Vec<usize>, patience: Duration) -> Self {
        Self {
            own,
            world_size,
            asked: Vec::new(),
            wanted: None,
            coming,
            coming_until: Instant::now() + patience,
            in_doubt_until: None,
            has_met: false,
            meeting: None,
        }
    }

    /// Whether something may be agreed on by waiting.
    pub(super) fn is_open(&self) -> bool {
        self.wanted.is_some()
    }

    pub(super) fn want(&mut self, own: Wanted) {
        self.wanted = Some(own);
    }

    pub(super) fn ask(&mut self, rank: usize) {
        self.asked.push(rank);
    }

    /// Whether a rank that has not come yet is let in.
    pub(super) fn takes(&mut self, rank: usize) -> bool {
        let before = self.coming.len();
        self.coming.retain(|coming| *coming != rank);
        self.coming.len() < before
    }

    /// Whether those who were lost and come back are too late.
    pub(super) fn has_met(&self) -> bool {
        self.has_met
    }

    /// A rank is lost.
    pub(super) fn lose(&mut self, rank: usize) {
        self.asked.retain(|asked| *asked != rank);
        // It has ended a moment ago, if it has.
        self.in_doubt_until = None;
        if let Some(meeting) = &self.meeting {
            meeting.set(Cause::Lost(rank));
        }
    }

    /// What is agreed on, with this rank's wish, once all who are left have asked: this rank, and `others`.
    pub(super) fn conclude(
        &mut self,
        others: &[usize],
        has_ended: impl Fn(usize) -> bool,
    ) -> Option<(Agreed, Wanted)> {
        self.wanted.as_ref()?;
        let now = Instant::now();
        let waits = now < self.coming_until;
        self.coming.retain(|rank| waits && !has_ended(*rank));
        if !self.coming.is_empty() || !others.iter().all(|rank| self.asked.contains(rank)) {
            return None;
        }
        let mut left: Vec<usize> = others.iter().copied().chain([self.own]).collect();
        left.sort_unstable();
        let lost = (0..self.world_size).filter(|rank| !left.contains(rank) && !has_ended(*rank));
        let lost: Vec<usize> = lost.collect();
        let agreed = if may_go_on(&left, &lost) {
            self.has_met = true;
            Agreed::Meet(left)
        } else if now < *self.in_doubt_until.get_or_insert(now + ENDING) {
            return None;
        } else {
            Agreed::Apart(Unmet::Minority { left, lost, world_size: self.world_size })
        };
        self.in_doubt_until = None;
        self.asked.clear();
        Some((agreed, self.wanted.take()?))
    }

    /// Those who are left meet: who watches over it is told by what is returned when somebody is lost.
    pub(super) fn meet(&mut self) -> Arc<Failure> {
        self.meeting.insert(Arc::default()).clone()
    }
}
