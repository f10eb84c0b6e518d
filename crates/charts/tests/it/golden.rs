//! Figures and plots, compared with the files in `tests/golden/`. `PHALANX_WRITE_GOLDEN=1` writes the files.

use std::path::Path;

use phalanx_charts::{Axis, Bar, Content, Figure, HEIGHT, Level, Panel, Series, Style, Unit, WIDTH, plot};

/// Compares a picture with its file.
fn compare(name: &str, svg: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("PHALANX_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, svg).expect("writes");
        return;
    }
    let expected = std::fs::read_to_string(&path).expect("the file is there");
    let different = svg.lines().zip(expected.lines()).find(|(own, expected)| own != expected);
    assert!(svg == expected, "{name} differs: {different:#?}; PHALANX_WRITE_GOLDEN=1 writes it anew");
}

fn line(name: &str, of: impl Fn(f64) -> f64) -> Series {
    Series::new(name, (1..=40).map(|step| (f64::from(10 * step), of(f64::from(step)))).collect())
}

#[test]
fn lines_of_a_run() {
    let steps = || Axis::of("steps", Unit::Count);
    let loss = line("loss", |step| 2.5 / step.powf(1.5));
    let gap = line("critic_loss", |step| if step == 20.0 { f64::NAN } else { 1.0 + 0.01 * step });
    let once = Series::new("test_loss", vec![(400.0, 0.05)]);
    let losses = Panel::lines("losses", steps(), Axis::default(), vec![loss, gap, once]);
    let mut speed = Panel::lines(
        "speed",
        steps(),
        Axis::of("", Unit::SamplesPerSecond),
        vec![line("samples per second", |step| 1000.0 + step)],
    );
    speed.level = Some(Level { at: 1020.0, label: "target".to_owned() });
    let zero = Panel::lines("steps left out", steps(), Axis::default(), vec![line("left out", |_| 0.0)]);
    compare("lines.svg", &Figure::new("tiny <1>", vec![losses, speed, zero]).svg());
}

#[test]
fn areas_and_bars_in_a_page() {
    let areas = |name: &str, colour| Series { style: Style::of(colour), ..line(name, |step| 1e6 * step) };
    let content = Content::Areas(vec![areas("parameters", 0), areas("gradients", 1)]);
    let memory = Panel {
        content,
        ..Panel::lines("memory", Axis::of("time", Unit::Seconds), Axis::of("", Unit::Bytes), Vec::new())
    };
    compare("areas.svg", &plot(&memory, (WIDTH, HEIGHT), "memory: 2 kinds"));
    let bar = |name: &str, values: Option<Vec<f64>>, label: &str| Bar {
        name: name.to_owned(),
        note: "2 ranks".to_owned(),
        values,
        label: label.to_owned(),
    };
    let parts = vec![("exposed".to_owned(), Style::of(1)), ("hidden".to_owned(), Style::of(6))];
    let bars = vec![bar("ddp", Some(vec![12.0, 30.0]), "12.0 + 30.0"), bar("fsdp", None, "failed")];
    let communication = Panel {
        content: Content::Bars { parts, bars },
        ..Panel::bars("communication", Axis::default(), Axis::of("of a step", Unit::Percent), Vec::new())
    };
    compare("bars.svg", &Figure::new("strategies", vec![communication]).svg());
}
