//! Trainings on every kind of data that a configuration can name, in its published form.

use std::fs;
use std::path::Path;

use image::{ImageFormat, Rgb, RgbImage};
use serde_json::{Value, json};

use crate::harness::results::{assert_close, json as read_json, losses};
use crate::harness::{Place, both, side_by_side};

fn write(path: &Path, contents: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("is made");
    fs::write(path, contents).expect("is written");
}

/// A JPEG of 40x30 pixels that tells its number.
fn photo(number: usize) -> Vec<u8> {
    let image = RgbImage::from_fn(40, 30, |x, y| Rgb([(number * 20) as u8, x as u8 * 6, y as u8 * 8]));
    let mut bytes = std::io::Cursor::new(Vec::new());
    image.write_to(&mut bytes, ImageFormat::Jpeg).expect("encodes");
    bytes.into_inner()
}

fn cub(root: &Path) {
    let mut tables = [const { String::new() }; 4];
    for at in 0..12 {
        let (id, class) = (at + 1, at % 2);
        let path = format!("00{}.Bird_{class}/Bird_{at:04}", class + 1);
        write(&root.join(format!("images/{path}.jpg")), photo(at));
        write(&root.join(format!("text_c10/{path}.txt")), format!("bird {at} sits\nbird {at} flies\n"));
        for (table, text) in tables.iter_mut().zip([
            format!("{id} {path}.jpg\n"),
            format!("{id} {}\n", class + 1),
            format!("{id} {}\n", u8::from(at < 8)),
            format!("{id} 10.0 5.0 20.0 20.0\n"),
        ]) {
            table.push_str(&text);
        }
    }
    let names = ["images.txt", "image_class_labels.txt", "train_test_split.txt", "bounding_boxes.txt"];
    for (name, table) in names.iter().zip(tables) {
        write(&root.join(name), table);
    }
    write(&root.join("classes.txt"), "1 001.Bird_0\n2 002.Bird_1\n");
}

fn coco(root: &Path) {
    for (part, numbers) in [("train2017", 0..8), ("val2017", 8..12)] {
        let (mut images, mut annotations) = (Vec::new(), Vec::new());
        for number in numbers {
            write(&root.join(format!("{part}/{number:012}.jpg")), photo(number));
            images.push(json!({"id": number, "file_name": format!("{number:012}.jpg")}));
            annotations
                .push(json!({"id": number, "image_id": number, "caption": format!("Scene {number}.")}));
        }
        let all: Value = json!({"images": images, "annotations": annotations});
        write(&root.join(format!("annotations/captions_{part}.json")), all.to_string());
    }
}

fn imagenet(root: &Path) {
    for number in 0..12 {
        let part = if number < 8 { "train" } else { "val" };
        write(&root.join(format!("{part}/n0000000{}/{number}.JPEG", number % 2)), photo(number));
    }
    write(&root.join("LOC_synset_mapping.txt"), "n00000000 tench, Tinca\nn00000001 hen\n");
}

/// Four shards, of which the last is for testing.
fn shards(root: &Path) {
    for shard in 0..4 {
        let mut archive = tar::Builder::new(Vec::new());
        for number in 4 * shard..4 * shard + 4 {
            let text = format!("thing {number}");
            for (ending, contents) in
                [("jpg", photo(number)), ("txt", text.into_bytes()), ("cls", b"1".to_vec())]
            {
                let mut header = tar::Header::new_gnu();
                header.set_size(contents.len() as u64);
                archive
                    .append_data(&mut header, format!("{number:05}.{ending}"), &contents[..])
                    .expect("fits");
            }
        }
        write(&root.join(format!("s-{shard:03}.tar")), archive.into_inner().expect("is a tar file"));
    }
}

/// A folder with all of them.
fn place() -> Place {
    let place = Place::new();
    cub(&place.path("cub/CUB_200_2011"));
    coco(&place.path("coco"));
    imagenet(&place.path("imagenet"));
    shards(&place.path("shards"));
    place
}

/// A small training with batches of four.
const COMMON: &str =
    "train tiny --set train.global_batch=4 --set log.every=1 --set data.resize=20 --set data.flip=true";

#[test]
fn every_kind_is_trained_on_and_ranks_agree() {
    let place = place();
    side_by_side(
        [
            ("cub", "--data cub=cub --set data.per_class=3", "bird "),
            ("coco", "--data coco=coco", "Scene "),
            (
                "imagenet",
                "--data imagenet=imagenet --set data.resize_mode=shorter-side --set data.crop_area=[0.2,1.0]",
                "of a ",
            ),
            (
                "shards",
                "--data shards=shards/s-{000..003}.tar --set data.index=index --set data.window=2",
                "thing 1",
            ),
            ("scenes", "--set data.kind=scenes", " on a "),
        ],
        |(kind, data, prompt)| {
            place.succeed(&format!("{COMMON} {data} --steps 4 --ranks 1 --out {kind}-1"));
            place.succeed(&format!("{COMMON} {data} --steps 4 --ranks 2 --out {kind}-2"));
            let [one, two] = ["1", "2"].map(|ranks| losses(&place.path(&format!("{kind}-{ranks}"))));
            assert_eq!(one.len(), 4);
            assert_close(kind, &two, &one, 2e-4);
            let prompts =
                fs::read_to_string(place.path(&format!("{kind}-2/samples/prompts.txt"))).expect("reads");
            assert!(prompts.contains(prompt), "{kind}: {prompts}");
        },
    );
}

#[test]
fn shards_go_on_at_the_sample_on_other_ranks() {
    let place = place();
    // Three steps an epoch: both runs end in the second.
    let data = "--data shards=shards --set data.window=1";
    place.succeed(&format!("{COMMON} {data} --steps 5 --ranks 1 --out whole"));
    place.succeed(&format!("{COMMON} {data} --steps 2 --ranks 1 --out parts"));
    let shown = place.succeed(&format!("{COMMON} {data} --steps 5 --ranks 2 --out parts --resume"));
    assert!(shown.contains("resumed after step 2"), "{shown}");
    let (whole, parts) = (losses(&place.path("whole")), losses(&place.path("parts")));
    assert_eq!(whole.len(), 5);
    assert_close("resumed", &parts, &whole, 2e-4);
}

#[test]
fn a_damaged_image_is_named_and_can_be_excluded() {
    let place = place();
    let line = format!("{COMMON} --data cub=cub --ranks 2 --out run");
    place.succeed(&format!("{line} --steps 2"));
    let bad = "cub/CUB_200_2011/images/002.Bird_1/Bird_0003.jpg";
    place.write(bad, &photo(3)[..300]);
    let said = place.fail(&format!("{line} --steps 8 --resume"));
    assert!(said.contains(&format!("{bad}: truncated")) && said.contains("exclude it"), "{said}");
    place.write("bad.txt", "002.Bird_1/Bird_0003.jpg\n");
    let shown = place.succeed(&format!("{line} --set data.exclude=bad.txt --steps 8 --resume"));
    assert!(shown.contains("resumed after step 2"), "{shown}");
}

/// Photos of two classes in class folders, four of each in `train` and two in `test`.
fn folders(root: &Path, test: &str) {
    for number in 0..12 {
        let part = if number < 8 { "train" } else { test };
        write(&root.join(format!("{part}/{}/{number:02}.jpg", ["cat", "dog"][number % 2])), photo(number));
    }
}

/// A tar archive of these members.
fn archive(path: &Path, members: &[(&str, &[u8])]) {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, contents) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(contents.len() as u64);
        archive.append_data(&mut header, name, *contents).expect("fits");
    }
    write(path, archive.into_inner().expect("is a tar file"));
}

#[test]
fn a_test_label_beyond_the_classes_is_refused_before_the_first_step() {
    let place = Place::new();
    let image = photo(1);
    let sample = |class: &'static [u8]| {
        [
            ("a.jpg", image.clone()),
            ("a.cls", class.to_vec()),
            ("b.jpg", image.clone()),
            ("b.cls", b"1".to_vec()),
        ]
    };
    for (name, class) in [("train/0.tar", b"0"), ("test/0.tar", b"5")] {
        let members = sample(class);
        let members: Vec<(&str, &[u8])> = members.iter().map(|(name, bytes)| (*name, &bytes[..])).collect();
        archive(&place.path("shards").join(name), &members);
    }
    let said = place.fail("train tiny --data shards=shards --set train.global_batch=2 --steps 1 --out run");
    assert!(said.contains("6 classes for testing and 2 for training; `2` is not trained"), "{said}");
    assert!(said.contains("the first is") && said.contains("shards/test/0.tar/a"), "{said}");
    assert!(!place.path("run/metrics.jsonl").exists());
}

#[test]
fn folders_of_any_form_are_trained_on() {
    let place = Place::new();
    folders(&place.path("valid"), "valid");
    folders(&place.path("only"), "train");
    fs::rename(place.path("only/train"), place.path("plain")).expect("moves");
    folders(&place.path("only"), "train");
    place.write("plain/dog/more/x.png", b"");
    let line =
        |name: &str, more: &str| format!("{COMMON} --data folder={name} --steps 1 {more} --out run-{name}");
    place.succeed(&line("valid", ""));
    let shown = place.succeed(&line("plain", "--set data.test_fraction=0.25"));
    assert!(shown.contains("data.test_fraction = 0.25: 4 of 12 images are held out for testing"), "{shown}");
    assert!(shown.contains("train images: 1 image in deeper folders not read, such as "), "{shown}");
    let said = place.fail(&line("only", ""));
    assert!(said.contains("only: no test split; looked for one of the folders test, val"), "{said}");
    assert!(said.contains("data.test_fraction = 0.1 holds out a tenth"), "{said}");
    let shown = place.succeed(&line("only", "--set eval.enabled=false"));
    assert!(shown.contains("the data have no test split, so nothing is evaluated"), "{shown}");
    let said = place.fail("eval run-only");
    assert!(said.contains("no test split"), "{said}");
}

#[test]
fn data_check_lists_every_damaged_image() {
    let place = place();
    folders(&place.path("pets"), "test");
    for bad in ["pets/train/cat/02.jpg", "pets/test/dog/09.jpg"] {
        place.write(bad, &photo(3)[..300]);
    }
    let output = place.output("data check --data folder=pets --threads 2 --list bad.txt");
    let said = both(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for expected in [
        "train: 8 images of 2 classes, 1 damaged",
        "test: 4 images of 2 classes, 1 damaged",
        "09.jpg: truncated",
        "error: 2 of 12 images are damaged",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    let listed = fs::read_to_string(place.path("bad.txt")).expect("is written");
    assert_eq!(listed, "train/cat/02.jpg\ntest/dog/09.jpg\n");
    let line = "--data folder=pets --set data.exclude=bad.txt";
    assert!(place.succeed(&format!("data check {line} --list none.txt")).contains("train: 7 images"));
    assert!(!place.path("none.txt").exists());
    place.succeed(&format!("{COMMON} {line} --steps 1"));
    place.write("bad.txt", format!("{listed}train/cat/20.jpg\n"));
    let said = place.fail(&format!("{COMMON} {line} --steps 1"));
    assert!(said.contains("bad.txt, line 3: `train/cat/20.jpg` matches no file of the data"), "{said}");
    // A sample of an archive is named by the archive and its key.
    let image = photo(2);
    let members = [
        ("x.jpg", &image[..]),
        ("x.cls", b"1"),
        ("y.jpg", &image[..100]),
        ("y.cls", b"1"),
        ("z.jpg", &image),
        ("z.cls", b"1"),
    ];
    archive(&place.path("shards/s-001.tar"), &members);
    let said = place.fail("data check --data shards=shards --list shards.txt");
    assert!(said.contains("s-001.tar, sample y: truncated"), "{said}");
    assert_eq!(fs::read_to_string(place.path("shards.txt")).expect("is written"), "s-001.tar/y\n");
    place.succeed("data check --data shards=shards --set data.exclude=shards.txt");
    place.fail_with(2, "data check tiny");
}

#[test]
fn damaged_images_are_replaced_alike_on_any_number_of_ranks() {
    let place = Place::new();
    folders(&place.path("pets"), "test");
    let line = format!("{COMMON} --data folder=pets --set train.logical_ranks=2 --set checkpoint.every=2");
    for bad in ["pets/train/cat/02.jpg", "pets/train/dog/05.jpg", "pets/test/dog/09.jpg"] {
        place.write(bad, &photo(3)[..300]);
    }
    let said = place.fail(&format!("{line} --steps 2 --ranks 1 --out error"));
    assert!(said.contains("truncated"), "{said}");
    let line = format!("{line} --set data.on_damage=skip");
    let shown = place.succeed(&format!("{line} --steps 4 --ranks 1 --out one"));
    assert!(shown.contains("warning: 3 damaged images were replaced by others: "), "{shown}");
    let listed = fs::read_to_string(place.path("one/damaged.txt")).expect("is written");
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert_eq!(read_json(&place.path("one/summary.json"))["metrics"]["damaged_images"], 3);
    place.succeed(&format!("{line} --steps 4 --ranks 2 --out two"));
    place.succeed(&format!("{line} --steps 2 --ranks 2 --out parts"));
    place.succeed(&format!("{line} --steps 4 --ranks 1 --out parts --resume"));
    let hash = |run: &str| place.succeed(&format!("hash {run}"));
    assert_eq!((hash("two"), hash("parts")), (hash("one"), hash("one")));
    // The list is one for data.exclude.
    place.succeed(&format!(
        "data check --data folder=pets --set data.exclude={}",
        place.path("one/damaged.txt").display()
    ));
}

#[test]
fn a_resumption_names_the_data_that_changed() {
    let place = Place::new();
    folders(&place.path("pets"), "test");
    let line = format!("{COMMON} --data folder=pets --ranks 1 --out run");
    place.succeed(&format!("{line} --steps 1"));
    let shown = place.succeed(&format!("{line} --steps 2 --resume"));
    assert!(!shown.contains("changed: data"), "{shown}");
    place.write("pets/train/cat/02.jpg", photo(90));
    fs::remove_file(place.path("pets/test/dog/09.jpg")).expect("is there");
    let shown = place.succeed(&format!("{line} --steps 3 --resume"));
    for expected in [
        "changed: data: train: train/cat/02.jpg has ",
        "changed: data: test: 3 samples (was 4)",
        "changed: data: test: test/dog/09.jpg is gone",
    ] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
    let shown = place.succeed(&format!("{line} --steps 4 --resume"));
    assert!(!shown.contains("changed: data"), "{shown}");
    // Labels that mean other classes are refused, and change nothing.
    place.write("pets/train/ant/1.jpg", photo(1));
    let said = place.fail(&format!("{line} --steps 5 --resume"));
    assert!(said.contains("label 0 was `cat` in the run so far and is `ant` now"), "{said}");
    fs::remove_dir_all(place.path("pets/train/ant")).expect("is there");
    let shown = place.succeed(&format!("{line} --steps 5 --resume"));
    assert!(!shown.contains("changed: data"), "{shown}");
}

#[test]
fn what_a_kind_cannot_have_is_told() {
    let place = place();
    for (line, expected) in [
        (
            "train cifar10-resnet18 --data coco=coco --steps 1 --ranks 1 --set train.global_batch=4",
            "data.kind = coco have captions and no classes",
        ),
        (
            "train tiny --data shards=shards/s-000.tar --steps 1",
            "no test split; looked for one of the folders test, val, valid, validation, or a second archive",
        ),
        ("train tiny --set data.kind=cub", "data.kind = cub needs data.path, or the option --data cub=PATH"),
        ("train tiny --set data.kind=imagent", "did you mean imagenet?"),
        ("train tiny --set data.index=x", "data.index is for data.kind = shards, and not for shapes"),
        (
            "train tiny --data cub=cub --set data.resize=8",
            "data.resize 8 is not at least model.image_size 16",
        ),
        ("train tiny --data cub=cub --set data.box_crop=-1", "data.box_crop = -1 is negative"),
        ("train tiny --set data.crop_area=[0.5,1.5]", "data.crop_area = [0.5, 1.5] is not a pair of parts"),
        ("train tiny --set data.kind=scenes --set data.objects=1", "data.objects = 1 is not 2 or 3"),
        (
            "train tiny --set data.placed_captions=0.5",
            "data.placed_captions is for data.kind = scenes; set it to 0 for shapes",
        ),
        (
            "train scenes-attributes --set data.placed_captions=1.5",
            "data.placed_captions = 1.5 is not in [0, 1]",
        ),
        (
            "train scenes-attributes --set data.placed_captions=0.5 --set data.partly_placed_captions=0.75",
            "data.placed_captions + data.partly_placed_captions = 1.25 is more than 1",
        ),
        ("train tiny --data cub=coco --steps 1", "images.txt (also in CUB_200_2011)"),
    ] {
        let said = place.fail(line);
        assert!(said.contains(expected), "{line}: {said}");
    }
}

/// Files of another program, `tests/fixtures/parquet_files.py`: the splits must agree before the first step.
#[test]
fn classes_of_parquet_files_are_compared_before_the_first_step() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let cases = [
        ("test", "finished"),
        ("swapped", "label 0 is `b` for testing and `a` for training"),
        ("beyond", "test-00000-of-00001.parquet, row 2: label 7 is not in 0..3"),
    ];
    side_by_side(cases, |(test, words)| {
        let place = Place::new();
        let data = place.path("data");
        fs::create_dir(&data).expect("is made");
        for (from, to) in [("train", "train"), (test, "test")] {
            let to = data.join(format!("{to}-00000-of-00001.parquet"));
            fs::copy(fixtures.join(format!("{from}.parquet")), to).expect("is copied");
        }
        let output =
            place.output("train tiny --data cifar10=data --set train.global_batch=2 --steps 1 --out run");
        let said = both(&output);
        assert!(said.contains(words), "{test}: {said}");
        assert_eq!(output.status.success(), test == "test", "{test}: {said}");
        assert_eq!(place.path("run/checkpoints/step-00000001").exists(), test == "test", "{test}");
    });
}

#[test]
fn embedded_images_are_written_as_class_folders() {
    let place = Place::new();
    let write =
        "data write --data shapes --set data.images=200 --set data.test_images=40 --per-class 6 --out photos";
    let said = place.succeed(write);
    assert!(said.contains("photos/train: ") && said.contains("photos/test: 40 images"), "{said}");
    let checked = place.succeed("data check --data folder=photos");
    assert!(checked.contains("train: ") && checked.contains("test: 40 images"), "{checked}");
    let refused = place.fail(write);
    assert!(refused.contains("photos is not empty"), "{refused}");
}
