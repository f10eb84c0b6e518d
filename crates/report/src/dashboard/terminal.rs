//! The terminal while the dashboard has it, and given back as it was, however that ends.

use std::io::{self, IsTerminal as _, Stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{cursor, execute};
use ratatui::{Frame, Terminal};

/// Returns true if this process's standard streams are a terminal that can show a dashboard.
pub fn is_terminal() -> bool {
    let dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
    !dumb && io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// The screen of the dashboard: the terminal's second one, without echo and lines. The first comes back when this is
/// dropped, and when any thread of the process panics.
#[derive(Debug)]
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    guard: TerminalGuard,
}

/// Restores the terminal once: it holds true while the dashboard has the terminal. Clones share it.
#[derive(Debug, Clone, Default)]
struct TerminalGuard(Arc<AtomicBool>);

impl TerminalGuard {
    /// Gives the terminal back, once.
    fn give_back(&self) {
        if self.0.swap(false, Ordering::SeqCst) {
            // A terminal that is gone cannot be mended.
            let _ = execute!(io::stdout(), LeaveAlternateScreen, cursor::Show);
            let _ = disable_raw_mode();
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.guard.give_back();
    }
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// If there is none, or it does not obey.
    pub(super) fn open() -> io::Result<Self> {
        let guard = TerminalGuard::default();
        let (of_hook, before) = (guard.clone(), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |panic| {
            // The message goes to the screen that stays.
            of_hook.give_back();
            before(panic);
        }));
        guard.0.store(true, Ordering::SeqCst);
        let opened = enable_raw_mode()
            .and_then(|()| execute!(io::stdout(), EnterAlternateScreen, cursor::Hide))
            .and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        match opened {
            Ok(terminal) => Ok(Self { terminal, guard }),
            Err(error) => {
                guard.give_back();
                Err(error)
            }
        }
    }

    /// Returns true while the terminal belongs to this screen: a panic on another thread gives it back.
    pub(super) fn is_taken(&self) -> bool {
        self.guard.0.load(Ordering::SeqCst)
    }

    /// Draws.
    ///
    /// # Errors
    /// If the terminal is gone.
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(draw).map(drop)
    }
}
