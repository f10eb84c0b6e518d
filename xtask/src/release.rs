//! `cargo xtask release`: archives of the program for publishing, and the public address in manifests and pages.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const HELP: &str = "\
Usage: cargo xtask release build [--target TRIPLE ...] [--out DIR]
       cargo xtask release address URL

build    build the program and pack it: a stripped program, completions and manual pages; its symbols in a second archive; checksums.
         Without --target for this machine. aarch64-unknown-linux-gnu needs its standard library (rustup target add) and
         gcc-aarch64-linux-gnu. The archives go to DIR [default: target/dist].
address  set the public address of the source: `repository` of all manifests, and the commands of pages that need it.
         Until then no manifest and no page names one.";

/// Runs one of the two.
pub(crate) fn release(arguments: &[String], root: &Path, target: &Path) -> Result<ExitCode, String> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["build", options @ ..] => build(options, root, target)?,
        ["address", url] => set_address(root, url)?,
        [] | ["--help" | "-h"] => println!("{HELP}"),
        _ => return Err(format!("release takes `build` or `address URL`\n\n{HELP}")),
    }
    Ok(ExitCode::SUCCESS)
}

/// A platform that archives are made for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Platform {
    triple: String,
    /// True if this machine runs its programs.
    is_host: bool,
}

impl Platform {
    /// The beginning of the names of its binary tools; empty for this machine's own.
    fn tools(&self) -> &'static str {
        match self.triple.as_str() {
            "aarch64-unknown-linux-gnu" if !self.is_host => "aarch64-linux-gnu-",
            "x86_64-unknown-linux-gnu" if !self.is_host => "x86_64-linux-gnu-",
            _ => "",
        }
    }
}

fn build(options: &[&str], root: &Path, target: &Path) -> Result<(), String> {
    let host = host()?;
    let (mut triples, mut out) = (Vec::new(), target.join("dist"));
    let mut options = options.iter();
    while let Some(option) = options.next() {
        let value = options.next().ok_or_else(|| format!("{option} needs a value\n\n{HELP}"))?;
        match *option {
            "--target" => triples.push((*value).to_owned()),
            "--out" => out = PathBuf::from(value),
            _ => return Err(format!("release build has no {option}\n\n{HELP}")),
        }
    }
    if triples.is_empty() {
        triples.push(host.clone());
    }
    std::fs::create_dir_all(&out).map_err(|error| format!("cannot create {}: {error}", out.display()))?;
    for triple in triples {
        let platform = Platform { is_host: triple == host, triple };
        pack(&platform, root, target, &out)?;
    }
    Ok(())
}

/// Builds the program for a platform and writes its archives.
fn pack(platform: &Platform, root: &Path, target: &Path, out: &Path) -> Result<(), String> {
    let built = compile(platform, root, target)?;
    let name = format!("phalanx-{}-{}", version(root)?, platform.triple);
    let folder = out.join(&name);
    let _ = std::fs::remove_dir_all(&folder);
    create(&folder)?;
    let program = folder.join("phalanx");
    copy(&built, &program)?;
    let symbols = out.join("phalanx.debug");
    let objcopy = format!("{}objcopy", platform.tools());
    run(Command::new(&objcopy).arg("--only-keep-debug").arg(&program).arg(&symbols))?;
    run(Command::new(&objcopy).arg("--strip-all").arg(&program))?;
    // The link holds the file's name alone, which a debugger looks up next to the program.
    run(Command::new(&objcopy)
        .current_dir(out)
        .arg("--add-gnu-debuglink=phalanx.debug")
        .arg(absolute(&program)?))?;
    for file in ["LICENSE", "README.md", "CHANGELOG.md"] {
        copy(&root.join(file), &folder.join(file))?;
    }
    // Help is the same on all platforms, so a program that does not run here can use this machine's.
    let runnable = if platform.is_host { program.clone() } else { built_for_host(target) };
    if runnable.is_file() {
        shell_files(&runnable, &folder)?;
    } else {
        println!(
            "{name}: without completions and manual pages, which the program of this machine would write; build it before"
        );
    }
    let time = command_output(Command::new("git").current_dir(root).args(["log", "-1", "--format=%ct"]))
        .unwrap_or_else(|_| "0".to_owned());
    archive(out, &name, &name, &time)?;
    let with_symbols = format!("{name}-symbols");
    archive(out, &with_symbols, "phalanx.debug", &time)?;
    // The archives hold both.
    let _ = std::fs::remove_file(&symbols);
    let _ = std::fs::remove_dir_all(&folder);
    Ok(())
}

/// Compiles the program. Returns its path.
fn compile(platform: &Platform, root: &Path, target: &Path) -> Result<PathBuf, String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["build", "--release", "--locked", "--bin", "phalanx"]);
    if platform.is_host {
        run(&mut cargo)?;
        return Ok(built_for_host(target));
    }
    let variable = platform.triple.to_uppercase().replace('-', "_");
    let linker = format!("{}gcc", platform.tools());
    cargo.args(["--target", &platform.triple]);
    cargo.env(format!("CARGO_TARGET_{variable}_LINKER"), &linker);
    run(&mut cargo).map_err(|error| {
        format!(
            "{error}\nif its standard library or its linker is missing: `rustup target add {}`, and install {linker}",
            platform.triple
        )
    })?;
    Ok(target.join(&platform.triple).join("release/phalanx"))
}

fn built_for_host(target: &Path) -> PathBuf {
    target.join("release/phalanx")
}

/// Writes completions and manual pages by the program itself.
fn shell_files(program: &Path, folder: &Path) -> Result<(), String> {
    let completions = folder.join("completions");
    create(&completions)?;
    for (shell, file) in [("bash", "phalanx.bash"), ("zsh", "_phalanx"), ("fish", "phalanx.fish")] {
        let text = command_output(Command::new(program).args(["completions", shell]))?;
        let path = completions.join(file);
        std::fs::write(&path, text + "\n")
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    run(Command::new(program).arg("man").arg(folder.join("man")))
}

/// Packs `content` of the folder `out`, and writes the checksum next to the archive. Equal content gives equal bytes.
fn archive(out: &Path, name: &str, content: &str, time: &str) -> Result<(), String> {
    let file = format!("{name}.tar.gz");
    run(Command::new("tar")
        .current_dir(out)
        .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", &format!("--mtime=@{time}")])
        .args(["--use-compress-program=gzip -n9", "-cf", &file, content]))?;
    let sum = command_output(Command::new("sha256sum").current_dir(out).arg(&file))?;
    let path = out.join(format!("{file}.sha256"));
    std::fs::write(&path, sum + "\n").map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    println!("{}", out.join(file).display());
    Ok(())
}

/// The begin of a comment in pages whose next lines need the public address.
const ADDRESS: &str = "<!-- address | ";

/// Sets the public address in manifests and pages.
fn set_address(root: &Path, url: &str) -> Result<(), String> {
    let is_address = url.strip_prefix("https://").is_some_and(|rest| rest.contains('/'))
        && !url.contains(char::is_whitespace)
        && !url.contains(['"', '`', '|', '<', '>']);
    if !is_address {
        return Err(format!("{url}: an address begins with https:// and names a repository"));
    }
    let url = url.trim_end_matches('/');
    let manifests = std::fs::read_dir(root.join("crates")).map_err(|error| error.to_string())?;
    let mut manifests: Vec<PathBuf> = manifests
        .flatten()
        .map(|entry| entry.path().join("Cargo.toml"))
        .filter(|path| path.is_file())
        .collect();
    manifests.sort();
    change(&root.join("Cargo.toml"), |text| {
        with_key(text, "authors = ", "repository = ", &format!("\"{url}\""))
    })?;
    for manifest in manifests {
        change(&manifest, |text| with_key(text, "authors.workspace = ", "repository.workspace = ", "true"))?;
    }
    for page in super::docs::pages(root)? {
        change(&page, |text| addressed(text, url))?;
    }
    Ok(())
}

/// Returns a manifest with a key after another one, in place of an earlier value.
fn with_key(text: &str, after: &str, key: &str, value: &str) -> String {
    let mut lines: Vec<String> =
        text.lines().filter(|line| !line.starts_with(key)).map(str::to_owned).collect();
    if let Some(at) = lines.iter().position(|line| line.starts_with(after)) {
        lines.insert(at + 1, format!("{key}{value}"));
    }
    lines.join("\n") + "\n"
}

/// Returns a page whose marked places have the commands with the address: a block after each mark, up to `<!-- end -->`.
fn addressed(text: &str, url: &str) -> String {
    let mut lines = Vec::new();
    let mut is_replaced = false;
    for line in text.lines() {
        if is_replaced && line != "<!-- end -->" {
            continue;
        }
        is_replaced = false;
        lines.push(line.to_owned());
        if let Some(command) = line.strip_prefix(ADDRESS).and_then(|rest| rest.strip_suffix(" -->")) {
            lines.push(format!("```sh\n{}\n```", command.replace("{address}", url)));
            is_replaced = true;
        }
    }
    lines.join("\n") + "\n"
}

fn change(path: &Path, new: impl FnOnce(&str) -> String) -> Result<(), String> {
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let changed = new(&text);
    if changed != text {
        std::fs::write(path, changed).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Returns the version of the workspace.
fn version(root: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(root.join("Cargo.toml")).map_err(|error| error.to_string())?;
    let line = text.lines().find_map(|line| line.strip_prefix("version = \""));
    line.and_then(|rest| rest.split('"').next())
        .map(str::to_owned)
        .ok_or("Cargo.toml has no version".to_owned())
}

/// Returns the platform of this machine's compiler.
fn host() -> Result<String, String> {
    let about = command_output(Command::new("rustc").arg("-vV"))?;
    let line = about.lines().find_map(|line| line.strip_prefix("host: "));
    line.map(str::to_owned).ok_or("rustc -vV names no host".to_owned())
}

fn create(folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|error| format!("cannot create {}: {error}", folder.display()))
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let copied = std::fs::copy(from, to);
    copied.map(drop).map_err(|error| format!("cannot copy {} to {}: {error}", from.display(), to.display()))
}

fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name} failed ({status})")),
        Err(error) => Err(format!("cannot start {name}: {error}")),
    }
}

/// Returns what a command prints, without spaces at its end.
fn command_output(command: &mut Command) -> Result<String, String> {
    let name = OsStr::to_string_lossy(command.get_program()).into_owned();
    let output = command.output().map_err(|error| format!("cannot start {name}: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "{name} failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_can_be_set_and_changed() {
        let manifest = "[workspace.package]\nversion = \"1\"\nauthors = [\"us\"]\n";
        let once = with_key(manifest, "authors = ", "repository = ", "\"https://a/b\"");
        assert_eq!(once, format!("{manifest}repository = \"https://a/b\"\n"));
        assert_eq!(with_key(&once, "authors = ", "repository = ", "\"https://a/b\""), once);
        let page = "# Title\n\n<!-- address | git clone {address} x -->\n<!-- end -->\n\nText\n";
        let once = addressed(page, "https://a/b");
        let block =
            "<!-- address | git clone {address} x -->\n```sh\ngit clone https://a/b x\n```\n<!-- end -->";
        assert!(once.contains(block), "{once}");
        let twice = addressed(&once, "https://c/d");
        assert_eq!(twice, once.replace("clone https://a/b", "clone https://c/d"));
    }

    #[test]
    fn tools_of_other_platforms_have_a_prefix() {
        let of = |triple: &str, is_host| Platform { triple: triple.to_owned(), is_host }.tools();
        assert_eq!(of("aarch64-unknown-linux-gnu", false), "aarch64-linux-gnu-");
        assert_eq!(of("aarch64-unknown-linux-gnu", true), "");
        assert_eq!(of("x86_64-unknown-linux-gnu", true), "");
    }
}
