//! The kubelet's expansion of `$(VAR)` in env values, commands, arguments and `subPathExpr` (Kubernetes docs: Define
//! Dependent Environment Variables).

use std::borrow::Cow;

/// Replaces `$(NAME)` by its value if `lookup` knows it; `$$` becomes `$`; any other `$` stays.
pub fn expand<'v>(input: &str, lookup: impl Fn(&str) -> Option<Cow<'v, str>>) -> String {
    let mut output = String::with_capacity(input.len());
    let mut rest = input;
    while let Some(at) = rest.find('$') {
        output.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(escaped) = after.strip_prefix('$') {
            output.push('$');
            rest = escaped;
            continue;
        }
        match after
            .strip_prefix('(')
            .and_then(|name| name.split_once(')'))
        {
            Some((name, tail)) => {
                match lookup(name) {
                    Some(value) => output.push_str(&value),
                    None => {
                        output.push_str("$(");
                        output.push_str(name);
                        output.push(')');
                    }
                }
                rest = tail;
            }
            None => {
                output.push('$');
                rest = after;
            }
        }
    }
    output.push_str(rest);
    output
}

/// Returns the names of variables in `input` that are not known: `subPathExpr` may not have any.
pub fn missing(input: &str, known: impl Fn(&str) -> bool) -> Vec<String> {
    let names = std::cell::RefCell::new(Vec::new());
    expand(input, |name| {
        if !known(name) {
            names.borrow_mut().push(name.to_owned());
        }
        None
    });
    names.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_variables_in_dollar_and_parentheses_are_replaced() {
        let lookup = |name: &str| match name {
            "VAR" => Some(Cow::from("value")),
            "EMPTY" => Some(Cow::from("")),
            "DOLLAR" => Some(Cow::from("$(VAR)")),
            _ => None,
        };
        for (sentence, input, expected) in [
            ("plain text stays", "text", "text"),
            ("a known name is replaced", "$(VAR)", "value"),
            ("anywhere, and often", "a$(VAR)b$(VAR)", "avaluebvalue"),
            ("a value may be empty", "[$(EMPTY)]", "[]"),
            ("an unknown name stays", "$(NOPE)", "$(NOPE)"),
            ("a doubled dollar is one", "$$(VAR)", "$(VAR)"),
            ("three are one and a variable", "$$$(VAR)", "$value"),
            ("four are two", "$$$$(VAR)", "$$(VAR)"),
            ("without an end it stays", "$(VAR", "$(VAR"),
            ("shell syntax stays", "$VAR ${VAR}", "$VAR ${VAR}"),
            ("a dollar at the end stays", "cost 5$", "cost 5$"),
            ("values are not expanded again", "$(DOLLAR)", "$(VAR)"),
            ("an empty name is unknown", "$()", "$()"),
            (
                "the name runs to the first parenthesis",
                "$($(VAR))",
                "$($(VAR))",
            ),
            ("other letters are left alone", "ü$(VAR)ü", "üvalueü"),
        ] {
            assert_eq!(expand(input, lookup), expected, "{sentence}");
        }
    }

    #[test]
    fn missing_names_are_listed() {
        assert_eq!(missing("$(A)/$(B)/$$(C)", |n| n == "A"), ["B"]);
    }
}
