//! Meshes and bits: initial values are those of any mesh, and what one has saved another saves again, bit by bit.

use std::path::Path;

use phalanx_config::Resolved;
use phalanx_trainer::engine::NoopObserver;

use crate::harness::engine::{run_in, try_train, words};
use crate::harness::results::{Tensors, checkpoint, contents, copy};
use crate::harness::{Place, side_by_side};

/// A number of ranks, their strategy, and their degrees.
type Mesh = (usize, &'static str, &'static str);

/// Meshes that a model of six heads can be cut over.
pub(crate) const MESHES_OF_SIX_HEADS: [Mesh; 12] = [
    (1, "ddp", ""),
    (2, "ddp", "parallel.tensor=2"),
    (4, "fsdp", "parallel.shard=2 parallel.tensor=2"),
    (3, "ddp", "parallel.tensor=3"),
    (2, "fsdp", ""),
    (4, "zero1", "parallel.tensor=4"),
    (6, "zero2", "parallel.tensor=3"),
    (1, "ddp", "parallel.tensor=1"),
    (8, "hsdp", "parallel.replicate=2 parallel.shard=2 parallel.tensor=2"),
    (4, "dp", "parallel.tensor=2"),
    (6, "fsdp", "parallel.shard=3 parallel.tensor=2"),
    (3, "zero1", ""),
];

/// A training by its name, preset and settings, and the meshes that it goes through.
#[derive(Clone, Copy)]
struct Subject {
    name: &'static str,
    preset: &'static str,
    settings: &'static str,
    meshes: [Mesh; 12],
}

/// A GPT-2 with Adam and averages, and words of which ranks have unequal numbers.
const GPT: Subject = Subject {
    name: "gpt",
    preset: "tiny-gpt",
    settings: "model.layers=2 model.width=24 model.heads=6 model.context=16 sample.rows=1 sample.tokens=2",
    meshes: MESHES_OF_SIX_HEADS,
};

/// Two generators, two discriminators and a text encoder with averages, batch norms and Adam. Its norms have eight groups of channels,
/// so that two and four ranks can share them.
const GAN: Subject = Subject {
    name: "gan",
    preset: "tiny",
    settings: "model.kind=stackgan model.image_size=32 model.upscale=2 model.gf_dim=8 model.df_dim=4 model.stage2_gf_dim=8 \
        model.stage2_df_dim=4 model.residual_blocks=1 model.condition=8 model.noise=4 model.text_width=24 model.text_heads=6 \
        data.images=24 data.test_images=4 sample.rows=1 sample.columns=1",
    meshes: [
        (1, "ddp", ""),
        (2, "ddp", "parallel.tensor=2"),
        (4, "fsdp", "parallel.shard=2 parallel.tensor=2"),
        (4, "ddp", "parallel.tensor=4"),
        (2, "fsdp", ""),
        (4, "zero1", "parallel.tensor=4"),
        (4, "zero2", "parallel.tensor=2"),
        (1, "ddp", "parallel.tensor=1"),
        (8, "hsdp", "parallel.replicate=2 parallel.shard=2 parallel.tensor=2"),
        (4, "dp", "parallel.tensor=2"),
        (6, "fsdp", "parallel.shard=3 parallel.tensor=2"),
        (3, "zero1", ""),
    ],
};

fn resolved(subject: Subject, at: usize, further: &str) -> Resolved {
    let (ranks, strategy, degrees) = subject.meshes[at];
    let common = "train.global_batch=8 train.threads=1 train.ema=0.9 train.steps=9 eval.every=0 train.bucket_kib=8 schedule.kind=constant \
        schedule.warmup_steps=0";
    let own = format!("train.ranks={ranks} train.strategy={strategy}");
    let resolved = phalanx::program()
        .resolve(subject.preset, &words(&[subject.settings, common, &own, degrees, further]));
    resolved
        .and_then(|resolved| resolved.validate().map(|()| resolved))
        .unwrap_or_else(|error| panic!("{strategy} {degrees}: {error}"))
}

/// Trains until a step. Returns what is saved then; statistics of batches aside, whose sums ranks round differently.
fn saved(folder: &Path, resolved: &Resolved, step: u64) -> Tensors {
    try_train(&run_in(folder), resolved, Box::new(NoopObserver)).unwrap_or_else(|error| {
        panic!("{} {}: {error}", resolved.config.train.ranks, resolved.config.train.strategy)
    });
    let mut all = contents(&checkpoint(folder, step));
    all.retain(|name, _| !name.contains("running_") && !name.contains("num_batches_tracked"));
    all
}

/// Settings of a step that changes all elements alike: gradients are scaled to nothing, so that moments decay and averages move.
const STILL: &str = "optim.lr=0 train.clip_norm=1e-300";

fn check_initial_values(subject: Subject) {
    let place = Place::new();
    let one = |at: usize| {
        let further = format!("{STILL} train.stop_step=1");
        saved(&place.path(&at.to_string()), &resolved(subject, at, &further), 1)
    };
    let expected = one(0);
    side_by_side(1..subject.meshes.len(), |at| {
        assert!(one(at) == expected, "{}, {:?}: initial values differ", subject.name, subject.meshes[at]);
    });
}

#[test]
fn initial_values_are_those_of_any_mesh() {
    check_initial_values(GPT);
    check_initial_values(GAN);
}

/// Checks that what the first mesh of each pair has saved goes on to the same bits on the second as on the first.
fn check_pairs(subject: Subject, pairs: impl IntoIterator<Item = (usize, Vec<usize>)>) {
    let Subject { name, meshes, .. } = subject;
    for (from, all) in pairs {
        let place = Place::new();
        let origin = place.path("origin");
        let trained = saved(&origin, &resolved(subject, from, "train.stop_step=2"), 2);
        let on = |to: usize| {
            let folder = place.path(&format!("on-{to}"));
            copy(&origin, &folder);
            let further = format!("{STILL} train.stop_step=3");
            saved(&folder, &resolved(subject, to, &further), 3)
        };
        let expected = on(from);
        for (tensor, values) in trained.iter().filter(|(tensor, _)| tensor.starts_with("model ")) {
            assert!(&expected[tensor] == values, "{name}: a step of rate 0 has changed {tensor}");
        }
        side_by_side(all, |to| {
            let found = on(to);
            let differ = found.iter().filter(|(tensor, values)| expected.get(*tensor) != Some(*values));
            let differ: Vec<_> = differ.map(|(tensor, _)| tensor).collect();
            let pair = [meshes[from], meshes[to]];
            assert!(differ.is_empty() && found.len() == expected.len(), "{name}, {pair:?}: {differ:?}");
        });
    }
}

#[test]
fn what_a_mesh_has_saved_others_save_again() {
    let few = |from: usize, by: usize| (from, vec![(from + by) % 12, (from + 2 * by) % 12]);
    check_pairs(GPT, [few(3, 5), few(2, 5), few(0, 5), few(8, 5)]);
    check_pairs(GAN, [few(5, 5), few(10, 5)]);
}

#[test]
#[ignore = "all pairs take minutes: cargo xtask test --full"]
fn every_mesh_saves_again_what_every_other_has_saved() {
    let all = || (0..12).map(|from| (from, (0..12).filter(|to| *to != from).collect()));
    check_pairs(GPT, all());
    check_pairs(GAN, all());
}
