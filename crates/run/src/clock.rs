//! Timestamps for folder names.

/// Returns the current time in UTC as `YYYYMMDD-HHMMSS`.
pub fn timestamp() -> String {
    of(jiff::Timestamp::now())
}

fn of(moment: jiff::Timestamp) -> String {
    moment.strftime("%Y%m%d-%H%M%S").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        let cases = [
            (0, "19700101-000000"),
            (951_782_399, "20000228-235959"),
            (951_782_400, "20000229-000000"),
            (1_709_251_199, "20240229-235959"),
            (1_735_689_600, "20250101-000000"),
        ];
        for (seconds, text) in cases {
            assert_eq!(of(jiff::Timestamp::from_second(seconds).expect("a year below 10000")), text);
        }
    }
}
