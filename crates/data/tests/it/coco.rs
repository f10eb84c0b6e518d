//! A small MS-COCO in the official form, valid and damaged.

use crate::files::{encoded, photo, write};
use image::{DynamicImage, GrayImage, ImageFormat};
use phalanx_data::{CocoCaptions, CocoConfig, DataError, Dataset, Exclusions, LabelledDataset, Split};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use tempfile::TempDir;

/// `captions_train2017.json` as published, with fields that are ignored.
fn annotations() -> Value {
    json!({
        "info": {"description": "COCO 2017 Dataset", "year": 2017},
        "images": [
            {"license": 3, "file_name": "000000391895.jpg", "coco_url": "http://x", "height": 30, "width": 40, "id": 391895},
            {"license": 4, "file_name": "000000000009.jpg", "height": 30, "width": 40, "id": 9},
        ],
        "licenses": [{"id": 1, "name": "x", "url": "http://x"}],
        "annotations": [
            {"image_id": 9, "id": 661611, "caption": "Closeup of bins of food that include broccoli and bread."},
            {"image_id": 391895, "id": 770337, "caption": "A man with a red helmet on a small moped\non a dirt road. "},
            {"image_id": 9, "id": 661977, "caption": "A meal is presented in brightly colored plastic trays."},
        ],
    })
}

fn coco(annotations: &Value) -> TempDir {
    let place = TempDir::new().unwrap();
    write(&place.path().join("annotations/captions_train2017.json"), annotations.to_string());
    // Another kind of annotation in the same folder.
    write(&place.path().join("annotations/instances_train2017.json"), "{}");
    write(&place.path().join("train2017/000000391895.jpg"), photo(40, 30));
    let grey = DynamicImage::ImageLuma8(GrayImage::new(40, 30));
    write(&place.path().join("train2017/000000000009.jpg"), encoded(&grey, ImageFormat::Jpeg));
    place
}

fn open(path: &Path, split: Split) -> Result<CocoCaptions, DataError> {
    CocoCaptions::open(&CocoConfig {
        path: path.into(),
        split,
        caption_seed: 0,
        excluded: Exclusions::default(),
    })
}

#[test]
fn images_are_ordered_by_id_and_every_caption_is_used() {
    let place = coco(&annotations());
    let train = open(place.path(), Split::Train).unwrap();
    assert_eq!((train.name(), train.len(), train.class_names().len()), ("coco/train", 2, 0));
    assert!(train.file(0).unwrap().ends_with("train2017/000000000009.jpg"));
    let captions: BTreeSet<_> = (0..40).map(|epoch| train.get(0, epoch).unwrap().caption).collect();
    assert_eq!(captions.len(), 2);
    let second = train.get(1, 0).unwrap();
    assert_eq!(second.caption, "A man with a red helmet on a small moped on a dirt road.");
    assert_eq!(second.image.dimensions(), (40, 30));
    assert!(train.get(2, 0).is_err());
}

fn error_after(change: impl FnOnce(&mut Value)) -> String {
    let mut annotations = annotations();
    change(&mut annotations);
    let place = coco(&annotations);
    let error = open(place.path(), Split::Train).unwrap_err();
    assert!(
        matches!(&error, DataError::File { file, .. } if file.ends_with("captions_train2017.json")),
        "{error}"
    );
    error.to_string()
}

#[test]
fn every_fault_names_the_image() {
    let none =
        error_after(|all| all["annotations"].as_array_mut().unwrap().retain(|one| one["image_id"] == 9));
    assert!(none.contains("image 391895 (000000391895.jpg) has no caption"), "{none}");
    let empty = error_after(|all| all["annotations"][0]["caption"] = json!(" \n"));
    assert!(empty.contains("image 9 (000000000009.jpg): empty caption"), "{empty}");
    let stranger = error_after(|all| all["annotations"][1]["image_id"] = json!(7));
    assert!(stranger.contains("a caption belongs to image 7"), "{stranger}");
    let twice = error_after(|all| all["images"][0]["id"] = json!(9));
    assert!(twice.contains("two images have the id 9"), "{twice}");
    let outside = error_after(|all| all["images"][0]["file_name"] = json!("../x.jpg"));
    assert!(outside.contains("\"../x.jpg\" is not a path within"), "{outside}");
    let other = error_after(|all| all["images"] = json!({}));
    assert!(other.contains("not in the form of COCO captions") && other.contains("line 1"), "{other}");
}

#[test]
fn a_missing_image_and_a_missing_split_name_what_is_missing() {
    let place = coco(&annotations());
    std::fs::remove_file(place.path().join("train2017/000000000009.jpg")).unwrap();
    let train = open(place.path(), Split::Train).unwrap();
    assert!(train.get(0, 0).unwrap_err().to_string().contains("000000000009.jpg"));
    assert!(train.get(1, 0).is_ok());
    let test = open(place.path(), Split::Test).unwrap_err().to_string();
    assert!(test.contains("captions_val*.json (also in annotations)"), "{test}");
    write(&place.path().join("annotations/captions_val2014.json"), annotations().to_string());
    let folder = open(place.path(), Split::Test).unwrap_err();
    assert!(matches!(folder, DataError::NoFolder(folder) if folder.ends_with("val2014")));
    write(&place.path().join("images/val2014/000000391895.jpg"), photo(8, 8));
    assert_eq!(open(place.path(), Split::Test).unwrap().get(1, 0).unwrap().image.dimensions(), (8, 8));
    write(&place.path().join("captions_val2017.json"), annotations().to_string());
    let two = open(place.path(), Split::Test).unwrap_err().to_string();
    assert!(
        two.contains("captions_val2014.json, ") && two.contains("captions_val2017.json; leave one"),
        "{two}"
    );
}

#[test]
fn ids_may_be_texts_and_names_begin_with_a_dot() {
    let mut all = annotations();
    for image in all["images"].as_array_mut().unwrap() {
        image["id"] = json!(image["id"].to_string());
        image["file_name"] = json!(format!("./{}", image["file_name"].as_str().unwrap()));
    }
    let (plain, other) = (coco(&annotations()), coco(&all));
    let [plain, other] = [&plain, &other].map(|place| open(place.path(), Split::Train).unwrap());
    assert_eq!(plain.len(), other.len());
    assert_eq!(plain.file(1).unwrap().file_name(), other.file(1).unwrap().file_name());
    assert!(other.get(0, 0).is_ok());
    let named = error_after(|all| all["images"][0]["id"] = json!("nine"));
    assert!(named.contains("an id is a whole number from 0, or such a number as a text"), "{named}");
}
