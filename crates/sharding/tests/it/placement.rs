//! Placements on real ranks: conversions give the right numbers and gradients, and a partial sum is never taken for a whole.

use std::sync::Arc;

use crate::common::on_ranks;
use candle_core::{Device, Tensor};
use phalanx_collectives::ReduceOp;
use phalanx_sharding::{DistributedTensor, MeshLayout, Placement, ProcessMesh, local_ranges};
use phalanx_tensor::{Context, Key, Session, Tape, Value, ops};

const SUM: Placement = Placement::PARTIAL_SUM;
const WHOLE: Placement = Placement::Replicate;
const ROWS: Placement = Placement::Shard { dim: 0 };
const COLUMNS: Placement = Placement::Shard { dim: 1 };

const SHAPE: [usize; 2] = [5, 3];

/// Numbers that say where they lie.
fn whole() -> Tensor {
    Tensor::arange(0.0, 15.0, &Device::Cpu).and_then(|flat| flat.reshape(&SHAPE)).expect("15 numbers")
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.flatten_all().and_then(|flat| flat.to_vec1()).expect("f64")
}

fn tape() -> Tape {
    Tape::recording(Session::training(Arc::new(Context::new(1)), Key::new(0)))
}

/// Returns this rank's part of [`whole`] in a placement. Of a partial sum this is a share that depends on the rank.
fn part(mesh: &ProcessMesh, axis: &str, placement: Placement) -> Tensor {
    let ranks = mesh.layout().size(axis).expect("an axis") as f64;
    let at = mesh.axis(axis).expect("an axis").rank();
    if let Placement::Partial { op } = placement {
        // Weights 1, 2, … of the ranks that add up to one, or to as many as there are.
        let total = ranks * (ranks + 1.0) / 2.0;
        let share = (at + 1) as f64 / total * if op == ReduceOp::Mean { ranks } else { 1.0 };
        return (whole() * share).expect("a share");
    }
    let position = mesh.layout().position(axis).expect("an axis");
    let mut placements = vec![WHOLE; mesh.layout().axes().count()];
    placements[position] = placement;
    let coordinates = mesh.layout().coordinates(mesh.rank()).expect("a rank");
    let ranges = local_ranges(mesh.layout(), &coordinates, &SHAPE, &placements).expect("fits");
    let rows = whole().narrow(0, ranges[0].start, ranges[0].len()).expect("rows");
    rows.narrow(1, ranges[1].start, ranges[1].len()).and_then(|part| part.contiguous()).expect("columns")
}

fn close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(off < 1e-12, "{found:?} {expected:?}");
}

#[test]
fn every_conversion_gives_the_same_tensor_and_its_gradient() {
    let mean = Placement::Partial { op: ReduceOp::Mean };
    for world in 1..=4 {
        on_ranks(world, move |comm| {
            let mesh = ProcessMesh::new(comm, &[("tensor", world)]).expect("a mesh");
            for from in [WHOLE, ROWS, COLUMNS, SUM, mean] {
                for to in [WHOLE, ROWS, COLUMNS] {
                    let tape = tape();
                    let leaf = tape.leaf(part(&mesh, "tensor", from));
                    let placed = DistributedTensor::new(&mesh, leaf.clone(), &SHAPE, &[("tensor", from)]);
                    let moved = placed.expect("fits").to(&tape, "tensor", to).expect("converts");
                    assert_eq!(moved.placement("tensor").expect("an axis"), to);
                    let local = moved.local(&[("tensor", to)]).expect("as it was asked for");
                    let expected = numbers(&part(&mesh, "tensor", to));
                    close(&numbers(&local.tensor().expect("a tensor")), &expected);
                    // The loss is ½ Σ x², of the whole tensor and counted once, so that its gradient is the tensor.
                    tape.backward_from([(local, part(&mesh, "tensor", to))]).expect("backward");
                    let gradient = tape.leaf_grad(&leaf).expect("takes part").tensor().expect("a tensor");
                    let expected = match from {
                        // That of every addend is the sum's.
                        Placement::Partial { op: ReduceOp::Mean } => {
                            (whole() / world as f64).expect("a quotient")
                        }
                        Placement::Partial { .. } => whole(),
                        from => part(&mesh, "tensor", from),
                    };
                    close(&numbers(&gradient), &numbers(&expected));
                }
            }
        });
    }
}

#[test]
fn along_axes_of_data_gradients_are_summed_over_ranks() {
    on_ranks(3, |comm| {
        let mesh = ProcessMesh::new(comm, &[("shard", 3)]).expect("a mesh");
        // Parameters that are gathered for use: each rank's loss is its number times the sum of the elements.
        let tape = tape();
        let leaf = tape.leaf(part(&mesh, "shard", ROWS));
        let placed = DistributedTensor::new(&mesh, leaf.clone(), &SHAPE, &[("shard", ROWS)]).expect("fits");
        let gathered = placed.to(&tape, "shard", WHOLE).expect("gathers");
        let loss = ops::sum(&tape, gathered.replicated().expect("is whole")).expect("a sum");
        let loss = ops::scale(&tape, &loss, (mesh.rank() + 1) as f64).expect("a loss");
        tape.backward(&loss).expect("backward");
        let gradient = tape.leaf_grad(&leaf).expect("takes part").tensor().expect("a tensor");
        close(&numbers(&gradient), &vec![6.0; leaf.shape().elem_count()]);
    });
}

#[test]
fn a_partial_sum_is_not_read_as_a_whole() {
    on_ranks(2, |comm| {
        let mesh = ProcessMesh::new(comm, &[("replicate", 1), ("tensor", 2)]).expect("a mesh");
        let value = Value::constant(whole());
        let partial = DistributedTensor::new(&mesh, value.clone(), &SHAPE, &[("tensor", SUM)]).expect("fits");
        let error = partial.replicated().expect_err("it is not").to_string();
        assert_eq!(
            error,
            "placement of a tensor of shape [5, 3]: it is a partial sum along `tensor` of 2 ranks; make it replicated"
        );
        let error = partial.local(&[("tensor", ROWS)]).expect_err("it is not").to_string();
        assert!(error.ends_with("it is a partial sum, not a shard of dimension 0"), "{error}");
        assert!(partial.local(&[("tensor", SUM)]).is_ok());
        let error = partial.branch(&tape(), "tensor").expect_err("it is not whole").to_string();
        assert!(error.ends_with("only what is replicated branches"), "{error}");
        // Along an axis of one rank nothing is left to add.
        let alone =
            DistributedTensor::new(&mesh, value.clone(), &SHAPE, &[("replicate", SUM)]).expect("fits");
        assert!(alone.replicated().is_ok());

        let whole = DistributedTensor::new(&mesh, value.clone(), &SHAPE, &[]).expect("fits");
        let error = whole.to(&tape(), "tensor", SUM).expect_err("no way").to_string();
        assert!(error.ends_with("it is replicated, which cannot become a partial sum"), "{error}");
        let error = whole.to(&tape(), "tensor", Placement::Shard { dim: 2 }).expect_err("no dim").to_string();
        assert!(error.ends_with("it has no dimension 2 to be sharded along `tensor`"), "{error}");
        let largest = Placement::Partial { op: ReduceOp::Max };
        let largest =
            DistributedTensor::new(&mesh, value.clone(), &SHAPE, &[("tensor", largest)]).expect("fits");
        let error = largest.to(&tape(), "tensor", WHOLE).expect_err("no gradient").to_string();
        assert!(error.contains("a partial max; only sums and means"), "{error}");
        let error =
            DistributedTensor::new(&mesh, value, &SHAPE, &[("tensor", ROWS)]).expect_err("too many rows");
        let rows = if mesh.rank() == 0 { 2 } else { 3 };
        assert!(
            error.to_string().ends_with(&format!("this rank's part is [{rows}, 3], not [5, 3]")),
            "{error}"
        );
    });
}

#[test]
fn axes_that_share_a_dimension_divide_it_from_the_outside() {
    let layout = MeshLayout::new(&[("shard", 2), ("tensor", 2)], 4).expect("four ranks");
    let rows = |rank: usize| {
        let at = layout.coordinates(rank).expect("a rank");
        local_ranges(&layout, &at, &SHAPE, &[ROWS, ROWS]).expect("fits")[0].clone()
    };
    assert_eq!([rows(0), rows(1), rows(2), rows(3)], [0..1, 1..2, 2..3, 3..5]);
    on_ranks(4, |comm| {
        let mesh = ProcessMesh::new(comm, &[("shard", 2), ("tensor", 2)]).expect("a mesh");
        let tape = tape();
        let whole_value = Value::constant(whole());
        let placed = DistributedTensor::new(&mesh, whole_value, &SHAPE, &[]).expect("fits");
        let outer = placed.to(&tape, "shard", ROWS).expect("splits");
        let both = outer.to(&tape, "tensor", ROWS).expect("splits again");
        assert_eq!(
            both.local(&[("shard", ROWS), ("tensor", ROWS)]).expect("rows").dims()[0],
            both.ranges().expect("fits")[0].len()
        );
        let error = both.to(&tape, "shard", WHOLE).expect_err("tensor lies inside").to_string();
        assert!(error.contains("lies inside `shard`: bring it together there first"), "{error}");
        let error = placed.to(&tape, "tensor", ROWS).and_then(|inner| inner.to(&tape, "shard", ROWS));
        assert!(error.is_err(), "the outer axis comes first");
        let inner = both.to(&tape, "tensor", WHOLE).expect("gathers");
        let again = inner.to(&tape, "shard", WHOLE).expect("gathers again");
        let found = again.replicated().expect("whole").tensor().expect("a tensor");
        assert_eq!(numbers(&found), numbers(&whole()));
    });
}
