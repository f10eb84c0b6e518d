//! The choice of colours.

use std::sync::OnceLock;

use clap::ColorChoice;

/// The choice of this process, if it was made.
static CHOICE: OnceLock<ColorChoice> = OnceLock::new();

/// Makes `choice` this process's. `Auto` follows the terminal and `NO_COLOR`.
pub fn set_colors(choice: ColorChoice) {
    if CHOICE.set(choice).is_err() {
        return;
    }
    let colored = match choice {
        ColorChoice::Auto => return,
        ColorChoice::Always => true,
        ColorChoice::Never => false,
    };
    ::console::set_colors_enabled(colored);
    ::console::set_colors_enabled_stderr(colored);
}

/// Returns the option that gives a process of this program the same choice, if it is not the default.
pub fn color_option() -> Option<String> {
    CHOICE.get().filter(|choice| **choice != ColorChoice::Auto).map(|choice| format!("--color={choice}"))
}
