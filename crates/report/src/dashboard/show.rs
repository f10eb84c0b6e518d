//! The main loop of the dashboard.

use std::io;
use std::time::{Duration, Instant, SystemTime};

use ratatui::crossterm::event::{self, Event};

use super::draw::draw;
use super::model::Model;
use super::palette::Depth;
use super::pending_requests::PendingRequests;
use super::source::Source;
use super::terminal::Screen;
use super::view::{Action, View};
use phalanx_run::{Refusal, Request, RunFolder};

/// The interval at which files are read.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The time to wait for a key before polling signals and files.
const KEY_TIMEOUT: Duration = Duration::from_millis(50);

/// A training that this process has started. The dashboard ends with it.
#[derive(Clone, Copy)]
pub struct OwnTraining<'a> {
    /// Returns true once the training has ended.
    pub ended: &'a dyn Fn() -> bool,
    /// Interrupts the training like a signal: the first call stops it after the step, the second call at once.
    pub interrupt: &'a dyn Fn(),
}

impl std::fmt::Debug for OwnTraining<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OwnTraining")
    }
}

/// The reason why the dashboard exits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitReason {
    /// The training of this process has ended.
    Ended,
    /// The user quit.
    Quit,
    /// A signal arrived.
    Interrupted,
}

/// Shows a run until the training of this process ends or, for a run of another process, until the user quits.
/// `interrupts` returns the number of signals so far. `refusal` returns why the strategy refuses a request.
///
/// # Errors
/// If the terminal fails or is gone. Its state is restored.
pub fn show(
    folder: &RunFolder,
    own: Option<OwnTraining<'_>>,
    refusal: Refusal,
    interrupts: &dyn Fn() -> usize,
) -> io::Result<ExitReason> {
    let depth = Depth::of(|name| std::env::var(name).ok());
    // Ignore states and summaries of earlier attempts.
    let mut source = Source::new(folder, own.is_some().then(SystemTime::now));
    let mut model = Model::of(name_of(folder));
    let (mut view, mut pending) = (View::new(own.is_some()), PendingRequests::new(refusal));
    source.poll(&mut model);
    let mut screen = Screen::open()?;
    let (mut polled, mut drawn, mut signals) = (Instant::now(), None::<Instant>, interrupts());
    let mut changed = true;
    while screen.is_active() {
        if own.is_some_and(|own| (own.ended)()) {
            return Ok(ExitReason::Ended);
        }
        if interrupts() > signals {
            signals = interrupts();
            if own.is_none() {
                return Ok(ExitReason::Interrupted);
            }
            view.show_message("stopping after the current step; ctrl-c again ends at once");
            changed = true;
        }
        if polled.elapsed() >= POLL_INTERVAL {
            polled = Instant::now();
            changed |= source.poll(&mut model);
            for reply in pending.poll(&model.status()) {
                view.show_message(reply.unwrap_or_else(|problem| problem));
                changed = true;
            }
        }
        // Redraw every second, so that old messages disappear.
        if changed || drawn.is_none_or(|drawn| drawn.elapsed() >= Duration::from_secs(1)) {
            screen.draw(|frame| draw(frame, &model, &view, depth))?;
            (changed, drawn) = (false, Some(Instant::now()));
        }
        let mut timeout = KEY_TIMEOUT;
        while event::poll(timeout)? {
            // Handle all queued keys before the next redraw.
            timeout = Duration::ZERO;
            changed = true;
            let Event::Key(key) = event::read()? else { continue };
            let Some(action) = view.press(key, &model) else { continue };
            if action == Action::Leave && own.is_none() {
                return Ok(ExitReason::Quit);
            }
            let ask = |request| {
                let asked = pending.send(folder, request, &model.status()).map_err(|error| error.to_string());
                asked.and_then(|reply| reply).unwrap_or_else(|problem| problem)
            };
            act(action, own, interrupts() > 0, ask).into_iter().for_each(|reply| view.show_message(reply));
        }
    }
    Ok(ExitReason::Quit)
}

/// Executes the action of a key. Returns a message for the user, if any.
fn act(
    action: Action,
    own: Option<OwnTraining<'_>>,
    is_interrupted: bool,
    ask: impl FnOnce(Request) -> String,
) -> Option<String> {
    match (action, own) {
        (Action::End, Some(own)) if !is_interrupted => (own.interrupt)(),
        (Action::End, _) => return Some("already stopping; ctrl-c ends it at once".to_owned()),
        (Action::Interrupt, Some(own)) => (own.interrupt)(),
        // The dashboard exits when its training ends.
        (Action::Leave | Action::Interrupt, _) => {}
        (Action::Ask(request), _) => return Some(ask(request)),
    }
    None
}

/// Returns the name of a run: its folder's name.
pub(super) fn name_of(folder: &RunFolder) -> String {
    let path = folder.path().canonicalize().unwrap_or_else(|_| folder.path().to_owned());
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}
