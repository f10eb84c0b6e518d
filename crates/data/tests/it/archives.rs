//! Tar archives in webdataset's form, valid and damaged, read by several ranks and resumed.

use crate::files::{photo, write};
use phalanx_data::archives::expand;
use phalanx_data::{
    ArchivesConfig, ArchivesDataset, Chunks, CollatedDataset, DataError, Dataset, DistributedSampler,
    Exclusions, Filter, ImageCollation, LabelledDataset, Loader, LoaderConfig, Order, SamplerConfig, Subset,
    Tail, Transform, TransformConfig,
};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// Makes a tar file of these members.
fn tar(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, contents) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(contents.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, *contents).unwrap();
    }
    archive.into_inner().unwrap()
}

/// Writes archives of these lengths; sample `n` over all of them has the caption “sample n” and the class n % 3.
fn write_archives(folder: &Path, lengths: &[usize]) {
    let image = photo(24, 16);
    let mut sample = 0;
    for (archive, length) in lengths.iter().enumerate() {
        let mut members: Vec<(String, Vec<u8>)> = vec![("README".into(), b"no sample".to_vec())];
        for _ in 0..*length {
            // Every third sample has its caption in .json, and a long name.
            let key = format!("images/{}{sample:06}", "x".repeat(if sample % 3 == 0 { 120 } else { 0 }));
            members.push((format!("{key}.jpg"), image.clone()));
            if sample % 3 == 0 {
                let json = serde_json::json!({"caption": format!(" sample\t{sample}"), "width": 24});
                members.push((format!("{key}.json"), json.to_string().into_bytes()));
            } else {
                members.push((format!("{key}.TXT"), format!("\u{feff}sample {sample}\r\n").into_bytes()));
                members.push((format!("{key}.seg.png"), b"passed over".to_vec()));
            }
            members.push((format!("{key}.cls"), format!("{}\n", sample % 3).into_bytes()));
            sample += 1;
        }
        let members: Vec<(&str, &[u8])> =
            members.iter().map(|(name, contents)| (name.as_str(), contents.as_slice())).collect();
        write(&folder.join(format!("s-{archive:03}.tar")), tar(&members));
    }
}

fn config(archives: Vec<PathBuf>) -> ArchivesConfig {
    ArchivesConfig { name: "shards/train".into(), archives, index: None, classes: None, caption_seed: 0 }
}

fn open(folder: &Path, index: Option<&Path>) -> Result<ArchivesDataset, DataError> {
    let archives = expand(folder.to_str().unwrap())?;
    ArchivesDataset::open(&ArchivesConfig { index: index.map(Path::to_path_buf), ..config(archives) })
}

#[test]
fn samples_have_numbers_with_and_without_stored_indices() {
    let place = TempDir::new().unwrap();
    write_archives(place.path(), &[5, 1, 7]);
    let index = place.path().join("cache/index");
    for turn in 0..3 {
        let archives = open(place.path(), (turn > 0).then_some(index.as_path())).unwrap();
        assert_eq!((archives.len(), archives.chunks()), (13, Some(vec![5, 1, 7])));
        assert_eq!(archives.class_names(), ["0", "1", "2"]);
        for number in (0..13).rev() {
            let sample = archives.get(number, 0).unwrap();
            assert_eq!(sample.caption, format!("sample {number}"));
            assert_eq!(
                (sample.label, archives.label(number).unwrap()),
                (number as u32 % 3, number as u32 % 3)
            );
            assert_eq!(sample.image.dimensions(), (24, 16));
        }
        let (archive, key) = archives.source(7).unwrap();
        assert!(archive.ends_with("s-002.tar") && key == "images/000007", "{key}");
        assert!(archives.get(13, 0).is_err());
    }
    assert_eq!(std::fs::read_dir(&index).unwrap().count(), 3);
    // A changed archive is indexed anew.
    write_archives(place.path(), &[5, 1, 8]);
    assert_eq!(open(place.path(), Some(&index)).unwrap().len(), 14);
    // A truncated index is ignored.
    for file in std::fs::read_dir(&index).unwrap() {
        std::fs::OpenOptions::new().write(true).open(file.unwrap().path()).unwrap().set_len(60).unwrap();
    }
    let archives = open(place.path(), Some(&index)).unwrap();
    assert_eq!((archives.len(), archives.get(13, 0).unwrap().caption.as_str()), (14, "sample 13"));
}

#[test]
fn classes_have_names_and_provide_missing_captions() {
    let place = TempDir::new().unwrap();
    let image = photo(8, 8);
    let archive =
        tar(&[("a.jpg", &image), ("a.cls", b"1"), ("b.cls", b"0"), ("b.png", &image), ("b.txt", b"hers")]);
    write(&place.path().join("one.tar"), archive);
    write(&place.path().join("classes.txt"), "cat\r\nold_dog\r\n");
    let archives = open(place.path(), None).unwrap();
    assert_eq!(archives.class_names(), ["cat", "old_dog"]);
    assert!(archives.get(0, 0).unwrap().caption.contains("an old dog"));
    assert_eq!(archives.get(1, 0).unwrap().caption, "hers");
    write(&place.path().join("classes.txt"), "cat\n");
    let few = open(place.path(), None).unwrap_err().to_string();
    assert!(few.contains("classes.txt: class names: 1 names, but a sample has class 1"), "{few}");
    // Names are numbers, up to a limit.
    std::fs::remove_file(place.path().join("classes.txt")).unwrap();
    assert_eq!(open(place.path(), None).unwrap().class_names(), ["0", "1"]);
    for class in ["7902654", "4294967295"] {
        let archive = tar(&[("a.jpg", &image), ("a.cls", class.as_bytes())]);
        write(&place.path().join("one.tar"), archive);
        let index = place.path().join("index");
        for index in [None, Some(index.as_path()), Some(index.as_path())] {
            let many = open(place.path(), index).unwrap_err().to_string();
            assert!(
                many.contains(&format!("classes.txt: class names: a sample has class {class}")),
                "{many}"
            );
        }
    }
}

/// Returns the captions of every step of two epochs, read by `ranks` ranks from a step on.
fn read(
    archives: &Arc<ArchivesDataset>,
    ranks: usize,
    start: (u64, usize),
    workers: usize,
) -> Vec<Vec<String>> {
    let order = Order::Windows(Chunks { lengths: archives.chunks().unwrap().into(), window: 2 });
    let transform = Transform::new(TransformConfig::square(8, Filter::Bilinear)).unwrap();
    let source = Arc::new(CollatedDataset::new(archives.clone(), ImageCollation::new(transform)));
    let loaders = (0..ranks).map(|rank| {
        let sampler = DistributedSampler::new(SamplerConfig {
            len: archives.len(),
            world_size: ranks,
            rank,
            global_batch: 4,
            micro_batches: 1,
            seed: 9,
            order: order.clone(),
            tail: Tail::Drop,
        });
        Loader::new(
            source.clone(),
            sampler.unwrap(),
            LoaderConfig { workers, prefetch: 3, ..LoaderConfig::default() },
            start,
        )
        .unwrap()
    });
    let mut loaders: Vec<Loader> = loaders.collect();
    let steps = 2 * loaders[0].steps_per_epoch() - start.0 as usize * loaders[0].steps_per_epoch() - start.1;
    let step = |loaders: &mut Vec<Loader>| {
        let of_rank =
            |loader: &mut Loader| loader.next().unwrap().unwrap().batch.texts("captions").unwrap().to_vec();
        loaders.iter_mut().flat_map(of_rank).collect()
    };
    (0..steps).map(|_| step(&mut loaders)).collect()
}

#[test]
fn any_number_of_ranks_reads_the_same_samples_and_resumes() {
    let place = TempDir::new().unwrap();
    write_archives(place.path(), &[6, 3, 5, 4, 6]);
    let index = place.path().join("index");
    let archives = Arc::new(open(place.path(), Some(&index)).unwrap());
    let all = read(&archives, 1, (0, 0), 0);
    assert_eq!(all.len(), 12);
    let first: BTreeSet<_> = all[..6].iter().flatten().collect();
    assert_eq!(first.len(), 24, "an epoch has every sample once");
    assert_ne!(all[..6], all[6..]);
    for (ranks, workers) in [(2, 2), (3, 1), (4, 3)] {
        assert_eq!(read(&archives, ranks, (0, 0), workers), all);
    }
    assert_eq!(read(&archives, 2, (0, 5), 2), all[5..]);
    assert_eq!(read(&archives, 3, (1, 2), 1), all[8..]);
    let subset = Subset::take(archives, 10, 1).unwrap();
    assert_eq!(subset.chunks().unwrap().iter().sum::<usize>(), 10);
}

#[test]
fn archives_agree_on_having_classes() {
    let (place, image) = (TempDir::new().unwrap(), photo(8, 8));
    write(
        &place.path().join("0.tar"),
        tar(&[("a.jpg", &image), ("a.cls", b"\xef\xbb\xbf0\n"), ("a.txt", b"x")]),
    );
    assert_eq!(open(place.path(), None).unwrap().class_names(), ["0"]);
    write(&place.path().join("1.tar"), tar(&[("./b.jpg", &image), ("./b.txt", b"x")]));
    let error = open(place.path(), None).unwrap_err().to_string();
    assert!(
        error.contains("1.tar: its samples have no class, .cls, but those of ") && error.contains("0.tar"),
        "{error}"
    );
    std::fs::remove_file(place.path().join("0.tar")).unwrap();
    let archives = open(place.path(), None).unwrap();
    assert_eq!(archives.sample_path(0).unwrap(), place.path().join("1.tar/b"));
    std::fs::rename(place.path().join("1.tar"), place.path().join("s-2-of-3.tar")).unwrap();
    let error = open(place.path(), None).unwrap_err().to_string();
    assert!(error.contains("s-0-of-3.tar: the file and 1 other are missing"), "{error}");
}

#[test]
fn samples_are_excluded_by_their_archive_and_key() {
    let place = TempDir::new().unwrap();
    write_archives(place.path(), &[3, 2, 3]);
    let archives = open(place.path(), None).unwrap();
    let list = place.path().join("bad.txt");
    write(&list, "s-000.tar/images/000001\n000007\n./s-002.tar/images/000005\n");
    let excluded = Exclusions::read(&list).unwrap();
    // The key of sample 6 has more letters than a header; it is not compared.
    assert_eq!(archives.excluded(&excluded).unwrap(), [1, 5, 7]);
    excluded.check_used().unwrap();
}

#[test]
#[ignore = "a measurement; run with --ignored --nocapture"]
fn indexing_and_reading_many_samples() {
    let place = TempDir::new().unwrap();
    // Members of the size of photographs; only their headers are read.
    let (photo, text) = (vec![0xff; 100_000], b"this bird has a short beak and wing bars".to_vec());
    let names: Vec<[String; 2]> =
        (0..2000).map(|at| ["jpg", "txt"].map(|end| format!("{at:06}.{end}"))).collect();
    let members: Vec<(&str, &[u8])> =
        names.iter().flat_map(|[jpg, txt]| [(jpg.as_str(), &photo[..]), (txt.as_str(), &text[..])]).collect();
    let archive = tar(&members);
    for number in 0..4 {
        write(&place.path().join(format!("s-{number}.tar")), &archive);
    }
    for (what, index) in
        [("in memory", None), ("first with files", Some("i")), ("again with files", Some("i"))]
    {
        let index = index.map(|name| place.path().join(name));
        let began = std::time::Instant::now();
        let archives = open(place.path(), index.as_deref()).unwrap();
        println!(
            "{what}: {} samples of 4 archives, {:.1} ms",
            archives.len(),
            began.elapsed().as_secs_f64() * 1e3
        );
    }
}

#[test]
fn every_fault_names_its_archive_and_sample() {
    let image = photo(8, 8);
    let error_of = |archive: &[u8]| {
        let place = TempDir::new().unwrap();
        write(&place.path().join("one.tar"), archive);
        match open(place.path(), None) {
            Err(error) => error.to_string(),
            Ok(archives) => (0..archives.len()).find_map(|n| archives.get(n, 0).err()).unwrap().to_string(),
        }
    };
    let i = image.as_slice();
    for (members, expected) in [
        (vec![("a.jpg", i), ("a.txt", b"x"), ("b.txt", b"y")], "one.tar, sample b: it has no image"),
        (
            vec![("a.jpg", i), ("b.jpg", i), ("b.txt", b"y")],
            "sample a: it has no caption, .txt or .json, and no class",
        ),
        (vec![("d/a.jpg", i), ("d/a.png", i), ("d/a.txt", b"y")], "sample d/a: it has two images"),
        (vec![("a.txt", b"x"), ("a.txt", b"y"), ("a.jpg", i)], "sample a: it has two members .txt"),
        (vec![("a.jpg", i), ("a.cls", b"cat")], "sample a: .cls holds \"cat\", which is not a whole number"),
        (vec![("a.jpg", i), ("a.txt", b" \n")], "sample a: its caption is empty"),
        (vec![("a.jpg", i), ("a.txt", b"caf\xe9")], "sample a: .txt is not UTF-8"),
        (vec![("a.jpg", i), ("a.json", b"{\"text\": 1}")], "sample a: its .json has no text `caption`"),
        (vec![("a.jpg", i), ("a.json", b"{")], "sample a: .json: "),
        (vec![("k/a.jpg", &i[..200]), ("k/a.txt", b"x")], "one.tar, sample k/a: truncated"),
        (vec![("README", b"x")], "one.tar: the archive has no samples"),
        (
            vec![("a.jpg", i), ("b.jpg", i), ("b.txt", b"y"), ("a.txt", b"x")],
            "and no class, .cls; its members are not adjacent: b.jpg is between a.jpg and a.txt; sort the members",
        ),
        (
            vec![("a.jpg", i), ("a.cls", b"0"), ("b.jpg", i), ("b.cls", b"0"), ("a.txt", b"x")],
            "sample a: it has no image: no member ends in .jpg, .jpeg, .png, .webp, .bmp; its members are not adjacent",
        ),
        (
            vec![("v1.0.jpg", i), ("v1.0.txt", b"x")],
            "v1.0.jpg has the key v1 and the extension .0.jpg, since a key ends at the first dot: rename it",
        ),
        (
            vec![("a.jpg", i), ("a.cls", b"0"), ("b.jpg", i), ("b.txt", b"x")],
            "sample b: it has no class, .cls, but sample a has one",
        ),
        (
            vec![("a.jpg", i), ("a.cls", b"\xff\xfe1\0")],
            "sample a: .cls: UTF-16 text; save the file as UTF-8",
        ),
    ] {
        let error = error_of(&tar(&members));
        assert!(error.contains(expected), "{error}\nfor {expected}");
    }
    let whole = tar(&[("a.txt", b"x"), ("a.jpg", i)]);
    let cut = error_of(&whole[..1024 + 512 + 100]);
    assert!(cut.contains("one.tar: truncated: a.jpg ends at byte"), "{cut}");
    assert!(error_of(b"\x1f\x8b\x08\0\0\0\0\0").contains("the archive is compressed"), "gzip");
    assert!(error_of(&[b'x'; 2000]).contains("not a valid tar file"));
    let missing = ArchivesDataset::open(&config(vec!["no/such.tar".into()])).unwrap_err().to_string();
    assert!(missing.contains("no/such.tar"), "{missing}");
}
