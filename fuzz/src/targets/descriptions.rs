//! Descriptions of exported models.

use phalanx_fuzz_harness::files::folder;
use phalanx_trainer::engine::ModelMetadata;

use super::{Target, of_json};

/// The `config.json` of an exported folder.
fn descriptions() -> Vec<Vec<u8>> {
    let resolved = phalanx::program().resolve("cifar10-resnet18", &[]);
    let classes = vec!["cat".to_owned(), "dog".to_owned()];
    let metadata = resolved.ok().and_then(|own| ModelMetadata::new(&own.config, classes, 7, true).ok());
    let text = |metadata: ModelMetadata| format!("{{\"phalanx\": {}}}", metadata.to_json()).into_bytes();
    metadata.map(text).into_iter().collect()
}

/// Reads a description and composes the configuration that it says.
fn read_description(bytes: &[u8]) {
    let place = folder();
    let path = place.path().join("config.json");
    if std::fs::write(&path, bytes).is_err() {
        return;
    }
    let Ok(Some(metadata)) = ModelMetadata::of_config(&path) else { return };
    let program = phalanx::program();
    let (Ok(assignments), Ok(mut resolved)) =
        (metadata.assignments(&path), program.catalogue().resolve(None, &[]))
    else {
        return;
    };
    for (key, value) in assignments {
        if resolved.set_value("config.json", &key, value).is_err() {
            return;
        }
    }
    let _ = resolved.validate_without_images();
}

pub(super) const DESCRIPTIONS: Target = Target {
    name: "descriptions",
    about: "descriptions of exported models",
    seeds: descriptions,
    words: &["\"settings\":", "\"model.kind\":", "\"format\":1", "\"classes\":[]"],
    change: of_json,
    read: read_description,
    cases: 100,
    memory: 48 << 20,
};
