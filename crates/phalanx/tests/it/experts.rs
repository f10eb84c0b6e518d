//! Trainings of language models with experts.

use crate::harness::Place;
use crate::harness::results::column;

const EXPERTS: &str = "train tiny-llama --ranks 1 --set model.layers=2 --set model.width=16 --set model.heads=4 --set model.key_heads=2 \
                       --set model.context=12 --set model.experts=8 --set model.texts=200 --set train.global_batch=12 \
                       --set train.threads=1 --set train.steps=120 --set optim.lr=0.03 --set schedule.warmup_steps=0 \
                       --set eval.limit=5 --set log.every=20";

#[test]
fn experts_are_used_more_evenly_with_the_loss_that_balances_them() {
    let place = Place::new();
    let of = |weight: f64| {
        let run = format!("weight-{weight}");
        place.succeed(&format!("{EXPERTS} --set model.balance_weight={weight} --out {run}"));
        *column(&place.path(&run), "balance").last().expect("measured")
    };
    let (without, with) = (of(0.0), of(0.05));
    // 1 is even; 4 is the most, where all tokens choose the same two of eight.
    assert!(with < 1.15 && (1.2..4.0).contains(&without), "{with}, {without} without");
}
