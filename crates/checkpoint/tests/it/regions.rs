//! Pieces of tensors by ranges of every dimension: any rank reads its region from pieces that others wrote.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};
use phalanx_checkpoint::{Checkpoint, MODEL, NewFile, NewPiece, Region, StagingFolder};
use proptest::prelude::*;
use serde_json::Map;

/// A tensor whose elements are their numbers.
fn numbered(shape: &[usize], dtype: DType) -> Tensor {
    let count: usize = shape.iter().product();
    let numbers: Vec<f64> = (0..count).map(|number| number as f64).collect();
    let flat = Tensor::from_vec(numbers, shape, &Device::Cpu).and_then(|tensor| tensor.to_dtype(dtype));
    flat.expect("as many numbers as the shape has")
}

/// A region of a tensor, cut out of it by candle.
fn cut(tensor: &Tensor, region: &Region) -> Tensor {
    let cut = match region {
        Region::Flat { start, end } => {
            tensor.flatten_all().and_then(|flat| flat.narrow(0, *start, end - start))
        }
        Region::Dims { ranges } => ranges
            .iter()
            .enumerate()
            .try_fold(tensor.clone(), |part, (dim, [start, end])| part.narrow(dim, *start, end - start)),
    };
    cut.and_then(|cut| cut.force_contiguous()).expect("inside")
}

fn flat(tensor: &Tensor) -> Vec<f64> {
    let flat = tensor.flatten_all().and_then(|flat| flat.to_dtype(DType::F64));
    flat.and_then(|flat| flat.to_vec1()).expect("numbers")
}

/// Writes pieces of a tensor `w`, each by a rank of its own, and opens what they make.
fn saved(folder: &std::path::Path, tensor: &Tensor, regions: &[Region]) -> Checkpoint {
    let staging = StagingFolder::create(folder, 1, 1).expect("a folder");
    for (rank, region) in regions.iter().enumerate() {
        let piece = NewPiece {
            kind: MODEL.to_owned(),
            name: "w".to_owned(),
            shape: tensor.dims().to_vec(),
            region: region.clone(),
            key: "model.w".to_owned(),
            values: cut(tensor, region),
        };
        let file = NewFile { name: format!("rank-{rank}.safetensors"), pieces: vec![piece] };
        staging.write(rank, vec![file]).expect("writes");
    }
    let written = staging.commit(regions.len(), Map::new(), 1).expect("completes");
    let read = Checkpoint::open(written.folder()).expect("complete");
    assert_eq!(read, written, "the index says what was written");
    read
}

fn check(checkpoint: &Checkpoint, tensor: &Tensor, region: &Region) {
    let target = Tensor::zeros(region.len(), DType::F64, &Device::Cpu).expect("zeros");
    let reader = checkpoint.reader();
    assert!(reader.read_into(MODEL, "w", region, &target).expect("reads"));
    assert_eq!(flat(&target), flat(&cut(tensor, region)), "{region}");
}

/// Cuts `0..len` at drawn places.
fn ranges(len: usize, cuts: &[usize]) -> Vec<Range<usize>> {
    let mut bounds: Vec<usize> = cuts.iter().map(|cut| cut % (len + 1)).chain([0, len]).collect();
    bounds.sort_unstable();
    bounds.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

/// All blocks of a grid whose lines are drawn for each dimension.
fn grid(shape: &[usize], cuts: &[Vec<usize>]) -> Vec<Region> {
    let mut blocks: Vec<Vec<Range<usize>>> = vec![Vec::new()];
    for (len, cuts) in shape.iter().zip(cuts) {
        let along = ranges(*len, cuts);
        let longer = |block: &Vec<Range<usize>>| {
            along
                .iter()
                .map(|range| [block.as_slice(), std::slice::from_ref(range)].concat())
                .collect::<Vec<_>>()
        };
        blocks = blocks.iter().flat_map(longer).collect();
    }
    // Pieces of nothing cannot be written as tensors.
    blocks.iter().map(|block| Region::of_dims(block)).filter(|region| !region.is_empty()).collect()
}

fn flat_parts(shape: &[usize], cuts: &[usize]) -> Vec<Region> {
    let parts = ranges(shape.iter().product(), cuts).into_iter().map(Region::from);
    parts.filter(|region| !region.is_empty()).collect()
}

/// A shape, where its dimensions are cut for writing and for reading, where it is cut in a row, and which of both is done.
type RegionCase = (Vec<usize>, Vec<Vec<usize>>, Vec<Vec<usize>>, Vec<usize>, bool, bool);

/// A shape and, for each dimension, where it is cut.
fn drawn() -> impl Strategy<Value = RegionCase> {
    let cuts = || prop::collection::vec(prop::collection::vec(0_usize..64, 0..3), 4);
    (
        prop::collection::vec(1_usize..7, 1..=4),
        cuts(),
        cuts(),
        prop::collection::vec(0_usize..4096, 0..5),
        any::<bool>(),
        any::<bool>(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..Default::default() })]

    #[test]
    fn what_is_read_does_not_depend_on_who_wrote_it(
        (shape, written, read, parts, writes_flat, low) in drawn()
    ) {
        let folder = tempfile::tempdir().expect("a folder");
        // 16 bits hold these numbers exactly, and are read into 64.
        let tensor = numbered(&shape, if low && shape.iter().product::<usize>() < 256 { DType::BF16 } else { DType::F32 });
        let pieces = if writes_flat { flat_parts(&shape, &parts) } else { grid(&shape, &written) };
        let checkpoint = saved(folder.path(), &tensor, &pieces);
        let whole = checkpoint.reader().read(MODEL, "w").expect("reads");
        prop_assert_eq!((whole.dims(), whole.dtype()), (tensor.dims(), tensor.dtype()));
        prop_assert_eq!(flat(&whole), flat(&tensor));
        for region in grid(&shape, &read).iter().chain(&flat_parts(&shape, &parts)) {
            check(&checkpoint, &tensor, region);
        }
        // Without one of the pieces, only its elements are missing.
        if let [first, rest @ ..] = pieces.as_slice() {
            let folder = tempfile::tempdir().expect("a folder");
            if !rest.is_empty() {
                let checkpoint = saved(folder.path(), &tensor, rest);
                rest.iter().for_each(|region| check(&checkpoint, &tensor, region));
                let target = Tensor::zeros(first.len(), DType::F32, &Device::Cpu).expect("zeros");
                let error = checkpoint.reader().read_into(MODEL, "w", first, &target).expect_err("is missing");
                prop_assert!(error.to_string().contains("lists no file with elements"), "{}", error);
            }
        }
    }
}

#[test]
fn large_pieces_are_read_a_window_at_a_time_and_only_where_they_are_wanted() {
    let folder = tempfile::tempdir().expect("a folder");
    // Four mebibytes, columns of four ranks: runs of 2 KiB, and windows that end in the middle of one.
    let tensor = numbered(&[512, 2048], DType::F32);
    let columns: Vec<Region> =
        (0..4).map(|rank| Region::of_dims(&[0..512, rank * 512..(rank + 1) * 512])).collect();
    let checkpoint = saved(folder.path(), &tensor, &columns);
    assert!(checkpoint.index().files.iter().all(|file| file.checksum.blake3.len() == 64));
    for region in [
        Region::whole(&[512, 2048]),
        Region::from(12_345..1_000_001),
        Region::of_dims(&[3..500, 100..1900]),
        Region::of_dims(&[0..512, 700..701]),
    ] {
        check(&checkpoint, &tensor, &region);
    }
    // Rows of a rank out of columns of others: of every file a quarter.
    let reader = checkpoint.reader();
    let rows = Region::of_dims(&[128..256, 0..2048]);
    let target = Tensor::zeros(rows.len(), DType::F32, &Device::Cpu).expect("zeros");
    assert!(reader.read_into(MODEL, "w", &rows, &target).expect("reads"));
    let (read, wanted) = (reader.bytes_read(), rows.len() as u64 * 4);
    assert!((wanted..wanted + 4096).contains(&read), "{read} of {wanted}");
    // A target that is too short is refused before anything is read.
    let error = reader.read_into(MODEL, "w", &Region::from(0..7), &target).expect_err("too long").to_string();
    assert!(error.contains("elements 0..7 of model `w` do not go into 262144 elements"), "{error}");
    let beyond = Region::of_dims(&[0..512, 2047..2049]);
    let target = Tensor::zeros(beyond.len(), DType::F32, &Device::Cpu).expect("zeros");
    let error = reader.read_into(MODEL, "w", &beyond, &target).expect_err("not there").to_string();
    assert!(error.contains("elements [0..512, 2047..2049] of model `w`"), "{error}");
}

#[test]
fn values_that_are_not_their_region_are_not_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let staging = StagingFolder::create(folder.path(), 1, 1).expect("a folder");
    let piece = NewPiece {
        kind: MODEL.to_owned(),
        name: "w".to_owned(),
        shape: vec![4, 4],
        region: Region::of_dims(&[0..2, 1..3]),
        key: "model.w".to_owned(),
        values: numbered(&[5], DType::F32),
    };
    let file = NewFile { name: "rank-0.safetensors".to_owned(), pieces: vec![piece] };
    let error = staging.write(0, vec![file]).expect_err("five are not four").to_string();
    assert!(
        error.contains("5 elements cannot be elements [0..2, 1..3] of model `w` of shape [4, 4]"),
        "{error}"
    );
}
