//! The presets that ship inside the program.

/// Names and texts, in the order in which they are listed.
const PRESETS: &[(&str, &str)] = &[
    ("shapes-cvae", include_str!("../../presets/shapes-cvae.toml")),
    ("shapes-clip", include_str!("../../presets/shapes-clip.toml")),
    ("cifar10-cvae", include_str!("../../presets/cifar10-cvae.toml")),
    ("cifar10-clip", include_str!("../../presets/cifar10-clip.toml")),
    ("cifar10-resnet18", include_str!("../../presets/cifar10-resnet18.toml")),
    ("cifar10-resnet34", include_str!("../../presets/cifar10-resnet34.toml")),
    ("cifar10-resnet50", include_str!("../../presets/cifar10-resnet50.toml")),
    ("cifar10-mobilenetv2", include_str!("../../presets/cifar10-mobilenetv2.toml")),
    ("tiny", include_str!("../../presets/tiny.toml")),
];

/// The preset that `phalanx train` runs without being told another.
pub const DEFAULT: &str = "shapes-cvae";

/// The presets' names.
pub fn names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|(name, _)| *name)
}

/// The text of a preset.
pub fn text(name: &str) -> Option<&'static str> {
    PRESETS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}
