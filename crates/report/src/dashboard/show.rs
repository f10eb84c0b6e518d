//! The dashboard at work: files, keys, and the screen.

use std::io;
use std::time::{Duration, Instant, SystemTime};

use ratatui::crossterm::event::{self, Event};

use super::asking::Asking;
use super::draw::draw;
use super::model::Model;
use super::palette::Depth;
use super::source::Source;
use super::terminal::Screen;
use super::view::{Action, View};
use phalanx_run::{Refusal, Request, RunFolder};

/// The interval at which files are read.
const LOOK: Duration = Duration::from_millis(250);

/// The time to wait for a key before signals and files are polled again.
const PATIENCE: Duration = Duration::from_millis(50);

/// The training that this process has started, if the dashboard is to end with it.
#[derive(Clone, Copy)]
pub struct Own<'a> {
    /// Returns true once it has ended.
    pub ended: &'a dyn Fn() -> bool,
    /// Interrupts it, as a signal would: the first time it is to stop, the second time to end at once.
    pub interrupt: &'a dyn Fn(),
}

impl std::fmt::Debug for Own<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Own")
    }
}

/// Why the dashboard was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// The training has ended that this process has started.
    Ended,
    /// The user has seen enough.
    Leaves,
    /// A signal has come.
    Interrupted,
}

/// Shows a run until its own training has ended or, for another process's run, until the user leaves. `interrupts`
/// returns the number of signals so far; `refusal` says which requests the strategy refuses.
///
/// # Errors
/// If the terminal does not obey or is gone; it is given back as it was.
pub fn show(
    folder: &RunFolder,
    own: Option<Own<'_>>,
    refusal: Refusal,
    interrupts: &dyn Fn() -> usize,
) -> io::Result<Left> {
    let depth = Depth::of(|name| std::env::var(name).ok());
    // What an earlier attempt has left in the folder does not say how this one is.
    let mut source = Source::new(folder, own.is_some().then(SystemTime::now));
    let mut model = Model::of(name_of(folder));
    let (mut view, mut asking) = (View::new(own.is_some()), Asking::new(refusal));
    source.look(&mut model);
    let mut screen = Screen::open()?;
    let (mut looked, mut drawn, mut signals) = (Instant::now(), None::<Instant>, interrupts());
    let mut changed = true;
    while screen.is_taken() {
        if own.is_some_and(|own| (own.ended)()) {
            return Ok(Left::Ended);
        }
        if interrupts() > signals {
            signals = interrupts();
            if own.is_none() {
                return Ok(Left::Interrupted);
            }
            view.say("asked to stop: a step that is under way is finished first; ctrl-c again ends at once");
            changed = true;
        }
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            changed |= source.look(&mut model);
            for told in asking.look(&model.status()) {
                view.say(told.unwrap_or_else(|problem| problem));
                changed = true;
            }
        }
        // Even when nothing comes, what was said goes after a while.
        if changed || drawn.is_none_or(|drawn| drawn.elapsed() >= Duration::from_secs(1)) {
            screen.draw(|frame| draw(frame, &model, &view, depth))?;
            (changed, drawn) = (false, Some(Instant::now()));
        }
        let mut patience = PATIENCE;
        while event::poll(patience)? {
            // What has come already is done before the next picture.
            patience = Duration::ZERO;
            changed = true;
            let Event::Key(key) = event::read()? else { continue };
            let Some(action) = view.press(key, &model) else { continue };
            if action == Action::Leave && own.is_none() {
                return Ok(Left::Leaves);
            }
            let ask = |request| {
                let asked = asking.ask(folder, request, &model.status()).map_err(|error| error.to_string());
                asked.and_then(|reply| reply).unwrap_or_else(|problem| problem)
            };
            act(action, own, interrupts() > 0, ask).into_iter().for_each(|reply| view.say(reply));
        }
    }
    Ok(Left::Leaves)
}

/// Does what a key asked for. Returns the reply to the user, if there is one.
fn act(
    action: Action,
    own: Option<Own<'_>>,
    is_interrupted: bool,
    ask: impl FnOnce(Request) -> String,
) -> Option<String> {
    match (action, own) {
        (Action::End, Some(own)) if !is_interrupted => (own.interrupt)(),
        (Action::End, _) => return Some("it is stopping already; ctrl-c ends it at once".to_owned()),
        (Action::Interrupt, Some(own)) => (own.interrupt)(),
        // The dashboard of an own training ends with it, which is a moment away.
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
