//! Sets up the terminal for the dashboard, and restores it on exit and on panics.

use std::io::{self, IsTerminal as _, Stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{cursor, execute};
use ratatui::{Frame, Terminal};

/// Returns true if standard input and output are a terminal that can show the dashboard.
pub fn is_terminal() -> bool {
    let dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
    !dumb && io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// The alternate screen of the terminal in raw mode. The terminal is restored when this is dropped, and when any thread
/// of the process panics.
#[derive(Debug)]
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    guard: TerminalGuard,
}

/// Restores the terminal once. The flag is true while the dashboard uses the terminal. Clones share it.
#[derive(Debug, Clone, Default)]
struct TerminalGuard(Arc<AtomicBool>);

impl TerminalGuard {
    /// Restores the terminal on the first call.
    fn restore(&self) {
        if self.0.swap(false, Ordering::SeqCst) {
            // Errors are ignored: the terminal may be gone.
            let _ = execute!(io::stdout(), LeaveAlternateScreen, cursor::Show);
            let _ = disable_raw_mode();
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.guard.restore();
    }
}

impl Screen {
    /// Enters the alternate screen in raw mode.
    ///
    /// # Errors
    /// If there is no terminal, or it fails.
    pub(super) fn open() -> io::Result<Self> {
        let guard = TerminalGuard::default();
        let (of_hook, before) = (guard.clone(), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |panic| {
            // The panic message goes to the main screen.
            of_hook.restore();
            before(panic);
        }));
        guard.0.store(true, Ordering::SeqCst);
        let opened = enable_raw_mode()
            .and_then(|()| execute!(io::stdout(), EnterAlternateScreen, cursor::Hide))
            .and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        match opened {
            Ok(terminal) => Ok(Self { terminal, guard }),
            Err(error) => {
                guard.restore();
                Err(error)
            }
        }
    }

    /// Returns true until the terminal is restored, for example by a panic on another thread.
    pub(super) fn is_active(&self) -> bool {
        self.guard.0.load(Ordering::SeqCst)
    }

    /// Draws a frame.
    ///
    /// # Errors
    /// If the terminal is gone.
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(draw).map(drop)
    }
}
