//! The layout of the dashboard on screens of any size.

use ratatui::layout::{Constraint, Layout, Rect};

use super::view::{PANES, Pane, View};

/// The minimum size of the screen: columns and rows.
pub(super) const LEAST: (u16, u16) = (40, 12);

/// The minimum size at which all panes are shown at once: columns and rows.
const ROOMY: (u16, u16) = (100, 30);

/// The width of the numbers next to the curves on a small screen.
const NUMBERS_WIDTH: u16 = 28;

/// The areas of the screen.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Areas {
    /// Name, status and progress: two rows.
    pub(super) header: Rect,
    /// The names of the panes, unless all are shown.
    pub(super) tabs: Option<Rect>,
    /// Throughput and other numbers.
    pub(super) numbers: Option<Rect>,
    /// The visible panes.
    pub(super) panes: Vec<(Pane, Rect)>,
    /// Keys or a message: one row.
    pub(super) footer: Rect,
}

/// The rows that panes need at a width.
pub(super) struct Wanted<'a> {
    /// The rows of the numbers.
    pub(super) numbers: &'a dyn Fn(u16) -> u16,
    /// The rows of the ranks.
    pub(super) ranks: &'a dyn Fn(u16) -> u16,
}

/// Computes the layout; `None` if the screen is too small.
pub(super) fn arrange(screen: Rect, view: &View, wanted: &Wanted<'_>) -> Option<Areas> {
    if screen.width < LEAST.0 || screen.height < LEAST.1 {
        return None;
    }
    let rows = |area, constraints: &[Constraint]| Layout::vertical(constraints).split(area).to_vec();
    let columns = |area, constraints: &[Constraint]| Layout::horizontal(constraints).split(area).to_vec();
    let (fill, length) = (Constraint::Fill(1), Constraint::Length);
    if screen.width >= ROOMY.0 && screen.height >= ROOMY.1 && !view.alone {
        let [header, body, footer] = rows(screen, &[length(2), fill, length(1)])[..] else { return None };
        let [left, right] = columns(body, &[Constraint::Fill(3), Constraint::Fill(2)])[..] else {
            return None;
        };
        let [curves, log] = rows(left, &[Constraint::Fill(3), Constraint::Fill(2)])[..] else { return None };
        // The rows of the panes and their frames, but at most two fifths and half of the height.
        let with_frame = |rows: u16, most: u16| rows.saturating_add(2).clamp(4, most.max(4));
        let inner = right.width.saturating_sub(2);
        let numbers = with_frame((wanted.numbers)(inner), right.height * 2 / 5);
        let ranks = with_frame((wanted.ranks)(inner), right.height / 2);
        let constraints = [length(numbers), length(ranks), fill];
        let [numbers, of_ranks, samples] = rows(right, &constraints)[..] else { return None };
        let panes =
            vec![(Pane::Curves, curves), (Pane::Log, log), (Pane::Ranks, of_ranks), (Pane::Samples, samples)];
        return Some(Areas { header, tabs: None, numbers: Some(numbers), panes, footer });
    }
    let [header, tabs, body, footer] = rows(screen, &[length(2), length(1), fill, length(1)])[..] else {
        return None;
    };
    let mut areas = Areas { header, tabs: Some(tabs), numbers: None, panes: vec![(view.pane, body)], footer };
    if view.pane == Pane::Curves && !view.alone {
        let mut curves = body;
        if body.height >= 18 {
            let [above, log] = rows(body, &[fill, length(7)])[..] else { return None };
            curves = above;
            areas.panes.push((Pane::Log, log));
        }
        if body.width >= 70 {
            let [left, numbers] = columns(curves, &[fill, length(NUMBERS_WIDTH)])[..] else { return None };
            curves = left;
            areas.numbers = Some(numbers);
        }
        areas.panes[0].1 = curves;
    }
    Some(areas)
}

/// Returns the names of all panes, and true for the selected one.
pub(super) fn tabs(view: &View) -> impl Iterator<Item = (&'static str, bool)> {
    PANES.into_iter().map(move |pane| (pane.title(), pane == view.pane))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_neither_overlap_nor_leave_the_screen_at_any_size() {
        for (width, height) in
            (40..=220).step_by(9).flat_map(|width| (12..=70).step_by(3).map(move |h| (width, h)))
        {
            for (pane, alone, ranks) in PANES.iter().flat_map(|pane| [(*pane, false, 2), (*pane, true, 64)]) {
                let mut view = View::new(false);
                (view.pane, view.alone) = (pane, alone);
                let screen = Rect::new(0, 0, width, height);
                let wanted = Wanted { numbers: &|_| 6, ranks: &|_| 2 * ranks };
                let areas = arrange(screen, &view, &wanted).expect("large enough");
                let mut all = vec![areas.header, areas.footer];
                all.extend(areas.tabs);
                all.extend(areas.numbers);
                all.extend(areas.panes.iter().map(|(_, area)| *area));
                let what = format!("{width} x {height}, {view:?}: {all:?}");
                let covered: u32 = all.iter().map(|area| area.area()).sum();
                assert_eq!(covered, screen.area(), "{what}");
                for (at, one) in all.iter().enumerate() {
                    assert_eq!(screen.union(*one), screen, "{what}");
                    assert!(all[at + 1..].iter().all(|other| one.intersection(*other).area() == 0), "{what}");
                }
                assert!(areas.panes.iter().any(|(shown, _)| *shown == pane), "{what}");
            }
        }
        let wanted = Wanted { numbers: &|_| 0, ranks: &|_| 0 };
        assert_eq!(arrange(Rect::new(0, 0, 30, 8), &View::new(false), &wanted), None);
    }
}
