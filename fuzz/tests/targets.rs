//! A few hundred cases for every reader, and all inputs that failed once.

use std::sync::Mutex;

use phalanx_fuzz::corpus::Corpus;
use phalanx_fuzz::run::run;
use phalanx_fuzz::targets::{TARGETS, Target};

/// Memory is counted for the whole process, so readers read one after the other.
static ONE: Mutex<()> = Mutex::new(());

fn check(name: &str) {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let target: &Target = TARGETS.iter().find(|target| target.name == name).expect("a reader");
    let mut corpus = Corpus::new(target, None).expect("files of ours");
    let known = corpus.len() as u64;
    let enough = |cases| cases >= known + target.cases;
    let outcome = run(target, &mut corpus, 1, enough, 3).expect("files of ours");
    let problems: Vec<String> = outcome
        .failures
        .iter()
        .map(|failure| format!("case {}: {}", failure.case, failure.problem))
        .collect();
    assert!(problems.is_empty(), "{name}: {problems:#?}; `cargo xtask fuzz {name}` leaves the inputs");
    assert!(known >= 1 && outcome.cases >= 100);
}

/// How a reader does not read, and words that are said of it.
type Bad = (fn(&[u8]), &'static str);

#[test]
fn what_goes_wrong_in_a_reader_is_told() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let bad: [Bad; 4] = [
        (|_| panic!("at once"), "panicked: at once"),
        (|_| drop(std::thread::spawn(|| panic!("elsewhere")).join()), "elsewhere"),
        (|_| std::thread::scope(|scope| drop(scope.spawn(|| panic!("in a part")))), "in a part"),
        (
            |input| drop(std::hint::black_box(vec![1_u8; (64 << 20) + 5000 * input.len()])),
            "bytes of memory for",
        ),
    ];
    for (read, words) in bad {
        let target = Target {
            name: "bad",
            about: "what no reader does",
            seeds: || vec![b"input".to_vec()],
            words: &[],
            change: |_, _| false,
            read,
            cases: 1,
            memory: 48 << 20,
        };
        let mut corpus = Corpus::new(&target, None).expect("no files");
        let outcome = run(&target, &mut corpus, 1, |cases| cases >= 3, 1).expect("files of ours");
        let [failure] = outcome.failures.as_slice() else { panic!("{words}: {outcome:?}") };
        assert!(failure.problem.contains(words), "{failure:?}");
        assert_eq!((failure.case, failure.input.as_slice()), (0, b"input".as_slice()));
    }
}

macro_rules! readers {
    ($($name:ident)+) => {
        $( #[test] fn $name() { check(stringify!($name)); } )+

        #[test]
        fn every_reader_is_tried() {
            let tried = [$(stringify!($name)),+];
            let all: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(all, tried);
        }
    };
}

readers! {
    frames registrations handshakes records mail tags launchers pmi costs
    safetensors tensor_ranges pickle
    shards shard_index patterns coco cub cifar_binary parquet merges text_lines pictures
    checkpoint trace config sweep run_folder http
    diffusers flight hosts
    codecs pushes strategy_messages control gathered stamps
    requests jobs resumed lists embeddings
}
