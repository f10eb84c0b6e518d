//! A forest of regression trees, and the variance of its prediction over each key alone.

use phalanx_tensor::Key;

/// The values of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Domain {
    /// Positions between 0 and 1.
    Range,
    /// The numbers of this many choices.
    Choices(usize),
}

/// The trees of a forest, as in Optuna's evaluator.
const TREES: u64 = 64;

/// A part of the values of a key.
#[derive(Debug, Clone, PartialEq)]
enum Part {
    /// From one position to another.
    Interval(f64, f64),
    /// The choices that belong to it.
    Choices(Vec<bool>),
}

impl Part {
    fn whole(domain: Domain) -> Self {
        match domain {
            Domain::Range => Self::Interval(0.0, 1.0),
            Domain::Choices(count) => Self::Choices(vec![true; count]),
        }
    }

    /// Returns the share of all values of the key.
    fn share(&self) -> f64 {
        match self {
            Self::Interval(start, end) => end - start,
            Self::Choices(belong) => {
                belong.iter().filter(|belongs| **belongs).count() as f64 / belong.len() as f64
            }
        }
    }

    /// Splits the part in two.
    fn split(&self, at: &Cut) -> (Self, Self) {
        match (self, at) {
            (Self::Interval(start, end), Cut::At(place)) => {
                (Self::Interval(*start, *place), Self::Interval(*place, *end))
            }
            (Self::Choices(belong), Cut::Choices(left)) => {
                let side = |wanted: bool| {
                    belong.iter().zip(left).map(|(belongs, left)| *belongs && *left == wanted).collect()
                };
                (Self::Choices(side(true)), Self::Choices(side(false)))
            }
            (part, _) => (part.clone(), part.clone()),
        }
    }
}

/// A place at which the values of a key are split.
#[derive(Debug, Clone, PartialEq)]
enum Cut {
    /// Smaller positions are on the left.
    At(f64),
    /// The choices on the left.
    Choices(Vec<bool>),
}

impl Cut {
    fn is_left(&self, value: f64) -> bool {
        match self {
            Self::At(place) => value < *place,
            Self::Choices(left) => left.get(value as usize).copied().unwrap_or_default(),
        }
    }
}

/// A box in the space of all keys, and the prediction there.
struct Leaf {
    parts: Vec<Part>,
    value: f64,
}

/// The rows: the value of each key, and the measure.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) domains: &'a [Domain],
    pub(super) values: &'a [Vec<f64>],
    pub(super) measures: &'a [f64],
}

/// A split of the rows of a node.
struct Split {
    key: usize,
    cut: Cut,
    /// The sum over both sides of the squared sum of measures over their number: the larger, the smaller the error.
    score: f64,
}

/// The sum of measures, and their number.
#[derive(Clone, Copy, Default)]
struct Sum {
    sum: f64,
    count: f64,
}

impl Sum {
    fn add(&mut self, measure: f64) {
        self.sum += measure;
        self.count += 1.0;
    }

    fn join(self, other: Self) -> Self {
        Self { sum: self.sum + other.sum, count: self.count + other.count }
    }

    fn less(self, other: Self) -> Self {
        Self { sum: self.sum - other.sum, count: self.count - other.count }
    }

    fn mean(self) -> f64 {
        self.sum / self.count
    }

    fn score(self) -> f64 {
        self.sum * self.sum / self.count
    }
}

impl Rows<'_> {
    fn sum(&self, rows: &[usize]) -> Sum {
        let mut all = Sum::default();
        rows.iter().for_each(|row| all.add(self.measures[*row]));
        all
    }

    /// Returns the split of a node by which the squared error falls most; `None` if it does not fall.
    fn best_split(&self, rows: &[usize]) -> Option<Split> {
        let all = self.sum(rows);
        let splits = (0..self.domains.len()).filter_map(|key| match self.domains[key] {
            Domain::Range => self.split_of_range(rows, key, all),
            Domain::Choices(count) => self.split_of_choices(rows, key, count, all),
        });
        let best = splits.reduce(|best, next| if next.score > best.score { next } else { best })?;
        let least = 1e-12 * self.measures.iter().map(|measure| measure * measure).sum::<f64>();
        (best.score > all.score() + least).then_some(best)
    }

    fn split_of_range(&self, rows: &[usize], key: usize, all: Sum) -> Option<Split> {
        let value = |row: usize| self.values[row][key];
        let mut sorted = rows.to_vec();
        sorted.sort_by(|a, b| value(*a).total_cmp(&value(*b)));
        let mut left = Sum::default();
        let mut best: Option<Split> = None;
        for pair in sorted.windows(2) {
            left.add(self.measures[pair[0]]);
            let (low, high) = (value(pair[0]), value(pair[1]));
            let score = left.score() + all.less(left).score();
            if low < high && best.as_ref().is_none_or(|best| score > best.score) {
                best = Some(Split { key, cut: Cut::At(f64::midpoint(low, high)), score });
            }
        }
        best
    }

    /// Splits choices in the order of their means, which contains the best of all splits (Breiman et al. 1984).
    fn split_of_choices(&self, rows: &[usize], key: usize, count: usize, all: Sum) -> Option<Split> {
        let mut sums = vec![Sum::default(); count];
        for row in rows {
            sums[self.values[*row][key] as usize].add(self.measures[*row]);
        }
        let mut order: Vec<usize> = (0..count).filter(|choice| sums[*choice].count > 0.0).collect();
        order.sort_by(|a, b| sums[*a].mean().total_cmp(&sums[*b].mean()));
        let mut left = Sum::default();
        let mut best: Option<(usize, f64, bool)> = None;
        for (at, choice) in order.iter().enumerate().take(order.len().saturating_sub(1)) {
            left = left.join(sums[*choice]);
            let right = all.less(left);
            let score = left.score() + right.score();
            if best.is_none_or(|best| score > best.1) {
                best = Some((at, score, left.count >= right.count));
            }
        }
        let (at, score, is_larger) = best?;
        // Choices that no row of the node has go with the larger side.
        let mut sides = vec![is_larger; count];
        order.iter().enumerate().for_each(|(place, choice)| sides[*choice] = place <= at);
        Some(Split { key, cut: Cut::Choices(sides), score })
    }

    /// Grows a tree over rows, which may repeat, until every leaf has one measure or one configuration.
    fn grow(&self, rows: Vec<usize>) -> Vec<Leaf> {
        let whole = self.domains.iter().map(|domain| Part::whole(*domain)).collect::<Vec<_>>();
        let (mut open, mut leaves) = (vec![(rows, whole)], Vec::new());
        while let Some((rows, parts)) = open.pop() {
            let Some(Split { key, cut, .. }) = self.best_split(&rows) else {
                leaves.push(Leaf { value: self.sum(&rows).mean(), parts });
                continue;
            };
            let (left, right) = parts[key].split(&cut);
            let with = |part: Part| {
                let mut parts = parts.clone();
                parts[key] = part;
                parts
            };
            let (of_left, of_right) = rows.iter().partition(|row| cut.is_left(self.values[**row][key]));
            open.push((of_left, with(left)));
            open.push((of_right, with(right)));
        }
        leaves
    }

    /// Returns for each key its share of the variance of a forest's prediction over all values of all keys, as the mean
    /// over the trees; `None` if the prediction is constant.
    pub(super) fn shares(&self) -> Option<Vec<f64>> {
        let count = self.measures.len();
        let key = Key::new(0).stream("importance");
        let mut drawn = vec![0.0; count];
        let (mut sums, mut trees) = (vec![0.0; self.domains.len()], 0.0);
        for tree in 0..TREES {
            key.index(tree).uniform(0, &mut drawn);
            let row = |part: &f64| ((part * count as f64) as usize).min(count - 1);
            let leaves = self.grow(drawn.iter().map(row).collect());
            let Some(shares) = shares_of(&leaves, self.domains) else { continue };
            trees += 1.0;
            sums.iter_mut().zip(shares).for_each(|(sum, share)| *sum += share);
        }
        (trees > 0.0).then(|| sums.into_iter().map(|sum| sum / trees).collect())
    }
}

/// Returns the share of each key in the variance of a tree.
fn shares_of(leaves: &[Leaf], domains: &[Domain]) -> Option<Vec<f64>> {
    let sizes: Vec<f64> = leaves.iter().map(|leaf| leaf.parts.iter().map(Part::share).product()).collect();
    let mean: f64 = leaves.iter().zip(&sizes).map(|(leaf, size)| size * leaf.value).sum();
    let variance: f64 =
        leaves.iter().zip(&sizes).map(|(leaf, size)| size * (leaf.value - mean).powi(2)).sum();
    let share = |key: usize| {
        let marginal = marginal(leaves, &sizes, key, domains[key]);
        marginal.iter().map(|(share, value)| share * (value - mean).powi(2)).sum::<f64>() / variance
    };
    (variance > 0.0).then(|| (0..domains.len()).map(share).collect())
}

/// Returns the mean prediction over all other keys, as shares of the values of a key and the prediction there.
fn marginal(leaves: &[Leaf], sizes: &[f64], key: usize, domain: Domain) -> Vec<(f64, f64)> {
    let weighted = leaves.iter().zip(sizes).map(|(leaf, size)| {
        let part = &leaf.parts[key];
        (part, leaf.value * size / part.share())
    });
    if let Domain::Choices(count) = domain {
        let mut sums = vec![0.0; count];
        for (part, value) in weighted {
            let Part::Choices(belong) = part else { continue };
            sums.iter_mut().zip(belong).filter(|(_, belongs)| **belongs).for_each(|(sum, _)| *sum += value);
        }
        return sums.into_iter().map(|sum| (1.0 / count as f64, sum)).collect();
    }
    // Each leaf adds its value from its start on, and takes it back at its end.
    let mut changes: Vec<(f64, f64)> = Vec::new();
    for (part, value) in weighted {
        let Part::Interval(start, end) = part else { continue };
        changes.extend([(*start, value), (*end, -value)]);
    }
    changes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut sum = 0.0;
    let segment = |pair: &[(f64, f64)]| {
        sum += pair[0].1;
        (pair[1].0 - pair[0].0, sum)
    };
    changes.windows(2).map(segment).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of three keys that are drawn uniformly, with a measure of each.
    fn rows(count: u64, measure: impl Fn(&[f64]) -> f64) -> (Vec<Vec<f64>>, Vec<f64>) {
        let key = Key::new(3).stream("rows");
        let row = |at: u64| {
            let mut drawn = vec![0.0; 3];
            key.index(at).uniform(0, &mut drawn);
            drawn[2] = (drawn[2] * 3.0).floor();
            drawn
        };
        let values: Vec<Vec<f64>> = (0..count).map(row).collect();
        let measures = values.iter().map(|row| measure(row)).collect();
        (values, measures)
    }

    #[test]
    fn shares_of_sums_are_those_of_their_variances() {
        let domains = [Domain::Range, Domain::Range, Domain::Choices(3)];
        // A uniform number has variance 1/12, the choices 0, 1 and 2 have 2/3.
        for (name, measure, expected) in [
            ("one key", (|row: &[f64]| 5.0 * row[0]) as fn(&[f64]) -> f64, [1.0, 0.0, 0.0]),
            ("two numbers", |row: &[f64]| 3.0 * row[0] + row[1], [0.9, 0.1, 0.0]),
            ("a choice", |row: &[f64]| row[0] + [0.2, 0.0, 0.4][row[2] as usize], [0.757, 0.0, 0.243]),
            // The product of centred numbers has no variance over one key alone.
            ("a product", |row: &[f64]| (row[0] - 0.5) * (row[1] - 0.5), [0.0, 0.0, 0.0]),
        ] {
            let (values, measures) = rows(300, measure);
            let shares = Rows { domains: &domains, values: &values, measures: &measures }.shares();
            let shares = shares.expect("a variance");
            for (share, expected) in shares.iter().zip(expected) {
                assert!((share - expected).abs() < 0.08, "{name}: {shares:?}");
            }
            assert!(shares.iter().sum::<f64>() <= 1.0 + 1e-9, "{name}: {shares:?}");
        }
    }

    #[test]
    fn a_constant_has_no_shares_and_choices_without_rows_go_with_the_larger_side() {
        let domains = [Domain::Range, Domain::Range, Domain::Choices(3)];
        let (values, measures) = rows(20, |_| 0.25);
        assert_eq!(Rows { domains: &domains, values: &values, measures: &measures }.shares(), None);
        let values = [vec![0.0], vec![0.0], vec![2.0]];
        let rows = Rows { domains: &[Domain::Choices(4)], values: &values, measures: &[1.0, 1.0, 5.0] };
        let split = rows.best_split(&[0, 1, 2]).expect("a split");
        assert_eq!(split.cut, Cut::Choices(vec![true, true, false, true]));
    }
}
