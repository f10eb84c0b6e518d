//! The contents of the screen, at several sizes.

use std::sync::Arc;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::draw::draw;
use super::model::{Model, Sample};
use super::palette::Depth;
use super::view::{Pane, View};
use phalanx_run::{RankSummary, RunActivity, RunState, Summary};

/// Returns the model of a run of two networks on two ranks.
fn recorded() -> Model {
    let mut model = Model::of("shapes-gan".to_owned());
    for step in (10..=300_u64).step_by(10) {
        let (critic, generator) = (10.0 / step as f64, 2.0 - step as f64 / 300.0);
        model.take_metrics(&format!(
            r#"{{"step":{step},"critic_loss":{critic},"generator_loss":{generator},"epoch":0,"critic_lr":0.0002,
            "seconds":{},"samples_per_s":1234.5,"memory_bytes":104857600,"data_share":0.02,"communication_share":0.11,
            "test_accuracy":0.75}}"#,
            step as f64 / 4.0
        ));
    }
    for (rank, exposed) in [(0, 0.1), (1, 0.4)] {
        for second in [0.0, 1.0, 2.0] {
            model.take_usage(
                rank,
                &format!(
                    r#"{{"time":{},"step":312,"rank":{rank},"host":"north","cpu_percent":98.0,"resident_bytes":104857600,
                    "parameter_bytes":10485760,"gradient_bytes":10485760,"optimizer_bytes":20971520,
                    "network_sent_bytes":{},"network_received_bytes":{},"step_seconds":{second},
                    "communication_exposed_seconds":{},"communication_hidden_seconds":{},"data_seconds":{},
                    "cpu_watts":21.5,"energy":"estimated"}}"#,
                    1e9 + second,
                    second * 1048576.0,
                    second * 2097152.0,
                    second * exposed,
                    second * 0.25,
                    second * 0.01
                ),
            );
        }
    }
    model.state = Some(RunState {
        step: 310,
        total: 1000,
        steps_per_epoch: 100,
        model: "StackGAN".into(),
        parameters: 1_234_567,
        world_size: 2,
        device: "cpu".into(),
        strategy: "fsdp".into(),
        ..RunState::default()
    });
    model.take_log(
        Some(0),
        "2026-11-23T03:25:55.1Z  INFO phalanx_trainer::cli: step 300: samples step-00000300.png",
    );
    model.take_log(Some(1), "2026-11-23T03:25:57.1Z  WARN phalanx_trainer::engine: the link is slow");
    let picture =
        image::RgbImage::from_fn(16, 8, |x, _| image::Rgb(if x < 8 { [255, 0, 0] } else { [255; 3] }));
    model.sample = Some(Sample { name: "step-00000300.png".into(), picture: Arc::new(picture) });
    model
}

fn screen((width, height): (u16, u16), model: &Model, view: &View, depth: Depth) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a buffer");
    terminal.draw(|frame| draw(frame, model, view, depth)).expect("draws");
    let buffer = terminal.backend().buffer().clone();
    let row = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(row).collect()
}

fn assert_shows(screen: &[String], words: &[&str]) {
    let text = screen.join("\n");
    for word in words {
        assert!(text.contains(word), "no `{word}` in\n{text}");
    }
}

#[test]
fn on_80_by_24_there_are_curves_numbers_and_the_log() {
    let (model, view) = (recorded(), View::new(false));
    let shown = screen((80, 24), &model, &view, Depth::None);
    assert!(
        shown[0] == "shapes-gan  training  2 ranks by fsdp on cpu  StackGAN, 1,234,567 parameters",
        "{}",
        shown[0]
    );
    // 688 steps are left, at 4 in a second.
    assert!(shown[1].starts_with("step 312/1,000  epoch 3.12  ETA 2 min 52 s ━"), "{}", shown[1]);
    assert_eq!(shown[2], "[curves]  ranks   samples   log");
    assert!(shown[3].starts_with("╭ loss ─") && shown[3].contains("╭ numbers ─"), "{}", shown[3]);
    assert_shows(
        &shown,
        &[
            "critic_loss 0.03333",
            "generator_loss 1.000",
            "speed  1,235 samples/s",
            "       4.000 steps/s",
            "comm   40% exposed",
            "       25% hidden",
            "data   1% waiting",
            "memory 200.00 MiB",
            "       of 2 ranks",
            "power  43 W estimated",
            "test   accuracy 0.7500",
            "0 03:25:55 INFO step 300: samples step-00000300.png",
            "1 03:25:57 WARN the link is slow",
            "? help  q quit  p pause  s save  x stop",
        ],
    );
    assert_eq!(shown.len(), 24);
    // Curves are drawn in Braille.
    assert!(shown[4..15].join("").chars().any(|c| ('\u{2801}'..='\u{28ff}').contains(&c)));
}

#[test]
fn on_120_by_40_all_panes_are_there_at_once() {
    let shown = screen((120, 40), &recorded(), &View::new(false), Depth::True);
    for title in ["╭ loss ─", "╭ log ─", "╭ numbers ─", "╭ ranks ─", "╭ samples of step 300 ─"]
    {
        assert_eq!(shown.iter().filter(|row| row.contains(title)).count(), 1, "{title}: {shown:#?}");
    }
    assert_shows(
        &shown,
        &[
            "0  cpu   98%  comm █░░░░░░░ 10%  ↑1.00",
            "1  cpu   98%  comm ███░░░░░ 40%  ↑1.00",
            "param 10.00 MiB  grad 10.00 MiB",
            "▀▀▀▀▀▀▀▀",
        ],
    );
}

/// Returns the words of a screen without frames.
fn words(screen: &[String]) -> String {
    let text = screen.join(" ");
    let plain: String = text.chars().map(|c| if "│╭╮╰╯─┐└┘┌".contains(c) { ' ' } else { c }).collect();
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn borders_cut_nothing() {
    let mut model = recorded();
    model.take_metrics(r#"{"step":310,"test_critic_loss":0.5,"seconds":77.5}"#);
    let message =
        "the link between the hosts east and west is slow, and the gradients of bucket 12 wait for it";
    model.take_log(Some(1), &format!("2026-11-23T03:25:59.1Z  WARN phalanx_trainer::engine: {message}"));
    let mut view = View::new(false);
    for size in [(80, 24), (100, 30), (200, 60)] {
        view.pane = Pane::Curves;
        let shown = screen(size, &model, &view, Depth::None);
        let parts = [
            "1,235 samples/s",
            "4.000 steps/s",
            "40% exposed",
            "25% hidden",
            "200.00 MiB",
            "of 2 ranks",
            "43 W estimated",
            "accuracy 0.7500",
            // Losses of training and of the test split are in one chart.
            "━ critic_loss 0.03333",
            "━ generator_loss 1.000",
            "━ test_critic_loss 0.5000",
        ];
        assert_shows(&shown, &parts);
        let rest = words(&shown[shown.len() / 2..]);
        for word in message.split(' ') {
            assert!(rest.contains(word), "{size:?}: no `{word}` in {shown:#?}");
        }
        assert!(shown.iter().any(|row| row.contains('•')), "a single value is a mark: {shown:#?}");
        view.pane = Pane::Ranks;
        let shown = screen(size, &model, &view, Depth::None);
        for part in [
            "↑1.00 MiB/s",
            "↓2.00 MiB/s",
            "22 W",
            "north",
            "param 10.00 MiB",
            "optim 20.00 MiB",
            "other 60.00 MiB",
        ] {
            assert_eq!(
                shown.join("\n").matches(part).count(),
                2,
                "{size:?}: {part} of both ranks in {shown:#?}"
            );
        }
        let footer = &shown[shown.len() - 1];
        let ends = ["quit", "pane", "log scale", "smooth", "metrics", "zoom"];
        assert!(ends.iter().any(|end| footer.ends_with(end)), "{footer}");
    }
}

#[test]
fn a_screen_that_is_too_small_says_so() {
    let shown = screen((30, 8), &recorded(), &View::new(false), Depth::None);
    assert_eq!(shown[..2].join(" "), "30 x 8 is too small; the dashboard needs 40 x 12");
    // Any other one shows something without a panic, under every selection.
    let models = [recorded(), Model::default()];
    for (width, height) in [(40, 12), (41, 13), (99, 60), (100, 29), (100, 30), (300, 12), (200, 80)] {
        for (pane, model) in
            [Pane::Curves, Pane::Ranks, Pane::Samples, Pane::Log].iter().zip(models.iter().cycle())
        {
            let mut view = View::new(true);
            (view.pane, view.help) = (*pane, true);
            assert_shows(&screen((width, height), model, &view, Depth::Indexed), &[" keys ─"]);
            view.help = false;
            assert_shows(&screen((width, height), model, &view, Depth::Indexed), &["step "]);
        }
    }
}

#[test]
fn keys_choose_what_is_shown() {
    let (model, mut view) = (recorded(), View::new(true));
    let mut press = |code: KeyCode| {
        view.press(KeyEvent::new(code, KeyModifiers::NONE), &model);
        screen((80, 24), &model, &view, Depth::None)
    };
    assert_shows(&press(KeyCode::Char('l')), &["╭ loss, log scale ─"]);
    assert_shows(&press(KeyCode::Char('m')), &["╭ loss, log scale, smoothed 0.6 ─"]);
    assert_shows(&press(KeyCode::Right), &["╭ test split, log", "test_accuracy 0.7500"]);
    assert_shows(
        &press(KeyCode::Tab),
        &["[ranks]", "param 10.00 MiB  grad 10.00 MiB  optim 20.00 MiB  other 60.00 MiB"],
    );
    let samples = press(KeyCode::Tab);
    assert_shows(&samples, &["╭ samples of step 300 ─"]);
    // Without colours the picture is letters; the red half is darker than the white one.
    assert!(samples.iter().any(|row| row.contains("---@@@")), "{samples:#?}");
    assert_shows(&press(KeyCode::Char('?')), &["p         pause after the step, and resume"]);
    press(KeyCode::Char('q'));
    let question = press(KeyCode::Char('q'));
    assert_shows(&question, &["Stop the training? It finishes its step and saves."]);
}

#[test]
fn the_end_of_a_run_and_the_cost_of_ranks_are_shown() {
    let mut model = recorded();
    let rank = |rank, exposed| RankSummary {
        rank,
        parameter_bytes: 1 << 20,
        step_seconds: 10.0,
        communication_exposed_seconds: exposed,
        bytes_sent: 3 << 20,
        ..RankSummary::default()
    };
    model.summary = Some(Summary {
        status: "finished".into(),
        step: 1000,
        samples_per_second: 999.6,
        wall_seconds: 75.0,
        ranks: vec![rank(0, 1.0), rank(1, 5.0)],
        ..Summary::default()
    });
    if let Some(state) = &mut model.state {
        state.doing = RunActivity::Ended;
    }
    let shown = screen((140, 40), &model, &View::new(false), Depth::None);
    assert_shows(
        &shown,
        &[
            "shapes-gan  finished",
            "step 1,000/1,000  epoch 10.00  took 1 min 15 s",
            "1,000 samples/s",
            "1  comm ████░░░░ 50% exposed  0% hidden",
        ],
    );
    model.failure = Some("rank 1: no such image".into());
    if let Some(state) = &mut model.state {
        state.doing = RunActivity::Failed;
    }
    assert_shows(
        &screen((80, 24), &model, &View::new(false), Depth::None),
        &["FAILED rank 1: no such image"],
    );
}
