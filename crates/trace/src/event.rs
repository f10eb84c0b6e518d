//! The events that a rank records.

use std::borrow::Cow;

use super::category::Category;

/// A number or a word that goes with an event.
#[derive(Debug, Clone, PartialEq)]
pub enum Arg {
    /// A count.
    Count(u64),
    /// A number.
    Number(f64),
    /// A word.
    Text(Cow<'static, str>),
}

/// Where and when an operation was issued that another thread has run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Issued {
    /// The thread that issued it, as the number of its track.
    pub track: usize,
    /// When, in nanoseconds.
    pub at: u64,
}

/// The kind of an event.
#[derive(Debug, Clone, PartialEq)]
pub enum EventKind {
    /// Something that took time.
    Span {
        /// When it ended, in nanoseconds.
        end: u64,
        /// The thread that issued it, if it was another one.
        issued: Option<Issued>,
    },
    /// Numbers had these values, which go with the event.
    Counter,
}

/// Something that a rank has recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The rank; `None` if nothing said which.
    pub rank: Option<usize>,
    /// The thread, as the number of its track.
    pub track: usize,
    /// Its name.
    pub name: Cow<'static, str>,
    /// The category.
    pub category: Category,
    /// When it began, in nanoseconds of the clock of [`super::clock::now`].
    pub begin: u64,
    /// The kind.
    pub kind: EventKind,
    /// The arguments.
    pub args: Vec<(&'static str, Arg)>,
}

impl Event {
    /// When it ended.
    pub fn end(&self) -> u64 {
        match self.kind {
            EventKind::Span { end, .. } => end,
            EventKind::Counter => self.begin,
        }
    }
}

/// A thread that has recorded something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Track {
    /// The thread's name, or what it does.
    pub name: String,
    /// True if it is the thread of a rank, which computes.
    pub computes: bool,
}
