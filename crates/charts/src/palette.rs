//! Colours and dashes of lines, and the style sheets of charts.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

/// The colours of lines: on a light and on a dark background. All pairs differ also for readers with protanopia,
/// deuteranopia or tritanopia, and all have a contrast of at least 3 with their background.
pub const COLOURS: [(&str, &str); 8] = [
    ("#0b59c5", "#25b1fe"),
    ("#e16416", "#d45d07"),
    ("#02a075", "#7efcd6"),
    ("#c970e8", "#925390"),
    ("#572713", "#fce745"),
    ("#1c2a88", "#2279ea"),
    ("#9a4501", "#e8a64a"),
    ("#695b69", "#a0929b"),
];

/// The dash patterns of lines. When colours repeat, the next pattern is used.
pub const DASHES: [&str; 4] = ["", "6 3", "2 3", "9 3 2 3"];

/// The other colours of a stand-alone picture by CSS class and property, on a light and on a dark background. Pages have
/// their own.
const INK: [(&str, &str, &str, &str); 7] = [
    (".back", "fill", "#ffffff", "#1c2024"),
    ("text", "fill", "#1c2024", "#e8eaed"),
    (".soft", "fill", "#5b6470", "#a3acb7"),
    (".grid", "stroke", "#e3e6ea", "#343b43"),
    (".level", "stroke", "#5b6470", "#a3acb7"),
    (".halo", "stroke", "#ffffff", "#1c2024"),
    (".bad", "fill", "#a3271c", "#ff9a8d"),
];

/// The shapes of all charts: the rules that do not depend on colours.
const SHAPES: &str = ".grid,.level{fill:none}.level{stroke-dasharray:4 4}.halo{paint-order:stroke;stroke-width:4px}\
    .line.over{stroke-dasharray:7 7}.line{fill:none;stroke-width:1.7;stroke-linejoin:round}.area{fill-opacity:.82}";

/// The style of a line: the indices of its colour and of its dash pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Style {
    /// The index in [`COLOURS`].
    pub colour: usize,
    /// The index in [`DASHES`].
    pub dash: usize,
}

impl Style {
    /// Returns a solid style of a colour.
    pub const fn of(colour: usize) -> Self {
        Self { colour, dash: 0 }
    }

    /// Returns the style of a number: all colours with the first pattern, then with the next.
    pub fn numbered(number: usize) -> Self {
        Self { colour: number % COLOURS.len(), dash: number / COLOURS.len() % DASHES.len() }
    }

    /// Returns its CSS classes.
    pub fn classes(self) -> String {
        match self.dash {
            0 => format!("s{}", self.colour),
            dash => format!("s{} d{dash}", self.colour),
        }
    }
}

/// Names with the same style in all pictures: quantities of training, parts of a step, kinds of memory, devices.
const KNOWN: [(&str, usize); 30] = [
    ("training", 0),
    ("loss", 0),
    ("test", 1),
    ("test loss", 1),
    ("accuracy", 2),
    ("test accuracy", 2),
    ("drawn pictures", 1),
    ("real pictures", 2),
    ("computing", 2),
    ("exposed communication", 1),
    ("for communication", 1),
    ("hidden communication", 6),
    ("waiting for other ranks", 3),
    ("data loading", 4),
    ("for data", 4),
    ("outside steps", 7),
    ("parameters", 0),
    ("gradients", 1),
    ("optimizer", 2),
    ("gathered parameters", 3),
    ("activations", 4),
    ("other", 7),
    ("cpu", 0),
    ("gpu", 4),
    ("measured", 0),
    ("predicted", 1),
    ("communication alone", 3),
    ("amdahl's law", 2),
    ("as many times as ranks", 7),
    ("target", 7),
];

/// The styles of the lines of several charts, by name. A name has one style in all of them, and the lines of a chart have
/// different ones.
///
/// Common names, and those of ranks, have the same style in all pictures. Other names begin at a colour that depends only
/// on the name, and take the next one that no name of the same charts has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Styles(BTreeMap<String, Style>);

impl Styles {
    /// Assigns styles to the names of the lines of each chart.
    pub fn of<'a>(charts: impl IntoIterator<Item = Vec<&'a str>>) -> Self {
        let canonical = |chart: Vec<&str>| chart.into_iter().map(canonical).collect::<Vec<_>>();
        let charts: Vec<Vec<String>> = charts.into_iter().map(canonical).collect();
        let mut styles = Self::default();
        for is_known in [true, false] {
            for name in charts.iter().flatten() {
                let fixed = fixed(name);
                if fixed.is_some() != is_known || styles.0.contains_key(name) {
                    continue;
                }
                let style = styles.free(name, &charts, fixed);
                styles.0.insert(name.clone(), style);
            }
        }
        styles
    }

    /// Returns the style of a name; the first one if the name is unknown.
    pub fn get(&self, name: &str) -> Style {
        self.0.get(&canonical(name)).copied().unwrap_or_default()
    }

    /// Returns the first style from `fixed`, or from the colour of the name, that no other name of its charts has.
    fn free(&self, name: &str, charts: &[Vec<String>], fixed: Option<Style>) -> Style {
        let own = || charts.iter().filter(|chart| chart.iter().any(|other| other == name));
        let alone = own().all(|chart| chart.iter().all(|other| other == name));
        let first = fixed.unwrap_or_else(|| Style::of(if alone { 0 } else { hash(name) % COLOURS.len() }));
        let taken: Vec<Style> = own()
            .flatten()
            .filter(|other| *other != name)
            .filter_map(|other| self.0.get(other).copied())
            .collect();
        let shifted = |number: usize| {
            let Style { colour, dash } = Style::numbered(number);
            Style {
                colour: (first.colour + colour) % COLOURS.len(),
                dash: (first.dash + dash) % DASHES.len(),
            }
        };
        (0..COLOURS.len() * DASHES.len()).map(shifted).find(|style| !taken.contains(style)).unwrap_or(first)
    }
}

/// Returns a name in lower case with spaces: `test_loss` and `test loss` are the same quantity.
fn canonical(name: &str) -> String {
    name.to_lowercase().replace('_', " ")
}

/// Returns the style of a common name or of a rank.
fn fixed(name: &str) -> Option<Style> {
    let rank = || name.strip_prefix("rank ")?.parse().ok().map(Style::numbered);
    let known = KNOWN.iter().find(|(known, _)| *known == name);
    known.map(|(_, colour)| Style::of(*colour)).or_else(rank)
}

/// Returns the FNV-1a hash of a name.
fn hash(name: &str) -> usize {
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (hash >> 16) as usize
}

/// Returns the style sheet of stand-alone pictures. It has literal colours, for viewers without CSS variables.
pub(crate) fn sheet() -> String {
    let rules = |dark: bool| {
        let mut rules = String::new();
        let pick = |light: &'static str, dim: &'static str| if dark { dim } else { light };
        for (class, property, light, dim) in INK {
            let _ = write!(rules, "{class}{{{property}:{}}}", pick(light, dim));
        }
        for (at, (light, dim)) in COLOURS.iter().enumerate() {
            let colour = pick(light, dim);
            let _ = write!(rules, ".s{at}{{fill:{colour}}}.line.s{at}{{fill:none;stroke:{colour}}}");
        }
        rules
    };
    let mut sheet = format!(
        "text{{font:12px {FONT}}}.title{{font-weight:600}}.head{{font-weight:600;font-size:14px}}{}{SHAPES}",
        rules(false)
    );
    for (at, pattern) in DASHES.iter().enumerate().skip(1) {
        let _ = write!(sheet, ".d{at}{{stroke-dasharray:{pattern}}}");
    }
    let _ = write!(sheet, "@media(prefers-color-scheme:dark){{{}}}", rules(true));
    sheet
}

/// The fonts of charts.
const FONT: &str = "system-ui,-apple-system,\"Segoe UI\",Roboto,sans-serif";

/// Returns the rules of charts in an HTML page: the colours as variables `--c0`, `--c1` …, on light and dark backgrounds,
/// and the classes of lines. The page defines the other colours: `--soft`, `--grid` and `--bad`.
pub fn page_style() -> String {
    let variables = |dark: bool| {
        let colours = COLOURS.iter().map(|(light, dim)| if dark { dim } else { light }).enumerate();
        colours.map(|(at, colour)| format!("--c{at}:{colour};")).collect::<String>()
    };
    let mut style = format!(
        ":root{{{}}}@media(prefers-color-scheme:dark){{:root{{{}}}}}\n",
        variables(false),
        variables(true)
    );
    for at in 0..COLOURS.len() {
        let _ = write!(style, ".s{at},.b{at}{{--c:var(--c{at})}}");
    }
    for (at, pattern) in DASHES.iter().enumerate().skip(1) {
        let _ = write!(style, ".line.d{at}{{stroke-dasharray:{pattern}}}");
    }
    let _ = write!(
        style,
        "\n{SHAPES}.plot text{{fill:var(--soft);font:12px {FONT}}}.grid{{stroke:var(--grid)}}.level{{stroke:var(--soft)}}\
         .bad{{fill:var(--bad)}}.line{{stroke:var(--c)}}.dot,.area{{fill:var(--c)}}\n"
    );
    style
}

#[cfg(test)]
mod tests {
    use super::*;

    fn styles(charts: &[&[&str]]) -> Styles {
        Styles::of(charts.iter().map(|chart| chart.to_vec()))
    }

    #[test]
    fn a_name_has_one_style_and_lines_of_a_chart_differ() {
        let charts: &[&[&str]] = &[
            &["loss", "test_loss"],
            &["critic", "generator"],
            &["test loss", "critic", "odd <name>"],
            &["rank 0", "rank 9", "a", "b", "c", "d", "e", "f", "g", "h", "i"],
        ];
        let styles = styles(charts);
        for chart in charts {
            for (at, name) in chart.iter().enumerate() {
                let same = chart[..at].iter().find(|other| styles.get(other) == styles.get(name));
                assert_eq!(same, None, "{name}");
            }
        }
        assert_eq!(styles.get("test loss"), styles.get("test_loss"));
        assert_eq!(styles.get("rank 9"), Style { colour: 1, dash: 1 });
    }

    #[test]
    fn styles_do_not_depend_on_other_charts_without_need() {
        let (one, other) = (styles(&[&["ddp", "fsdp"]]), styles(&[&["fsdp", "loss"], &["ddp", "fsdp"]]));
        assert_eq!((one.get("fsdp"), one.get("ddp")), (other.get("fsdp"), other.get("ddp")));
        assert_eq!(styles(&[&["grad_norm"]]).get("grad_norm"), Style::default(), "it is alone");
        assert_eq!(one.get("unknown"), Style::default());
    }

    /// Returns a colour in linear light.
    fn linear(colour: &str) -> [f64; 3] {
        let channel = |at: usize| {
            let level = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).expect("hexadecimal")) / 255.0;
            if level <= 0.04045 { level / 12.92 } else { ((level + 0.055) / 1.055).powf(2.4) }
        };
        [channel(1), channel(3), channel(5)]
    }

    fn times(matrix: [[f64; 3]; 3], [a, b, c]: [f64; 3]) -> [f64; 3] {
        matrix.map(|row| row[0] * a + row[1] * b + row[2] * c)
    }

    /// Returns the coordinates in the perceptual colour space OKLab (Ottosson 2020), times 100.
    fn perceived(colour: [f64; 3]) -> [f64; 3] {
        const CONES: [[f64; 3]; 3] = [
            [0.412_221_470_8, 0.536_332_536_3, 0.051_445_992_9],
            [0.211_903_498_2, 0.680_699_545_1, 0.107_396_956_6],
            [0.088_302_461_9, 0.281_718_837_6, 0.629_978_700_5],
        ];
        const LAB: [[f64; 3]; 3] = [
            [0.210_454_255_3, 0.793_617_785, -0.004_072_046_8],
            [1.977_998_495_1, -2.428_592_205, 0.450_593_709_9],
            [0.025_904_037_1, 0.782_771_766_2, -0.808_675_766],
        ];
        times(LAB, times(CONES, colour.map(|level| level.clamp(0.0, 1.0))).map(f64::cbrt))
            .map(|part| 100.0 * part)
    }

    /// The colours as seen with common vision, protanopia, deuteranopia and tritanopia (Machado et al. 2009).
    const VISIONS: [[[f64; 3]; 3]; 4] = [
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
        [
            [0.152_286, 1.052_583, -0.204_868],
            [0.114_503, 0.786_281, 0.099_216],
            [-0.003_882, -0.048_116, 1.051_998],
        ],
        [
            [0.367_322, 0.860_646, -0.227_969],
            [0.280_085, 0.672_501, 0.047_413],
            [-0.011_82, 0.042_94, 0.968_881],
        ],
        [
            [1.255_528, -0.076_749, -0.178_779],
            [-0.078_411, 0.930_809, 0.147_602],
            [0.004_733, 0.691_367, 0.303_9],
        ],
    ];

    #[test]
    fn colours_differ_with_any_colour_vision_and_from_their_background() {
        let luminance = |colour: &str| {
            let [red, green, blue] = linear(colour);
            0.2126 * red + 0.7152 * green + 0.0722 * blue
        };
        let backgrounds = (INK[0].2, INK[0].3);
        for (scheme, back) in [("light", backgrounds.0), ("dark", backgrounds.1)] {
            let colours = COLOURS.map(|(light, dark)| if scheme == "light" { light } else { dark });
            for (at, colour) in colours.iter().enumerate() {
                let (one, other) = (luminance(colour), luminance(back));
                let contrast = (one.max(other) + 0.05) / (one.min(other) + 0.05);
                assert!(contrast >= 3.0, "{scheme} {colour}: {contrast}");
                for other in &colours[..at] {
                    for vision in VISIONS {
                        let [a, b] = [colour, other].map(|colour| perceived(times(vision, linear(colour))));
                        let distance = (0..3).map(|at| (a[at] - b[at]).powi(2)).sum::<f64>().sqrt();
                        assert!(distance > 9.0, "{scheme}: {colour} and {other}: {distance}");
                    }
                }
            }
        }
    }

    #[test]
    fn both_style_sheets_have_all_classes_in_both_schemes() {
        let (alone, page) = (sheet(), page_style());
        for (at, (light, dark)) in COLOURS.iter().enumerate() {
            for colour in [light, dark] {
                assert_eq!(alone.matches(colour).count(), 2, "{at}");
                assert!(page.contains(&format!("--c{at}:{colour};")));
            }
        }
        for text in [alone, page] {
            assert_eq!(text.matches("prefers-color-scheme:dark").count(), 1);
            assert_eq!(text.matches('{').count(), text.matches('}').count(), "{text}");
        }
    }
}
