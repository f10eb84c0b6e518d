//! The dashboard of any folder, for the fuzzer of this workspace.

use std::path::Path;

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::draw::draw;
use super::model::Model;
use super::palette::Depth;
use super::source::Source;
use super::view::{PANES, View};
use phalanx_run::RunFolder;

/// Reads the run in a folder and draws every pane. Asserts that a second poll finds nothing new.
pub(crate) fn render(run: &Path) {
    let Ok(folder) = RunFolder::open(run) else { return };
    let (mut source, mut model) = (Source::new(&folder, None), Model::of("run".to_owned()));
    source.poll(&mut model);
    let _ = (model.status(), model.left(), model.watts());
    assert!(!source.poll(&mut model), "a second poll finds changes");
    show(&model, &View::new(false), (120, 40));
    for pane in PANES {
        let mut view = View::new(true);
        (view.pane, view.alone, view.logarithmic) = (pane, true, true);
        show(&model, &view, (60, 20));
    }
}

/// Renders a screen of the given columns and rows.
fn show(model: &Model, view: &View, (width, height): (u16, u16)) {
    let terminal = Terminal::new(TestBackend::new(width, height));
    let mut terminal = terminal.unwrap_or_else(|error| panic!("a screen in memory: {error}"));
    let _ = terminal.draw(|frame| draw(frame, model, view, Depth::True));
}
