//! The problem of the recorded runs `synchrony.json`, whose workers have losses of their own over the same 64 numbers.

use serde_json::Value as Json;

/// Numbers that a worker's loss is a function of.
pub(crate) const SIZE: usize = 64;

/// Returns the recorded values.
pub(crate) fn recorded() -> Json {
    serde_json::from_str(include_str!("../fixtures/synchrony.json")).expect("JSON")
}

/// Returns `n` numbers in [-scale, scale) by the fill `splitmix64-v1` with seed 0, as a function of a name.
pub(crate) fn sym(name: &str, n: usize, scale: f64) -> Vec<f32> {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    let start = phalanx_kernels::fnv1a(name.as_bytes());
    let number = |i: u64| {
        let z = start.wrapping_add((i + 1).wrapping_mul(GOLDEN));
        let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let u = ((z ^ (z >> 31)) >> 40) as f64 / f64::from(1 << 24);
        ((2.0 * u - 1.0) * scale) as f32
    };
    (0..n as u64).map(number).collect()
}

/// loss_i(w) = mean((A·w − b_i)²) + mean(cos w).
pub(crate) struct Problem {
    matrix: Vec<f32>,
    targets: [Vec<f32>; 2],
}

impl Problem {
    pub(crate) fn new() -> Self {
        let targets = ["b.0", "b.1"].map(|name| sym(name, SIZE, 1.0));
        Self { matrix: sym("A", SIZE * SIZE, 0.2), targets }
    }

    /// Where all begin.
    pub(crate) fn start() -> Vec<f32> {
        sym("w", SIZE, 1.0)
    }

    fn residual(&self, worker: usize, w: &[f32]) -> Vec<f64> {
        let rows = self.matrix.chunks_exact(SIZE).zip(&self.targets[worker]);
        let product =
            |row: &[f32]| row.iter().zip(w).map(|(a, x)| f64::from(*a) * f64::from(*x)).sum::<f64>();
        rows.map(|(row, target)| product(row) - f64::from(*target)).collect()
    }

    pub(crate) fn loss(&self, worker: usize, w: &[f32]) -> f64 {
        let squares: f64 = self.residual(worker, w).iter().map(|r| r * r).sum();
        let cosines: f64 = w.iter().map(|x| f64::from(*x).cos()).sum();
        (squares + cosines) / SIZE as f64
    }

    pub(crate) fn gradient(&self, worker: usize, w: &[f32]) -> Vec<f32> {
        let residual = self.residual(worker, w);
        let of = |column: usize| {
            let along: f64 = residual
                .iter()
                .enumerate()
                .map(|(row, r)| f64::from(self.matrix[row * SIZE + column]) * r)
                .sum();
            (2.0 * along - f64::from(w[column]).sin()) / SIZE as f64
        };
        (0..SIZE).map(|column| of(column) as f32).collect()
    }
}

/// Numbers of a recorded list.
pub(crate) fn numbers(json: &Json) -> Vec<f64> {
    json.as_array().expect("a list").iter().map(|number| number.as_f64().expect("a number")).collect()
}

/// Panics unless all numbers are within `tolerance` of the recorded ones.
pub(crate) fn assert_near(what: &str, ours: &[f32], recorded: &Json, tolerance: f64) {
    let recorded = numbers(recorded);
    assert_eq!(ours.len(), recorded.len(), "{what}");
    for (at, (own, other)) in ours.iter().zip(recorded).enumerate() {
        assert!(
            (f64::from(*own) - other).abs() <= tolerance,
            "{what}, element {at}: {own}, recorded {other}"
        );
    }
}
