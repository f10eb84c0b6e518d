//! The presets that ship inside the program.

/// Names and texts, in the order in which they are listed; the first is what is trained without a name.
pub(crate) const PRESETS: &[(&str, &str)] = &[
    ("shapes-cvae", include_str!("../../presets/shapes-cvae.toml")),
    ("shapes-autoencoder", include_str!("../../presets/shapes-autoencoder.toml")),
    ("shapes-diffusion", include_str!("../../presets/shapes-diffusion.toml")),
    ("shapes-clip", include_str!("../../presets/shapes-clip.toml")),
    ("shapes-stackgan", include_str!("../../presets/shapes-stackgan.toml")),
    ("shapes-attributes", include_str!("../../presets/shapes-attributes.toml")),
    ("cifar10-cvae", include_str!("../../presets/cifar10-cvae.toml")),
    ("cifar10-autoencoder", include_str!("../../presets/cifar10-autoencoder.toml")),
    ("cifar10-diffusion", include_str!("../../presets/cifar10-diffusion.toml")),
    ("cifar10-clip", include_str!("../../presets/cifar10-clip.toml")),
    ("cifar10-resnet18", include_str!("../../presets/cifar10-resnet18.toml")),
    ("cifar10-resnet34", include_str!("../../presets/cifar10-resnet34.toml")),
    ("cifar10-resnet50", include_str!("../../presets/cifar10-resnet50.toml")),
    ("cifar10-resnet101", include_str!("../../presets/cifar10-resnet101.toml")),
    ("cifar10-mobilenetv2", include_str!("../../presets/cifar10-mobilenetv2.toml")),
    ("photos-resnet18", include_str!("../../presets/photos-resnet18.toml")),
    ("photos-resnet50", include_str!("../../presets/photos-resnet50.toml")),
    ("photos-mobilenetv2", include_str!("../../presets/photos-mobilenetv2.toml")),
    ("cub-stackgan", include_str!("../../presets/cub-stackgan.toml")),
    ("tiny-gpt", include_str!("../../presets/tiny-gpt.toml")),
    ("tiny-llama", include_str!("../../presets/tiny-llama.toml")),
    ("tiny-bert", include_str!("../../presets/tiny-bert.toml")),
    ("tiny-bert-classifier", include_str!("../../presets/tiny-bert-classifier.toml")),
    ("tiny", include_str!("../../presets/tiny.toml")),
];
