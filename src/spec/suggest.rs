//! Suggestions for misspelled names.

/// Returns the candidate nearest to `given`, if it is near enough.
pub(crate) fn nearest<'a>(given: &str, candidates: &[&'a str]) -> Option<&'a str> {
    // Bounds the work on hostile input; no Kubernetes field name is longer.
    if given.is_empty() || given.len() > 64 {
        return None;
    }
    let lower = given.to_ascii_lowercase();
    let bare: String = lower.chars().filter(|c| c.is_alphanumeric()).collect();
    candidates
        .iter()
        .filter_map(|candidate| {
            let known = candidate.to_ascii_lowercase();
            if known == lower || known == bare {
                return Some((0, *candidate));
            }
            let distance = strsim::damerau_levenshtein(&lower, &known);
            // Allow errors in a third of the letters, and a plural `s` or one typo in a short word.
            let allowed = (given.chars().count().max(known.len()) / 3).max(1);
            (distance <= allowed).then_some((distance, *candidate))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn the_nearest_name_is_suggested_and_strangers_are_not() {
        let fields = [
            "image",
            "imagePullPolicy",
            "name",
            "env",
            "envFrom",
            "ports",
        ];
        for (given, expected) in [
            ("imag", Some("image")),
            ("Image", Some("image")),
            ("image_pull_policy", Some("imagePullPolicy")),
            ("i_m_a_g_e", Some("image")),
            ("port", Some("ports")),
            ("nmae", Some("name")),
            ("evn", Some("env")),
            ("flavour", None),
            ("", None),
        ] {
            assert_eq!(nearest(given, &fields), expected, "{given}");
        }
        assert_eq!(nearest("", &["x"]), None);
        let (known, too_long) = ("x".repeat(64), "x".repeat(65));
        assert_eq!(nearest(&known, &[&known]), Some(known.as_str()));
        assert_eq!(nearest(&too_long, &[&known]), None);
    }
}
