//! Every public reader reads its kept inputs, its seeds and some damaged inputs within its limits.

use phalanx_fuzz::targets::{PUBLIC, Target};
use phalanx_fuzz_harness::check;

fn reads(name: &str) {
    let target: &Target = PUBLIC.iter().find(|target| target.name == name).expect("a reader");
    check(target.reader(), (target.seeds)(), target.cases, target.change);
}

macro_rules! readers {
    ($($name:ident)+) => {
        $( #[test] fn $name() { reads(stringify!($name)); } )+

        #[test]
        fn every_reader_is_tested() {
            let tested = [$(stringify!($name)),+];
            let all: Vec<_> = PUBLIC.iter().map(|target| target.name).collect();
            assert_eq!(all, tested);
        }
    };
}

readers! {
    safetensors tensor_ranges pickle
    shards shard_index patterns coco cub cifar_binary parquet merges text_lines pictures
    checkpoint trace config sweep run_folder http
    diffusers flight hosts
    codecs requests lists corpora descriptions
}
