//! The colours of the dashboard, by the capabilities of the terminal.

use ratatui::style::{Color, Modifier, Style};

/// The colour depth of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// 24-bit colours.
    True,
    /// A palette of 256 colours.
    Indexed,
    /// The 16 standard colours.
    Basic,
    /// No colours.
    None,
}

impl Depth {
    /// Reads the environment: any non-empty `NO_COLOR`, `COLORTERM` with `truecolor` or `24bit`, and `TERM` with
    /// `256color`.
    pub(super) fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let has = |name: &str, words: &[&str]| {
            variable(name).is_some_and(|value| words.iter().any(|word| value.contains(word)))
        };
        if variable("NO_COLOR").is_some_and(|value| !value.is_empty()) {
            Self::None
        } else if has("COLORTERM", &["truecolor", "24bit"]) || has("TERM", &["direct"]) {
            Self::True
        } else if has("TERM", &["256color"]) {
            Self::Indexed
        } else {
            Self::Basic
        }
    }

    /// Returns the nearest colour of the terminal; `None` if images are drawn without colours.
    pub(super) fn pixel(self, [red, green, blue]: [u8; 3]) -> Option<Color> {
        match self {
            Self::True => Some(Color::Rgb(red, green, blue)),
            Self::Indexed => Some(Color::Indexed(indexed([red, green, blue]))),
            Self::Basic | Self::None => None,
        }
    }

    /// Returns the style of a curve by its number.
    pub(super) fn curve(self, number: usize) -> Style {
        const COLOURS: [Color; 6] =
            [Color::Cyan, Color::Yellow, Color::Magenta, Color::Green, Color::Blue, Color::Red];
        self.coloured(COLOURS[number % COLOURS.len()])
    }

    /// The style of good states.
    pub(super) fn good(self) -> Style {
        self.coloured(Color::Green)
    }

    /// The style of warnings.
    pub(super) fn warning(self) -> Style {
        self.coloured(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    /// The style of errors.
    pub(super) fn bad(self) -> Style {
        self.coloured(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// The style of the selection.
    pub(super) fn chosen(self) -> Style {
        self.coloured(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    /// The style of explanations.
    pub(super) fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    fn coloured(self, colour: Color) -> Style {
        match self {
            Self::None => Style::new(),
            _ => Style::new().fg(colour),
        }
    }
}

/// Returns the index in the palette of 256: the nearest entry of the 6x6x6 cube and the 24 greys.
fn indexed(colour: [u8; 3]) -> u8 {
    const LEVELS: [u8; 6] = [0, 95, 135, 175, 215, 255];
    let distance = |other: [u8; 3]| -> u32 {
        colour.iter().zip(other).map(|(own, other)| u32::from(own.abs_diff(other)).pow(2)).sum()
    };
    let nearest =
        |level: u8| (0..6_u8).min_by_key(|at| LEVELS[usize::from(*at)].abs_diff(level)).unwrap_or_default();
    let cube = colour.map(nearest);
    let of_cube = cube.map(|at| LEVELS[usize::from(at)]);
    let mean = colour.iter().map(|level| u32::from(*level)).sum::<u32>() / 3;
    let grey = (mean.saturating_sub(3) / 10).min(23) as u8;
    match distance([8 + 10 * grey; 3]) < distance(of_cube) {
        true => 232 + grey,
        false => 16 + 36 * cube[0] + 6 * cube[1] + cube[2],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_says_how_many_colours_there_are() {
        let cases: &[(&[(&str, &str)], Depth)] = &[
            (&[("TERM", "xterm-256color"), ("COLORTERM", "truecolor")], Depth::True),
            (&[("TERM", "xterm-256color")], Depth::Indexed),
            (&[("TERM", "linux")], Depth::Basic),
            (&[("TERM", "xterm-256color"), ("COLORTERM", "24bit"), ("NO_COLOR", "1")], Depth::None),
            (&[("TERM", "xterm-256color"), ("NO_COLOR", "")], Depth::Indexed),
        ];
        for (variables, depth) in cases {
            let value = |name: &str| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(Depth::of(value), *depth, "{variables:?}");
        }
    }

    #[test]
    fn the_nearest_of_256_colours_is_found() {
        let cases = [
            ([0, 0, 0], 16),
            ([255, 255, 255], 231),
            ([255, 0, 0], 196),
            ([95, 135, 175], 67),
            ([128, 128, 128], 244),
            ([8, 8, 8], 232),
            ([250, 4, 250], 201),
        ];
        for (colour, index) in cases {
            assert_eq!(indexed(colour), index, "{colour:?}");
        }
        assert_eq!(Depth::None.pixel([1, 2, 3]), None);
        assert_eq!(Depth::True.pixel([1, 2, 3]), Some(Color::Rgb(1, 2, 3)));
    }
}
