//! Suggestions for misspelt names.

/// Returns the candidate most similar to `word`, if it is similar enough to be what was meant.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let score = |candidate: &str| {
        let whole = strsim::jaro_winkler(word, candidate);
        // `global_batch` alone, or in the wrong section, is meant as `train.global_batch`.
        let last = |path: &str| path.rsplit('.').next().unwrap_or_default().to_owned();
        let by_last =
            if candidate.contains('.') { strsim::jaro_winkler(&last(word), &last(candidate)) } else { 0.0 };
        // Twice the weight of the last part, so that a right key in a wrong section beats its neighbours.
        whole.max(0.5 * whole + 0.5 * by_last).max(if by_last > 0.92 { by_last } else { 0.0 })
    };
    let best = candidates.into_iter().map(|candidate| (score(candidate), candidate));
    let (score, best) = best.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (score > 0.8).then(|| best.to_owned())
}
