//! The buffer of recorded events of a process.

use std::cell::{Cell, OnceCell};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::event::{Event, Track};

/// The maximum number of buffered events of a process. Further events are only counted.
const MOST: usize = 4_000_000;

/// The initial capacity of the buffer of a thread.
const ROOM: usize = 256;

/// The events of one thread. Only this thread writes, so the lock is almost never contended.
type Buffer = Arc<Mutex<Vec<Event>>>;

/// The events of the threads of this process.
#[derive(Debug, Default)]
pub struct Recorder {
    recording: AtomicBool,
    events: AtomicUsize,
    left_out: AtomicUsize,
    threads: Mutex<Vec<RecordedThread>>,
}

/// A thread, or successive threads with the same name.
#[derive(Debug)]
struct RecordedThread {
    track: Track,
    buffer: Buffer,
    /// True if the thread has ended.
    ended: bool,
}

/// The handle of a thread to its buffer. Dropping it marks the thread as ended.
struct ThreadRecorder {
    recorder: &'static Recorder,
    track: usize,
    buffer: Buffer,
}

impl Drop for ThreadRecorder {
    fn drop(&mut self) {
        self.recorder.threads()[self.track].ended = true;
    }
}

/// The recorded events of a rank.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RecordedTrace {
    /// The threads of the process. Events refer to them by index.
    pub tracks: Vec<Track>,
    /// The events, unordered.
    pub events: Vec<Event>,
    /// The number of events that were dropped because the buffer was full.
    pub left_out: usize,
}

static INSTALLED: OnceLock<Recorder> = OnceLock::new();

thread_local! {
    static THREAD: OnceCell<ThreadRecorder> = const { OnceCell::new() };
    /// The rank that this thread runs.
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

    /// Starts or stops recording.
    pub fn record(&self, yes: bool) {
        self.recording.store(yes, Ordering::Relaxed);
    }

    /// Returns true while events are recorded.
    pub fn is_recording(&self) -> bool {
        self.recording.load(Ordering::Relaxed)
    }

    fn threads(&self) -> MutexGuard<'_, Vec<RecordedThread>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the rank that this thread runs, if any.
    pub(super) fn current_rank(&self) -> Option<usize> {
        RANK.get()
    }

    /// Sets the rank that this thread runs.
    pub(super) fn become_rank(&'static self, rank: Option<usize>) {
        RANK.set(rank);
        if let Some(rank) = rank {
            let track = self.current_track();
            let mut threads = self.threads();
            threads[track].track = Track { name: format!("rank {rank}"), computes: true };
        }
    }

    /// Registers this thread. Reuses the track of an ended thread with the same name, so that short-lived threads, such
    /// as those of checkpoints, share a track.
    fn join(&'static self) -> ThreadRecorder {
        let name = std::thread::current().name().unwrap_or("a thread").to_owned();
        let mut threads = self.threads();
        let same =
            |thread: &RecordedThread| thread.ended && !thread.track.computes && thread.track.name == name;
        let track = threads.iter().position(same).unwrap_or_else(|| {
            let buffer = Arc::new(Mutex::new(Vec::with_capacity(ROOM)));
            threads.push(RecordedThread { track: Track { name, computes: false }, buffer, ended: false });
            threads.len() - 1
        });
        threads[track].ended = false;
        ThreadRecorder { recorder: self, track, buffer: threads[track].buffer.clone() }
    }

    /// Returns the track index of this thread.
    pub(super) fn current_track(&'static self) -> usize {
        THREAD.with(|thread| thread.get_or_init(|| self.join()).track)
    }

    /// Adds an event to the buffer of this thread.
    pub(super) fn keep(&'static self, event: Event) {
        if self.events.fetch_add(1, Ordering::Relaxed) >= MOST {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return;
        }
        THREAD.with(|thread| {
            let buffer = &thread.get_or_init(|| self.join()).buffer;
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
        for RecordedThread { buffer, .. } in threads.iter() {
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
                recorder.keep(event(rank, recorder.current_track()));
                recorder.current_track()
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
