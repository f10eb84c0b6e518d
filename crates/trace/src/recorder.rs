//! Where a process keeps what its threads have recorded until a rank takes it.

use std::cell::{Cell, OnceCell};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::event::{Event, Track};

/// Events of a process that are kept at most; what comes after is counted and left out.
const MOST: usize = 4_000_000;

/// Events for which a thread has room from the first.
const ROOM: usize = 256;

/// The events of one thread. Only the thread writes, so its lock is free nearly always.
type Buffer = Arc<Mutex<Vec<Event>>>;

/// The events of the threads of this process.
#[derive(Debug, Default)]
pub struct Recorder {
    recording: AtomicBool,
    events: AtomicUsize,
    left_out: AtomicUsize,
    threads: Mutex<Vec<Recorded>>,
}

/// A thread, or several of one name that were there one after the other.
#[derive(Debug)]
struct Recorded {
    track: Track,
    buffer: Buffer,
    /// True if the thread has ended.
    ended: bool,
}

/// A thread's hold of what it records.
struct Here {
    recorder: &'static Recorder,
    track: usize,
    buffer: Buffer,
}

impl Drop for Here {
    fn drop(&mut self) {
        self.recorder.threads()[self.track].ended = true;
    }
}

/// The recorded events of a rank.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RecordedTrace {
    /// The threads of the process, by the numbers that events name them by.
    pub tracks: Vec<Track>,
    /// The events, in no order.
    pub events: Vec<Event>,
    /// Events of the process that were left out for want of room.
    pub left_out: usize,
}

static INSTALLED: OnceLock<Recorder> = OnceLock::new();

thread_local! {
    static HERE: OnceCell<Here> = const { OnceCell::new() };
    /// The rank whose own thread this is.
    static RANK: Cell<Option<usize>> = const { Cell::new(None) };
}

impl Recorder {
    /// Returns the recorder of this process, if a layer was made.
    pub fn installed() -> Option<&'static Self> {
        INSTALLED.get()
    }

    /// Returns the recorder of this process, and creates it if needed.
    pub(super) fn install() -> &'static Self {
        INSTALLED.get_or_init(Self::default)
    }

    /// Records from now on, or no longer.
    pub fn record(&self, yes: bool) {
        self.recording.store(yes, Ordering::Relaxed);
    }

    /// Returns true while events are recorded.
    pub fn is_recording(&self) -> bool {
        self.recording.load(Ordering::Relaxed)
    }

    fn threads(&self) -> MutexGuard<'_, Vec<Recorded>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rank whose own thread this is, if it is one.
    pub(super) fn rank_here(&self) -> Option<usize> {
        RANK.get()
    }

    /// Says that this thread is a rank's own, or no longer.
    pub(super) fn become_rank(&'static self, rank: Option<usize>) {
        RANK.set(rank);
        if let Some(rank) = rank {
            let track = self.track_here();
            let mut threads = self.threads();
            threads[track].track = Track { name: format!("rank {rank}"), computes: true };
        }
    }

    /// This thread's hold of what it records. A thread takes the place of one that has ended and had its name, so that those that
    /// come and go, as for each checkpoint, are one in a trace.
    fn join(&'static self) -> Here {
        let name = std::thread::current().name().unwrap_or("a thread").to_owned();
        let mut threads = self.threads();
        let same = |thread: &Recorded| thread.ended && !thread.track.computes && thread.track.name == name;
        let track = threads.iter().position(same).unwrap_or_else(|| {
            let buffer = Arc::new(Mutex::new(Vec::with_capacity(ROOM)));
            threads.push(Recorded { track: Track { name, computes: false }, buffer, ended: false });
            threads.len() - 1
        });
        threads[track].ended = false;
        Here { recorder: self, track, buffer: threads[track].buffer.clone() }
    }

    /// The number of this thread's track.
    pub(super) fn track_here(&'static self) -> usize {
        HERE.with(|here| here.get_or_init(|| self.join()).track)
    }

    /// Keeps an event, with those of this thread.
    pub(super) fn keep(&'static self, event: Event) {
        if self.events.fetch_add(1, Ordering::Relaxed) >= MOST {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return;
        }
        HERE.with(|here| {
            let buffer = &here.get_or_init(|| self.join()).buffer;
            buffer.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        });
    }

    /// Removes and returns the events of `rank`. With `the_rest`, events that belong to no rank are returned too.
    pub fn take(&self, rank: usize, the_rest: bool) -> RecordedTrace {
        let threads = self.threads();
        let mut taken = RecordedTrace {
            left_out: self.left_out.load(Ordering::Relaxed),
            tracks: threads.iter().map(|thread| thread.track.clone()).collect(),
            events: Vec::new(),
        };
        for Recorded { buffer, .. } in threads.iter() {
            let mut events = buffer.lock().unwrap_or_else(PoisonError::into_inner);
            let wanted = |event: &mut Event| event.rank.map_or(the_rest, |of| of == rank);
            taken.events.extend(events.extract_if(.., wanted));
        }
        self.events.fetch_sub(taken.events.len(), Ordering::Relaxed);
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::super::category::Category;
    use super::super::event::EventKind;
    use super::*;

    #[test]
    fn each_rank_takes_its_own_and_threads_of_one_name_are_one() {
        let recorder: &'static Recorder = Box::leak(Box::default());
        let event = |rank: Option<usize>, track| Event {
            rank,
            track,
            name: Cow::Borrowed("x"),
            category: Category::Compute,
            begin: 1,
            kind: EventKind::Span { end: 2, issued: None },
            args: Vec::new(),
        };
        let keep = move |rank| {
            let work = move || {
                recorder.keep(event(rank, recorder.track_here()));
                recorder.track_here()
            };
            let thread = std::thread::Builder::new().name("writes".to_owned()).spawn(work);
            thread.expect("a thread").join().expect("no panic")
        };
        let tracks = [Some(0), Some(1), None, Some(1)].map(keep);
        assert_eq!(tracks, [0; 4], "they were there one after the other");
        let first = recorder.take(1, false);
        assert_eq!((first.events.len(), first.tracks.len(), first.left_out), (2, 1, 0));
        assert!(first.events.iter().all(|event| event.rank == Some(1)));
        assert_eq!(recorder.take(0, true).events.len(), 2);
        assert!(recorder.take(0, true).events.is_empty(), "they were taken");
    }
}
