//! What does `-o jsonpath={.status.phase}` print? The useful part of kubectl's templates: text, `{.a.b[0].c}`, `[*]`,
//! and quoted strings; several results are joined by spaces.

use serde_json::Value;

/// Evaluates a template.
pub(super) fn evaluate(template: &str, root: &Value) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = template;
    while let Some(start) = rest.find('{') {
        out.push_str(&rest[..start]);
        let end = rest[start..]
            .find('}')
            .ok_or_else(|| format!("`{rest}` lacks `}}`"))?;
        let inner = rest[start + 1..start + end].trim();
        rest = &rest[start + end + 1..];
        match inner.strip_prefix('"').and_then(|i| i.strip_suffix('"')) {
            Some(text) => out.push_str(&text.replace("\\n", "\n").replace("\\t", "\t")),
            None => {
                let found = select(inner, root)?;
                let texts: Vec<String> = found.iter().map(|v| show(v)).collect();
                out.push_str(&texts.join(" "));
            }
        }
    }
    out.push_str(rest);
    Ok(out)
}

fn show(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn select<'a>(path: &str, root: &'a Value) -> Result<Vec<&'a Value>, String> {
    let bad =
        || format!("cannot understand `{path}`: only `.field`, `[n]` and `[*]` are supported");
    let mut found = vec![root];
    let mut rest = path.trim_start_matches(['$', '@']);
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let (index, after) = inner.split_once(']').ok_or_else(bad)?;
            rest = after;
            found = match index {
                "*" => found.into_iter().flat_map(children).collect(),
                _ => {
                    let index: usize = index.parse().map_err(|_| bad())?;
                    found.into_iter().filter_map(|v| v.get(index)).collect()
                }
            };
        } else if let Some(inner) = rest.strip_prefix('.') {
            // A dot in a key is written `\.`.
            let end = (0..inner.len())
                .find(|&i| {
                    let at = inner.as_bytes()[i];
                    (at == b'.' || at == b'[') && (i == 0 || inner.as_bytes()[i - 1] != b'\\')
                })
                .unwrap_or(inner.len());
            let key = inner[..end].replace("\\.", ".");
            rest = &inner[end..];
            found = match key.as_str() {
                "" => found,
                "*" => found.into_iter().flat_map(children).collect(),
                key => found.into_iter().filter_map(|v| v.get(key)).collect(),
            };
        } else {
            return Err(bad());
        }
    }
    Ok(found)
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_mix_text_and_fields() {
        let root = serde_json::json!({ "items": [{ "n": "a" }, { "n": "b" }], "m": { "x.y": 3 } });
        let table = [
            ("{.items[*].n}", "a b"),
            ("<{.items[1].n}>{\"\\n\"}", "<b>\n"),
            ("{.m.x\\.y}", "3"),
            ("{.none}", ""),
        ];
        for (template, expected) in table {
            assert_eq!(evaluate(template, &root).unwrap(), expected);
        }
        assert!(evaluate("{.a", &root).is_err());
        assert!(evaluate("{range .items}", &root).is_err());
    }
}
