//! `cargo xtask docs`: regenerates tables and pictures of the documentation by the commands in the pages.
//!
//! A comment in a page names the command of the next table or picture:
//!
//! ```text
//! <!-- made by | phalanx study codecs --quick --data cifar10=$CIFAR10 --out $OUT | 8 minutes | 1.md -->
//! (a table, which is replaced by the file `1.md` of $OUT)
//! <!-- end -->
//! <!-- made by | phalanx train tiny --out $OUT | 1 minute | curves.svg = curves-of-tiny.svg -->
//! (a picture, `docs/curves-of-tiny.svg`, which is replaced by the file `curves.svg`)
//! ```
//!
//! The file `-` is the command's output. Equal commands run once. Each runs in its own folder, with the program built
//! in release mode. Commands with `$CIFAR10` are skipped if that is not a folder.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The limit of a command's time without `--all`.
const MINUTES: u32 = 10;
/// The beginning of a comment.
const BEGIN: &str = "<!-- made by | ";
/// The end of a table.
const END: &str = "<!-- end -->";

/// A table or picture, and its command.
#[derive(Debug, Clone, PartialEq)]
struct Entry {
    /// The page.
    page: PathBuf,
    /// The comment's line, from 0.
    line: usize,
    command: String,
    minutes: u32,
    /// The file that the command writes to `$OUT`; `-` is its output.
    file: String,
    /// The picture to replace, next to the page. `None` to replace the lines up to the end mark.
    picture: Option<String>,
}

/// Regenerates everything that takes at most ten minutes. `--all` regenerates everything, `--list` nothing. Other words
/// select commands and files.
pub(crate) fn docs(arguments: &[String], root: &Path, target: &Path) -> Result<ExitCode, String> {
    let (mut all, mut list, mut words) = (false, false, Vec::new());
    for argument in arguments {
        match argument.as_str() {
            "--all" => all = true,
            "--list" => list = true,
            "--help" | "-h" => {
                println!(
                    "Usage: cargo xtask docs [--all] [--list] [WORD ...]\n\nMakes tables and pictures of the documentation \
                          again, those that take up to {MINUTES} minutes or with --all all of them,\nwhose command or file has \
                          one of the words. CIFAR10=PATH in the environment names CIFAR-10."
                );
                return Ok(ExitCode::SUCCESS);
            }
            option if option.starts_with('-') => {
                return Err(format!(
                    "unknown option {option} of docs; use --all, --list, or words that select commands"
                ));
            }
            word => words.push(word),
        }
    }
    let mut entries = Vec::new();
    for page in pages(root)? {
        let text = read(&page)?;
        entries.extend(parse(&page, &text)?);
    }
    entries.retain(|made| {
        words.is_empty() || words.iter().any(|word| made.command.contains(word) || made.file.contains(word))
    });
    if list {
        for made in &entries {
            let page = made.page.strip_prefix(root).unwrap_or(&made.page);
            println!("{}:{}  {} minutes  {}", page.display(), made.line + 1, made.minutes, made.command);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let commands: BTreeSet<(u32, &str)> =
        entries.iter().map(|made| (made.minutes, made.command.as_str())).collect();
    let mut failed = 0;
    for (minutes, command) in commands {
        if minutes > MINUTES && !all {
            println!("left out, as it takes {minutes} minutes (--all): {command}");
            continue;
        }
        if command.contains("$CIFAR10") && std::env::var_os("CIFAR10").is_none() {
            println!("left out, as CIFAR10 names no folder: {command}");
            continue;
        }
        println!("{command}");
        let of_it = entries.iter().filter(|made| made.command == command).cloned().collect::<Vec<_>>();
        if let Err(problem) = make(command, &of_it, root, target) {
            eprintln!("error: {problem}");
            failed += 1;
        }
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the pages that may hold tables and pictures.
pub(crate) fn pages(root: &Path) -> Result<Vec<PathBuf>, String> {
    let folder = root.join("docs");
    let entries =
        std::fs::read_dir(&folder).map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
    let mut pages: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    pages.push(root.join("README.md"));
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    Ok(pages)
}

/// Returns the comments of a page.
fn parse(page: &Path, text: &str) -> Result<Vec<Entry>, String> {
    let mut found = Vec::new();
    for (line, content) in text.lines().enumerate() {
        let Some(rest) = content.strip_prefix(BEGIN) else { continue };
        let wrong = |what: &str| format!("{}:{}: {what}: {content}", page.display(), line + 1);
        let rest = rest.strip_suffix(" -->").ok_or_else(|| wrong("the comment does not end in its line"))?;
        let parts: Vec<&str> = rest.split(" | ").collect();
        let [command, minutes, file] = parts[..] else {
            return Err(wrong("it should be `made by | COMMAND | N minutes | FILE`"));
        };
        let minutes = minutes.strip_suffix(" minutes").or_else(|| minutes.strip_suffix(" minute"));
        let minutes = minutes.and_then(|minutes| minutes.parse().ok());
        let minutes = minutes.ok_or_else(|| wrong("the time should be `N minutes`"))?;
        let (file, picture) = match file.split_once(" = ") {
            Some((file, picture)) => (file, Some(picture.to_owned())),
            None => (file, None),
        };
        if picture.is_none() && !text.lines().skip(line + 1).any(|line| line == END) {
            return Err(wrong("no `<!-- end -->` follows"));
        }
        found.push(Entry {
            page: page.to_owned(),
            line,
            command: command.to_owned(),
            minutes,
            file: file.to_owned(),
            picture,
        });
    }
    Ok(found)
}

/// Runs a command, and replaces its tables and pictures.
fn make(command: &str, entries: &[Entry], root: &Path, target: &Path) -> Result<(), String> {
    let folder = target.join("docs").join(format!("{:016x}", hash(command)));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let programs = target.join("release");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::iter::once(programs).chain(std::env::split_paths(&path));
    let paths = std::env::join_paths(paths).map_err(|error| format!("PATH cannot be extended: {error}"))?;
    let output = Command::new("sh")
        .args(["-c", command])
        .current_dir(root)
        .env("PATH", paths)
        .env("OUT", folder.join("out"))
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot start a shell: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command}: {}", output.status));
    }
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    // Backwards in each page, so that earlier line numbers stay valid.
    for made in entries.iter().rev() {
        let file = folder.join("out").join(&made.file);
        match &made.picture {
            Some(picture) => {
                let place = made.page.with_file_name(picture);
                std::fs::copy(&file, &place).map_err(|error| {
                    format!("cannot copy {} to {}: {error}", file.display(), place.display())
                })?;
            }
            None => {
                let new = if made.file == "-" { said.clone() } else { read(&file)? };
                let text = read(&made.page)?;
                let text = replaced(&text, made, &new)?;
                std::fs::write(&made.page, text)
                    .map_err(|error| format!("cannot write {}: {error}", made.page.display()))?;
            }
        }
        println!("  {}:{}", made.page.display(), made.line + 1);
    }
    Ok(())
}

/// Returns a page with new lines between a comment and its end. Text that is not Markdown becomes a code block.
fn replaced(text: &str, made: &Entry, new: &str) -> Result<String, String> {
    let lines: Vec<&str> = text.lines().collect();
    // Other tables may have moved it.
    let comment = format!("{BEGIN}{} | ", made.command);
    let file = format!(" | {} -->", made.file);
    let begin = lines.iter().position(|line| line.starts_with(&comment) && line.ends_with(&file));
    let begin = begin.ok_or_else(|| format!("{} changed during the command", made.page.display()))?;
    let end = lines[begin..].iter().position(|line| *line == END).map(|at| begin + at);
    let end = end.ok_or_else(|| format!("{} has no end of {}", made.page.display(), made.command))?;
    let new = new.trim();
    let markdown = new.starts_with(['|', '#', '!', '-']);
    let block = if markdown { new.to_owned() } else { format!("```text\n{new}\n```") };
    let mut whole: Vec<&str> = lines[..=begin].to_vec();
    whole.push("");
    whole.extend(block.lines());
    whole.push("");
    whole.extend(&lines[end..]);
    Ok(format!("{}\n", whole.join("\n")))
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// FNV-1a, for the folder's name of a command.
fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# A page\n<!-- made by | phalanx plan tiny | 1 minute | - -->\nold\n<!-- end -->\n\
                        <!-- made by | phalanx study x --out $OUT | 12 minutes | 1.svg = x.svg -->\n![x](x.svg)\n";

    #[test]
    fn comments_say_what_makes_what_follows() {
        let found = parse(Path::new("docs/a.md"), PAGE).expect("sound");
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].minutes, found[0].file.as_str(), &found[0].picture), (1, "-", &None));
        assert_eq!((found[1].line, found[1].picture.as_deref()), (4, Some("x.svg")));
        for (line, words) in [
            ("<!-- made by | a | soon | b -->", "N minutes"),
            ("<!-- made by | a | 1 minute -->", "FILE"),
            ("<!-- made by | a | 1 minute | b", "does not end"),
            ("<!-- made by | a | 1 minute | b -->", "<!-- end -->"),
        ] {
            let error = parse(Path::new("docs/a.md"), line).expect_err(line);
            assert!(error.contains(words) && error.contains("docs/a.md:1"), "{error}");
        }
    }

    #[test]
    fn a_table_is_replaced_and_the_rest_stays() {
        let made = parse(Path::new("a.md"), PAGE).expect("sound").remove(0);
        let text = replaced(PAGE, &made, "| a |\n|---|\n").expect("is there");
        assert_eq!(text, PAGE.replace("old", "\n| a |\n|---|\n"));
        let again = replaced(&text, &made, "| a |\n|---|\n").expect("is there");
        assert_eq!(again, text, "it can be made again");
        assert!(
            replaced(PAGE, &made, "plain words").expect("is there").contains("```text\nplain words\n```")
        );
    }

    #[test]
    fn every_picture_and_every_table_of_measurements_names_its_command() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
        let number = |word: &str| {
            let word = word.trim();
            let digits = word.chars().filter(char::is_ascii_digit).count();
            digits >= 3 && word.starts_with(|first: char| first.is_ascii_digit())
        };
        for page in pages(root).expect("are there") {
            let text = read(&page).expect("reads");
            let made = parse(&page, &text).expect("sound comments");
            let lines: Vec<&str> = text.lines().collect();
            for (at, line) in lines.iter().enumerate() {
                let Some((_, rest)) = line.strip_prefix("![").and_then(|rest| rest.split_once("](")) else {
                    continue;
                };
                let picture = rest.trim_end_matches(')');
                let named =
                    made.iter().any(|made| made.line + 1 == at && made.picture.as_deref() == Some(picture));
                assert!(named, "{}:{}: what makes {picture}? (`made by` before it)", page.display(), at + 1);
            }
            for section in text.split("\n## ") {
                let cells =
                    section.lines().filter(|line| line.starts_with('|')).flat_map(|line| line.split('|'));
                let measured = cells.filter(|cell| number(cell)).count() >= 6;
                let command = ["cargo xtask ", "phalanx "].iter().any(|program| section.contains(program));
                let title = section.lines().next().unwrap_or_default();
                assert!(
                    !measured || command,
                    "{}: which command makes the table of `{title}`?",
                    page.display()
                );
            }
        }
    }
}
