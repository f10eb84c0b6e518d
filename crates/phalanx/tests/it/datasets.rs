//! Trainings on every kind of data that a configuration can name, in its published form.

use std::fs;
use std::path::Path;

use image::{ImageFormat, Rgb, RgbImage};
use serde_json::{Value, json};

use crate::harness::results::{assert_close, losses};
use crate::harness::{Place, side_by_side};

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

#[test]
fn what_a_kind_cannot_have_is_told() {
    let place = place();
    for (line, expected) in [
        (
            "train cifar10-resnet18 --data coco=coco --steps 1 --ranks 1 --set train.global_batch=4",
            "data.kind = coco have captions and no classes",
        ),
        ("train tiny --data shards=shards/s-000.tar --steps 1", "one archive, so none is left for testing"),
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
        ("train tiny --data cub=coco --steps 1", "images.txt (also in CUB_200_2011)"),
    ] {
        let said = place.fail(line);
        assert!(said.contains(expected), "{line}: {said}");
    }
}
