//! The user's selection, and the effect of keys.

use std::time::{Duration, Instant};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::curve::SMOOTHING;
use super::model::{Model, Status};
use phalanx_run::Request;

/// A part of the dashboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pane {
    Curves,
    Ranks,
    Samples,
    Log,
}

/// All panes, in the order of the tab key.
pub(super) const PANES: [Pane; 4] = [Pane::Curves, Pane::Ranks, Pane::Samples, Pane::Log];

impl Pane {
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Curves => "curves",
            Self::Ranks => "ranks",
            Self::Samples => "samples",
            Self::Log => "log",
        }
    }
}

/// A group of metrics that are drawn in one chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    /// The measure that leads, of training and of the test split.
    Headline,
    Losses,
    Tests,
    Throughput,
    GradientNorms,
    LearningRates,
    Other,
}

/// All groups, in the order of the arrow keys.
pub(super) const GROUPS: [Group; 7] = [
    Group::Headline,
    Group::Losses,
    Group::Tests,
    Group::Throughput,
    Group::GradientNorms,
    Group::LearningRates,
    Group::Other,
];

impl Group {
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Headline => "headline",
            Self::Losses => "loss",
            Self::Tests => "test split",
            Self::Throughput => "speed",
            Self::GradientNorms => "gradient norm",
            Self::LearningRates => "learning rate",
            Self::Other => "other measures",
        }
    }

    /// Returns the group of a metric; `None` for epochs, times and shares.
    fn of(name: &str) -> Option<Self> {
        let counted = ["epoch", "seconds", "memory_bytes", "data_share", "communication_share"];
        let is = |what: &str| name == what || name.ends_with(&format!("_{what}"));
        Some(match name {
            name if counted.contains(&name) => return None,
            // The losses of the test split are in the chart of those of training.
            _ if is("loss") => Self::Losses,
            name if name.starts_with("test_") => Self::Tests,
            _ if name.ends_with("_per_s") => Self::Throughput,
            _ if is("grad_norm") => Self::GradientNorms,
            _ if is("lr") => Self::LearningRates,
            _ => Self::Other,
        })
    }

    /// Returns the metrics of the run in this group.
    pub(super) fn names(self, model: &Model) -> Vec<&str> {
        let leads = |name: &str| model.headline() == Some(name.strip_prefix("test_").unwrap_or(name));
        let is_member = |name: &&str| match self {
            Self::Headline => leads(name),
            _ => Self::of(name) == Some(self),
        };
        model.names().filter(is_member).collect()
    }
}

/// The confirmation question of an action that cannot be undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    /// Stop the training that this dashboard has started?
    End,
    /// Save and stop the run?
    Stop,
}

/// The effect of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Quit the dashboard.
    Leave,
    /// Stop the training that this dashboard has started.
    End,
    /// Stop that training or, if it is already stopping, end it at once.
    Interrupt,
    /// Send a request to the run.
    Ask(Request),
}

/// The time for which a message is shown.
const MESSAGE_TIME: Duration = Duration::from_secs(8);

/// The user's selection.
#[derive(Debug)]
pub(super) struct View {
    /// True if this dashboard has started the training.
    pub(super) owns: bool,
    pub(super) pane: Pane,
    /// True if the selected pane fills the screen.
    pub(super) alone: bool,
    pub(super) group: Group,
    pub(super) logarithmic: bool,
    /// The index in [`SMOOTHING`].
    pub(super) smoothing: usize,
    /// The number of log lines below the visible ones; 0 follows new lines.
    pub(super) log_back: usize,
    pub(super) help: bool,
    pub(super) question: Option<Question>,
    message: Option<(String, Instant)>,
}

impl View {
    pub(super) fn new(owns: bool) -> Self {
        Self {
            owns,
            pane: Pane::Curves,
            alone: false,
            group: Group::Headline,
            logarithmic: false,
            smoothing: 0,
            log_back: 0,
            help: false,
            question: None,
            message: None,
        }
    }

    /// Shows a message to the user for [`MESSAGE_TIME`].
    pub(super) fn show_message(&mut self, text: impl Into<String>) {
        self.message = Some((text.into(), Instant::now()));
    }

    /// Returns the message to the user.
    pub(super) fn message(&self) -> Option<&str> {
        self.message.as_ref().filter(|(_, when)| when.elapsed() < MESSAGE_TIME).map(|(text, _)| text.as_str())
    }

    /// Handles a key. Returns the action for the caller, if any.
    pub(super) fn press(&mut self, key: KeyEvent, model: &Model) -> Option<Action> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Some(if self.owns { Action::Interrupt } else { Action::Leave });
        }
        if let Some(question) = self.question.take() {
            let yes = matches!(key.code, KeyCode::Char('y' | 'Y') | KeyCode::Enter);
            return yes.then_some(match question {
                Question::End => Action::End,
                Question::Stop => Action::Ask(Request::Stop),
            });
        }
        if std::mem::take(&mut self.help) {
            return None;
        }
        match key.code {
            KeyCode::Char('q') if self.owns && !model.status().is_over() => {
                self.question = Some(Question::End);
            }
            KeyCode::Char('q') => return Some(Action::Leave),
            KeyCode::Char('p') => {
                let request = if model.status() == Status::Paused { Request::Resume } else { Request::Pause };
                return Some(Action::Ask(request));
            }
            KeyCode::Char('s') => return Some(Action::Ask(Request::Save)),
            KeyCode::Char('x') => self.question = Some(Question::Stop),
            KeyCode::Char('l') => self.logarithmic = !self.logarithmic,
            KeyCode::Char('m') => self.smoothing = (self.smoothing + 1) % SMOOTHING.len(),
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Char('z') | KeyCode::Enter => self.alone = !self.alone,
            KeyCode::Esc => self.alone = false,
            KeyCode::Tab => self.pane = next(&PANES, self.pane, 1),
            KeyCode::BackTab => self.pane = next(&PANES, self.pane, PANES.len() - 1),
            KeyCode::Right => self.turn(model, 1),
            KeyCode::Left => self.turn(model, GROUPS.len() - 1),
            KeyCode::Up => self.scroll(model, 1),
            KeyCode::Down => self.scroll(model, -1),
            KeyCode::PageUp => self.scroll(model, 10),
            KeyCode::PageDown => self.scroll(model, -10),
            KeyCode::Home => self.log_back = model.log.len(),
            KeyCode::End => self.log_back = 0,
            _ => {}
        }
        None
    }

    /// The group that is drawn: losses where no measure leads.
    pub(super) fn drawn_group(&self, model: &Model) -> Group {
        match self.group {
            Group::Headline if Group::Headline.names(model).is_empty() => Group::Losses,
            group => group,
        }
    }

    /// Selects the next group with metrics, in steps of `by`.
    fn turn(&mut self, model: &Model, by: usize) {
        self.group = self.drawn_group(model);
        for _ in 0..GROUPS.len() {
            self.group = next(&GROUPS, self.group, by);
            if !self.group.names(model).is_empty() {
                return;
            }
        }
    }

    fn scroll(&mut self, model: &Model, by: isize) {
        self.log_back = self.log_back.saturating_add_signed(by).min(model.log.len());
    }
}

fn next<T: Copy + PartialEq>(all: &[T], one: T, by: usize) -> T {
    let at = all.iter().position(|other| *other == one).unwrap_or_default();
    all[(at + by) % all.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_run::{RunActivity, RunState};

    fn press(view: &mut View, model: &Model, code: KeyCode) -> Option<Action> {
        view.press(KeyEvent::new(code, KeyModifiers::NONE), model)
    }

    #[test]
    fn what_ends_a_training_is_asked_before() {
        let model = Model::default();
        let mut own = View::new(true);
        assert_eq!(press(&mut own, &model, KeyCode::Char('q')), None);
        assert_eq!(own.question, Some(Question::End));
        assert_eq!(press(&mut own, &model, KeyCode::Char('n')), None);
        assert_eq!((own.question, press(&mut own, &model, KeyCode::Char('q'))), (None, None));
        assert_eq!(press(&mut own, &model, KeyCode::Char('y')), Some(Action::End));
        let mut watching = View::new(false);
        assert_eq!(press(&mut watching, &model, KeyCode::Char('q')), Some(Action::Leave));
        assert_eq!(press(&mut watching, &model, KeyCode::Char('x')), None);
        assert_eq!(press(&mut watching, &model, KeyCode::Enter), Some(Action::Ask(Request::Stop)));
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(own.press(interrupt, &model), Some(Action::Interrupt));
        assert_eq!(watching.press(interrupt, &model), Some(Action::Leave));
    }

    #[test]
    fn one_key_pauses_and_resumes() {
        let (mut view, mut model) = (View::new(false), Model::default());
        let p = KeyCode::Char('p');
        assert_eq!(press(&mut view, &model, p), Some(Action::Ask(Request::Pause)));
        model.state = Some(RunState { doing: RunActivity::Paused, ..RunState::default() });
        assert_eq!(press(&mut view, &model, p), Some(Action::Ask(Request::Resume)));
        assert_eq!(press(&mut view, &model, KeyCode::Char('s')), Some(Action::Ask(Request::Save)));
    }

    #[test]
    fn groups_without_measurements_are_passed_over() {
        let (mut view, mut model) = (View::new(false), Model::default());
        model.take_metrics(
            r#"{"step":1,"loss":1,"kl":2,"epoch":0,"samples_per_s":3,"critic_lr":0.1,"test_loss":3,
                "test_accuracy":1}"#,
        );
        let mut seen = Vec::new();
        for _ in 0..5 {
            press(&mut view, &model, KeyCode::Right);
            seen.push(view.group);
        }
        let expected = [Group::Tests, Group::Throughput, Group::LearningRates, Group::Other, Group::Losses];
        assert_eq!(seen, expected);
        press(&mut view, &model, KeyCode::Left);
        assert_eq!(view.group, Group::Other);
        assert_eq!(Group::Other.names(&model), ["kl"]);
        assert_eq!(Group::Losses.names(&model), ["loss", "test_loss"]);
        press(&mut view, &model, KeyCode::BackTab);
        assert_eq!(view.pane, Pane::Log);
    }
}
