//! Every strategy, on any number of ranks, gives the losses of one rank with the same global batch.
//!
//! A cell of the matrix is a whole training through the engine, its ranks threads of this process: the real models with
//! averaged weights, clipping by the global norm, weight decay of matrices only, a schedule, and epochs whose last batch has
//! too few images for every rank to get one. Compared are the loss, the measures and the gradient's norm of every step, and
//! what the averaged weights reach on the test split. One rank's curve is trained once for all cells that need it.
//!
//! The residual network's activations have kinks. Now and then rounding decides on which side of one an activation is, which
//! moves a gradient at once, and every loss after it. So its first steps are compared with those of one rank, an epoch with its
//! small last batch and the step after it, at a rate at which a slightly wrong gradient shows in these losses (there is
//! a test of that), and all steps, to the bit, with those of `ddp` on as many ranks.
//!
//! `cargo test` runs a few cells of each preset; the others are ignored for their length (`cargo xtask test --full`).

use std::sync::Arc;

use crate::harness::Place;
use crate::harness::engine::{Once, Recorder, resolve, run_in};

const STEPS: usize = 14;

/// The relative tolerances of the residual network's first losses and norms against those of one rank.
const RESNET_TOLERANCES: [(f64, f64); 4] = [(1e-5, 2e-5), (1e-4, 1e-3), (1e-3, 0.02), (3e-3, 0.05)];

/// The trained model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Model {
    /// With synchronised batch norm: statistics of the global micro-batch.
    ResNet18,
    /// With noise drawn by sample and two terms of the loss.
    Cvae,
}

/// The element type that is computed in; a new one is a variant, its settings, and its tolerance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Precision {
    F32,
    Bf16,
}

impl Precision {
    const ALL: [Self; 2] = [Self::F32, Self::Bf16];

    fn settings(self) -> &'static str {
        match self {
            Self::F32 => "",
            Self::Bf16 => "train.precision=bf16",
        }
    }

    /// Returns the relative tolerance of losses against those of one rank.
    fn tolerance(self) -> f64 {
        match self {
            Self::F32 => 1e-5,
            // Sums in another order may round the other way: 2⁻⁸ apart.
            Self::Bf16 => 0.03,
        }
    }
}

/// The settings that one rank's curve depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    model: Model,
    precision: Precision,
    /// The interval of blocks that are recomputed in backward; 0 = none.
    recompute: usize,
    accumulate: usize,
}

/// A whole training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Cell {
    case: Case,
    strategy: &'static str,
    ranks: usize,
}

/// The compared values: a row for every step, and one for the test split.
type Curve = Vec<Row>;

#[derive(Debug, Clone, PartialEq)]
struct Row {
    /// The loss and the measures.
    measured: Vec<f64>,
    /// The gradient's norm, but for the test split.
    norm: Option<f64>,
}

impl Cell {
    fn settings(self) -> String {
        let Self { case: Case { model, precision, recompute, accumulate }, strategy, ranks } = self;
        // Ten images are no multiple of three or four ranks, nor five of two; the last step of an epoch has three, spread over
        // the ranks or padded. Messages are small, so that there are many.
        let common = "eval.every=0 train.global_batch=10 train.bucket_kib=32 data.images=23 data.test_images=9 data.flip=true \
            train.threads=1 train.ema=0.8 eval.batch=2 sample.rows=1 sample.columns=1 schedule.kind=cosine";
        let of_model = match model {
            Model::ResNet18 => {
                "model.kind=resnet18 model.width=8 model.image_size=32 model.sync_batch_norm=true \
                optim.kind=sgd optim.lr=0.02 optim.weight_decay=0.0005 train.clip_norm=2 model.label_smoothing=0.1"
            }
            Model::Cvae => "optim.kind=adamw optim.lr=0.002 optim.weight_decay=0.05 train.clip_norm=0.5",
        };
        let own = format!(
            "train.steps={STEPS} train.recompute={recompute} train.accumulate={accumulate} train.ranks={ranks} \
            train.strategy={strategy} data.tail={}",
            if accumulate == 1 { "pad" } else { "ragged" }
        );
        [common, of_model, precision.settings(), &own].join(" ")
    }

    fn train(self) -> Curve {
        self.train_with(&[])
    }

    /// Trains with further settings.
    fn train_with(self, further: &[&str]) -> Curve {
        let place = Place::new();
        let recorder = Recorder::of_steps(|report| {
            let phase = &report.phases[0];
            let measures = phase.measures.iter().map(|(_, value)| *value);
            let measured = [phase.loss].into_iter().chain(measures).collect();
            Row { measured, norm: report.updates[0].gradient_norm }
        });
        let recorder = recorder.and_evaluations(|measures| Row {
            measured: measures.iter().map(|(_, value)| *value).collect(),
            norm: None,
        });
        let curve =
            recorder.train(&run_in(&place.path("run")), &resolve(&[&self.settings(), &further.join(" ")]));
        assert_eq!(curve.len(), STEPS + 1, "{self:?}: every step and the test split");
        curve
    }

    /// Its curve, trained once in this process.
    fn curve(self) -> Arc<Curve> {
        static KNOWN: Once<Cell, Curve> = Once::new();
        KNOWN.get(self, || self.train())
    }

    /// Returns the relative tolerances of a row's measures and norm against those of one rank; `None` for rows that are
    /// not compared.
    fn tolerance(self, row: usize) -> Option<(f64, f64)> {
        match (self.case.model, self.case.precision) {
            (Model::Cvae, precision) => Some((precision.tolerance(), precision.tolerance())),
            (Model::ResNet18, Precision::F32) => RESNET_TOLERANCES.get(row).copied(),
            (Model::ResNet18, Precision::Bf16) => (row < RESNET_TOLERANCES.len()).then_some((0.05, 0.5)),
        }
    }

    fn check(self) {
        let (found, alone) = (self.curve(), Self { strategy: "ddp", ranks: 1, ..self }.curve());
        let mean = |rows: &[Row]| rows.iter().map(|row| row.measured[0]).sum::<f64>() / rows.len() as f64;
        let (first, last) = (mean(&alone[..5]), mean(&alone[STEPS - 5..STEPS]));
        assert!(last < 0.95 * first, "{self:?}: one rank learns: {alone:?}");
        for (row, (found, alone)) in found.iter().zip(&*alone).enumerate() {
            let Some((measures, norm)) = self.tolerance(row) else { continue };
            let close = |found: f64, alone: f64, tolerance: f64| {
                assert!(
                    (found - alone).abs() <= tolerance * alone.abs().max(1e-3),
                    "{self:?}: row {row} of {STEPS}: {found} is not {alone}"
                );
            };
            let measured = found.measured.iter().zip(&alone.measured);
            measured.for_each(|(found, alone)| close(*found, *alone, measures));
            found.norm.zip(alone.norm).into_iter().for_each(|(found, alone)| close(found, alone, norm));
        }
        // Groups add in another order.
        if self.strategy != "hsdp" {
            let replicated = Self { strategy: "ddp", ..self }.curve();
            // The norm's squares are added part by part.
            let bits = |curve: &Curve| curve.iter().map(|row| row.measured.clone()).collect::<Vec<_>>();
            assert_eq!(bits(&found), bits(&replicated), "{self:?}: not the bits of ddp");
        }
    }
}

/// The cells of `strategy`: all, or a few in which everything occurs that can go wrong.
fn cells(strategy: &'static str, all: bool) -> Vec<Cell> {
    let mut cells = Vec::new();
    for model in [Model::ResNet18, Model::Cvae] {
        for precision in Precision::ALL {
            for ranks in 1..=4 {
                for (recompute, accumulate) in [(0, 1), (1, 1), (0, 2), (1, 2)] {
                    let few = match (ranks, recompute, accumulate) {
                        (2, 0, 1) => (model, precision) != (Model::Cvae, Precision::Bf16),
                        (4, 1, 2) => (model, precision) != (Model::ResNet18, Precision::Bf16),
                        _ => false,
                    };
                    if all || few {
                        let case = Case { model, precision, recompute, accumulate };
                        cells.push(Cell { case, strategy, ranks });
                    }
                }
            }
        }
    }
    cells
}

macro_rules! presets {
    ($($strategy:ident)*) => {
        const PRESETS: &[&str] = &[$(stringify!($strategy)),*];

        $(mod $strategy {
            #[test]
            fn few_cells() {
                super::cells(stringify!($strategy), false).into_iter().for_each(super::Cell::check);
            }

            #[test]
            #[ignore = "all cells of a strategy take a minute: cargo xtask test --full"]
            fn all_cells() {
                super::cells(stringify!($strategy), true).into_iter().for_each(super::Cell::check);
            }
        })*
    };
}

presets! { dp ddp zero1 zero2 fsdp hsdp }

#[test]
fn a_gradient_that_is_a_tenth_off_shows_in_the_losses() {
    for accumulate in [1, 2] {
        let case = Case { model: Model::ResNet18, precision: Precision::F32, recompute: 0, accumulate };
        let cell = Cell { case, strategy: "ddp", ranks: 1 };
        let (right, wrong) = (cell.curve(), cell.train_with(&["optim.lr=0.022"]));
        // The first loss is taken before any update. A cell fails if one loss is too far off, so one must be.
        let off =
            |row: usize| (wrong[row].measured[0] - right[row].measured[0]).abs() / right[row].measured[0];
        let offs: Vec<f64> = (1..RESNET_TOLERANCES.len()).map(off).collect();
        let mut shown = offs.iter().zip(&RESNET_TOLERANCES[1..]);
        let shows = shown.any(|(off, (tolerance, _))| *off > 4.0 * tolerance);
        assert!(shows, "{accumulate}: losses are off by {offs:?} only");
    }
}

#[test]
fn every_preset_has_its_cells() {
    let known: Vec<&str> = phalanx_sharding::STRATEGIES
        .iter()
        .filter(|row| row.is_bulk_synchronous())
        .map(|row| row.name)
        .collect();
    assert_eq!(PRESETS, known);
}
