//! `phalanx data`: checks images before a training, and writes them as class folders.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use clap::{Args, Subcommand};

use super::ending::ending;
use super::error::CliError;
use super::resolve::set_data;
use crate::Program;
use crate::console::{TaskProgress, err, out};
use phalanx_config::Resolved;
use phalanx_datasets::{DataCheck, SplitCheck, WrittenSplit, check_data, write_images};
use phalanx_run::write_aside;

/// The largest number of damaged images that are printed.
const MAX_PRINTED: usize = 20;

/// Check the images of a configuration, or write them as class folders.
#[derive(Debug, Args)]
pub(super) struct DataArgs {
    #[command(subcommand)]
    command: DataCommand,
}

#[derive(Debug, Subcommand)]
enum DataCommand {
    /// Read every image once, as a training does. Fail if one is damaged, and list it for data.exclude.
    Check(CheckArgs),
    /// Write the images as PNG files in class folders: OUT/train/CLASS/NUMBER.png and OUT/test/CLASS/NUMBER.png.
    Write(WriteArgs),
}

/// The choice of images.
#[derive(Debug, Args)]
struct ImageArgs {
    /// A preset's name (see `phalanx config list`), or a file that ends in .toml [default: the defaults of all keys].
    config: Option<String>,
    /// The images: shapes, scenes, or cifar10, folder, cub, coco, imagenet or shards with their path.
    #[arg(long, value_name = "KIND=PATH")]
    data: Option<String>,
    /// Override a key (see `phalanx config show`).
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    sets: Vec<String>,
}

#[derive(Debug, Args)]
struct WriteArgs {
    #[command(flatten)]
    images: ImageArgs,
    /// At most this many training images of each class; 0 = all.
    #[arg(long, value_name = "N", default_value_t = 0)]
    per_class: u32,
    /// The folder, which must be empty or new.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

#[derive(Debug, Args)]
struct CheckArgs {
    #[command(flatten)]
    images: ImageArgs,
    /// The file that damaged images are added to, one a line. Without damage it is not written.
    #[arg(long, value_name = "FILE.txt", default_value = "damaged.txt")]
    list: PathBuf,
    /// The number of threads [default: the number of cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

pub(super) fn run(program: &Program, args: &DataArgs) -> Result<(), CliError> {
    match &args.command {
        DataCommand::Check(args) => check(program, args),
        DataCommand::Write(args) => write(program, args),
    }
}

fn check(program: &Program, args: &CheckArgs) -> Result<(), CliError> {
    ending("--list", &args.list, &["txt"])?;
    let resolved = configuration(program, &args.images)?;
    let config = &resolved.config;
    if config.data.kind.is_embedded() {
        return Err(CliError::Usage(format!(
            "data.kind = {}: the program makes these images; name others by --data KIND=PATH",
            config.data.kind
        )));
    }
    let progress = TaskProgress::new("images");
    let checked = check_data(config, args.threads.map_or_else(cores, usize::from), &|done, all| {
        progress.set(done, all);
    });
    progress.finish();
    let checked = checked.map_err(CliError::failed)?;
    report(program, &checked, &args.list)
}

/// Writes the images as class folders.
fn write(program: &Program, args: &WriteArgs) -> Result<(), CliError> {
    let mut resolved = configuration(program, &args.images)?;
    if args.per_class > 0 {
        let option = format!("--per-class {}", args.per_class);
        resolved.set_value(&option, "data.per_class", toml::Value::Integer(args.per_class.into()))?;
    }
    let progress = TaskProgress::new("images");
    let written = write_images(&resolved.config, &args.out, cores(), &|done, all| progress.set(done, all));
    progress.finish();
    for WrittenSplit { name, images, classes } in written.map_err(CliError::failed)? {
        out(&format!("{}: {images} images of {classes} classes", args.out.join(name).display()));
    }
    Ok(())
}

/// Returns the number of cores.
fn cores() -> usize {
    available_parallelism().map_or(1, usize::from)
}

fn configuration(program: &Program, args: &ImageArgs) -> Result<Resolved, CliError> {
    let mut resolved = program.catalogue().resolve(args.config.as_deref(), &args.sets)?;
    if let Some(data) = &args.data {
        set_data(&mut resolved, data)?;
    }
    resolved.validate_without_images()?;
    if resolved.config.data.path.is_empty() && !resolved.config.data.kind.is_embedded() {
        let kind = resolved.config.data.kind;
        return Err(CliError::Usage(format!(
            "data.kind = {kind} needs data.path, or the option --data {kind}=PATH"
        )));
    }
    Ok(resolved)
}

/// Prints the outcome and lists the damaged images.
fn report(program: &Program, checked: &DataCheck, list: &Path) -> Result<(), CliError> {
    for note in &checked.notes {
        out(note);
    }
    for split in &checked.splits {
        out(&summary(split));
    }
    let damaged = || checked.splits.iter().flat_map(|split| &split.damaged);
    let (number, all) = (damaged().count(), checked.splits.iter().map(|split| split.images).sum::<usize>());
    if number == 0 {
        return Ok(());
    }
    for image in damaged().take(MAX_PRINTED) {
        err(&image.problem);
    }
    if number > MAX_PRINTED {
        err(&format!("… and {} more", number - MAX_PRINTED));
    }
    add_lines(list, damaged().map(|image| image.line.as_str()))?;
    let (list, name) = (list.display(), program.name());
    out(&format!("listed in {list}; `{name} train … --set data.exclude={list}` leaves them out"));
    let message = match number {
        1 => format!("1 of {all} images is damaged"),
        _ => format!("{number} of {all} images are damaged"),
    };
    Err(CliError::failed(message))
}

/// Describes a split in one line.
fn summary(split: &SplitCheck) -> String {
    let SplitCheck { name, images, classes, damaged } = split;
    let classes = if *classes > 0 { format!(" of {classes} classes") } else { String::new() };
    format!("{name}: {images} images{classes}, {} damaged", damaged.len())
}

/// Adds lines to a list that lacks them.
fn add_lines<'a>(list: &Path, lines: impl Iterator<Item = &'a str>) -> Result<(), CliError> {
    let before = match std::fs::read_to_string(list) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(CliError::failed(format!("{}: {error}", list.display()))),
    };
    let known: BTreeSet<&str> = before.lines().map(str::trim).collect();
    let mut text = before.clone();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    for line in lines.filter(|line| !known.contains(line)) {
        text.push_str(line);
        text.push('\n');
    }
    write_aside(list, text.as_bytes())
        .map_err(|error| CliError::failed(format!("{}: {error}", list.display())))
}
