//! The pages: the list of runs, and reports with live curves.

use std::path::PathBuf;

use super::served_folder::ServedFolder;
use crate::{Options, Report, TABLES, document, escape, is_run};

/// The script of the list.
const LIST: &str = include_str!("assets/list.js");

/// Returns the page of the list, which a script fills.
pub(super) fn list(served: &ServedFolder) -> String {
    let title = served.root().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let body = format!(
        "<main id=\"content\" class=\"wide\"><header><h1>Runs in {}</h1><p class=\"lead\" id=\"state\" aria-live=\"polite\">Reading…</p></header>\
         <form class=\"picks\" id=\"choose\"><label>Filter <input type=\"search\" id=\"filter\" size=\"40\" \
         placeholder=\"strategy=fsdp  lr&gt;0.001  state=finished\" aria-describedby=\"help\"></label>\
         <label>Add a column <input type=\"search\" id=\"column\" list=\"keys\" size=\"26\"></label><datalist id=\"keys\"></datalist>\
         <button type=\"button\" id=\"compare\" disabled>Compare selected</button></form>\
         <p class=\"hint\" id=\"help\">Words filter by the folder's name and notes; conditions by any key of configuration, summary or \
         metrics or by its end, with =, !=, &lt;, &lt;=, &gt;, &gt;= and ~ for a part of a text. Click on a column's name to sort by \
         it; on × to remove it. A file notes.md in a run's folder is shown.</p>\
         <div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Runs\"><table id=\"runs\" class=\"listing\"><caption>Runs</caption>\
         <thead></thead><tbody></tbody></table></div>\
         <noscript><p>The list needs JavaScript; reports of single runs do not.</p></noscript></main>",
        escape(&title)
    );
    document(&format!("Runs in {title}"), &body, &format!("{TABLES}{LIST}"), true)
}

/// Returns the report of runs; `None` if a path is no run or leads out of the folder.
pub(super) fn report(served: &ServedFolder, paths: &[String], options: &Options) -> Option<String> {
    let folders: Vec<PathBuf> = paths.iter().map(|path| served.find(path)).collect::<Option<_>>()?;
    if folders.is_empty() || !folders.iter().all(|folder| served.holds_run(folder)) {
        return None;
    }
    // `Report::collect` would expand a folder that is no run to unchecked runs.
    if !folders.iter().all(|folder| is_run(folder)) {
        return None;
    }
    let report = Report::collect(&folders, options).ok()?;
    let events = match paths {
        [path] => report.position_if_under_way().map(|from| format!("/events/{}?from={from}", percent(path))),
        _ => None,
    };
    Some(report.served(events))
}

/// Returns the report of a sweep; `None` if a path is none or leads out of the folder.
pub(super) fn sweep(served: &ServedFolder, path: &str, options: &Options) -> Option<String> {
    let folder = served.find(path).filter(|folder| !is_run(folder) && served.holds_sweep(folder))?;
    Some(Report::collect(&[folder], options).ok()?.served(None))
}

/// Percent-encodes a path.
fn percent(path: &str) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(byte);
    path.bytes()
        .map(|byte| if is_plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
