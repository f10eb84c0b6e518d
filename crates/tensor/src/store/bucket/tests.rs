//! Tests of the states of a bucket.

use super::*;
use crate::backend::Destination;
use crate::host::copy_host;
use crate::{BuildOptions, GradState, Init, ParamState, StoreBuilder};

/// Parameters of 4 and 3 elements with the values 1 to 7.
fn bucket() -> ParamBucket {
    let builder = StoreBuilder::new(BuildOptions { fill: false, ..Default::default() });
    let scope = builder.root().pp("a").block();
    scope.param("w", (2, 2), Init::ZEROS).expect("a new name");
    scope.param("b", 3, Init::ZEROS).expect("a new name");
    let bucket = builder.build().expect("small").buckets()[0].clone();
    bucket.fill(numbers(1..8)).expect("absent");
    bucket
}

fn numbers(range: Range<u8>) -> FlatStorage {
    let values: Vec<f32> = range.map(f32::from).collect();
    let len = values.len();
    let values = candle_core::Tensor::from_vec(values, len, &Device::Cpu).expect("small");
    FlatStorage::new(values).expect("flat")
}

fn read(memory: &FlatStorage) -> Vec<f32> {
    memory.tensor().expect("of the host").to_vec1().expect("f32")
}

#[test]
fn a_shard_is_a_range_of_entries_and_groups() {
    let bucket = bucket();
    assert_eq!(bucket.owned_entries()[0].shape.dims(), [2, 2]);
    for world in 1..=5 {
        let mut seen = vec![0; 2];
        for rank in 0..world {
            bucket.set_owned(rank * 7 / world..(rank + 1) * 7 / world).expect("all are in memory");
            let owned: usize = bucket.owned_entries().iter().map(|entry| entry.range.len()).sum();
            assert_eq!(owned, bucket.owned().len());
            for entry in bucket.owned_entries() {
                let of = usize::from(entry.name == "a.b");
                assert_eq!((entry.part.start, entry.part.len()), (seen[of], entry.range.len()));
                seen[of] += entry.part.len();
                let whole = &bucket.entries()[of];
                assert_eq!(bucket.owned().start + entry.range.start, whole.range.start + entry.part.start);
            }
        }
        assert_eq!(seen, [4, 3], "{world} ranks own everything once");
    }
    bucket.set_owned(3..6).expect("all are in memory");
    assert_eq!(bucket.owned_groups(), [OwnedGroup { range: 0..3, decay: true, rate: 1.0, counts: true }]);
    assert!(bucket.set_owned(3..8).is_err());
}

#[test]
fn values_pass_through_their_states() {
    let bucket = bucket();
    bucket.set_owned(2..5).expect("all are in memory");
    let owned = |bucket: &ParamBucket| read(&bucket.owned_values().expect("sound").expect("held"));
    assert_eq!((bucket.state(), owned(&bucket)), (ParamState::Full, vec![3.0, 4.0, 5.0]));
    let error = bucket.reshard().expect_err("nothing was gathered").to_string();
    assert_eq!(error, "bucket 0 (from `a.w`) is Full; to be resharded it must be Gathered");
    bucket.shard().expect("all are in memory");
    assert_eq!((bucket.state(), bucket.held_bytes()), (ParamState::Sharded, [12, 0]));
    assert!(bucket.values().is_none() && bucket.set_owned(0..7).is_err());
    let (full, shard) = bucket.begin_gather().expect("sharded");
    assert_eq!((bucket.state(), bucket.held_bytes()), (ParamState::Gathering, [40, 0]));
    assert!(bucket.values().is_none() && bucket.begin_gather().is_err());
    full.copy_from(&numbers(11..18)).expect("seven");
    assert_eq!(read(&shard), [3.0, 4.0, 5.0]);
    bucket.end_gather().expect("under way");
    assert_eq!(read(&bucket.values().expect("gathered"))[0], 11.0);
    assert_eq!(owned(&bucket), [3.0, 4.0, 5.0], "what is updated is the shard");
    bucket.shard().expect("gathered");
    assert_eq!((bucket.state(), owned(&bucket)), (ParamState::Sharded, vec![13.0, 14.0, 15.0]));
}

#[test]
fn gradients_pass_through_their_states() {
    let bucket = bucket();
    let add = |entry: usize, value: f32| {
        let len = bucket.entries()[entry].range.len();
        let grad = candle_core::Tensor::full(value, len, &Device::Cpu).expect("small");
        let Destination { array, add } = bucket.grad_destination(entry)?;
        let to = array.host("test").expect("of the host");
        let sum = if add { (to + grad)? } else { grad };
        Ok::<_, TensorError>(copy_host(to, &sum)?)
    };
    let owned = || bucket.owned_grads().expect("sound").map(|grads| read(&grads));
    assert_eq!((bucket.grad_state(), owned()), (GradState::Empty, None));
    add(0, 2.0).expect("in memory");
    add(0, 1.0).expect("in memory");
    // Entries without a gradient are zero.
    assert_eq!(owned(), Some(vec![3.0, 3.0, 3.0, 3.0, 0.0, 0.0, 0.0]));
    bucket.set_owned(2..5).expect("all are in memory");
    add(1, 4.0).expect("in memory");
    assert!(bucket.owned_grads().is_err(), "they are this rank's own, not the sum");
    let (full, shard) = bucket.begin_reduce(true).expect("trainable");
    assert_eq!(read(&full), [0.0, 0.0, 0.0, 0.0, 4.0, 4.0, 4.0]);
    assert_eq!((bucket.grad_state(), bucket.held_bytes()[1]), (GradState::Reducing, 40));
    assert!(add(0, 1.0).is_err() && bucket.grads().is_err());
    shard.expect("scattered").copy_from(&numbers(7..10)).expect("three");
    bucket.end_reduce(false).expect("under way");
    assert_eq!((bucket.grad_state(), bucket.held_bytes()[1]), (GradState::Reduced, 12));
    assert_eq!(owned(), Some(vec![7.0, 8.0, 9.0]));
    assert!(add(0, 1.0).is_err(), "the sum is not added to");
    bucket.zero_grads();
    assert_eq!(
        (bucket.grad_state(), bucket.held_bytes()[1]),
        (GradState::Empty, 12),
        "room for the next is kept"
    );
    let (_, again) = bucket.begin_reduce(true).expect("zeros");
    assert!(again.is_some() && bucket.end_reduce(true).is_ok());
    bucket.discard_grads();
    assert_eq!(bucket.held_bytes()[1], 0);
}

#[test]
fn a_twin_has_the_layout_and_values_of_its_own() {
    let bucket = bucket();
    let twin = bucket.empty_on_host();
    assert!(!twin.is(&bucket) && twin.state() == ParamState::Absent);
    assert_eq!((twin.index(), twin.len(), twin.groups()), (bucket.index(), 7, bucket.groups()));
    twin.set_owned(2..5).expect("absent");
    twin.fill_shard(numbers(20..23)).expect("three");
    twin.set_owned_grads(numbers(1..4)).expect("three");
    assert_eq!(read(&twin.owned_grads().expect("sound").expect("taken over")), [1.0, 2.0, 3.0]);
    assert!(twin.set_owned_grads(numbers(1..5)).is_err(), "four");
    assert_eq!(read(&twin.owned_values().expect("sound").expect("held")), [20.0, 21.0, 22.0]);
    assert_eq!(bucket.owned(), 0..7);
}

#[test]
fn memory_of_gradients_is_made_beforehand_and_holds_none() {
    let bucket = bucket();
    bucket.set_owned(2..5).expect("all are in memory");
    for (scattered, bytes) in [(true, 12), (false, 12 + 28)] {
        bucket.reserve_grads(scattered).expect("small");
        assert_eq!((bucket.grad_state(), bucket.held_bytes()[1]), (GradState::Empty, bytes));
        assert!(bucket.grads().expect("sound").is_none());
    }
    bucket.zero_grads();
    let (full, shard) = bucket.begin_reduce(true).expect("trainable");
    assert_eq!((read(&full), shard.map(|shard| shard.len())), (vec![0.0; 7], Some(3)));
    bucket.free_unreduced_grads().expect("on their way");
    bucket.end_reduce(false).expect("under way");
    assert_eq!((bucket.grad_state(), bucket.held_bytes()[1]), (GradState::Reduced, 12));
}
