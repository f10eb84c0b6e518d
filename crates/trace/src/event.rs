//! The events that a rank records.

use std::borrow::Cow;

use super::category::Category;

/// An argument of an event.
#[derive(Debug, Clone, PartialEq)]
pub enum Arg {
    /// A count.
    Count(u64),
    /// A number.
    Number(f64),
    /// A word.
    Text(Cow<'static, str>),
}

/// The thread and time at which an operation was issued that another thread ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IssuePoint {
    /// The track index of the issuing thread.
    pub track: usize,
    /// The time in nanoseconds.
    pub at: u64,
}

/// The kind of an event.
#[derive(Debug, Clone, PartialEq)]
pub enum EventKind {
    /// A span with a duration.
    Span {
        /// The end time in nanoseconds.
        end: u64,
        /// The issue point, if another thread issued it.
        issued: Option<IssuePoint>,
    },
    /// A sample of counters. The arguments hold the values.
    Counter,
}

/// A recorded event.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The rank; `None` if unknown.
    pub rank: Option<usize>,
    /// The track index of the thread.
    pub track: usize,
    /// Its name.
    pub name: Cow<'static, str>,
    /// The category.
    pub category: Category,
    /// The start time in nanoseconds of [`super::clock::now`].
    pub begin: u64,
    /// The kind.
    pub kind: EventKind,
    /// The arguments.
    pub args: Vec<(&'static str, Arg)>,
}

impl Event {
    /// Returns the end time.
    pub fn end(&self) -> u64 {
        match self.kind {
            EventKind::Span { end, .. } => end,
            EventKind::Counter => self.begin,
        }
    }
}

/// A thread that has recorded events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Track {
    /// The name or role of the thread.
    pub name: String,
    /// True if it is the compute thread of a rank.
    pub computes: bool,
}
