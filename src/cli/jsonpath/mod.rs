//! kubectl's JSONPath templates (<https://kubernetes.io/docs/reference/kubectl/jsonpath/>): text, `{.a.b}`, `{range
//! …}{end}` and quoted strings; paths with `[0]`, `[-1]`, `[1:3]`, `['a','b']`, `[*]`, `..` and `[?(@.x=="y")]`. A
//! missing field prints nothing, a missing item of an array is an error; several results are joined by spaces.

use serde_json::Value;

mod path;

use path::{Path, unquote};

/// A parsed template.
#[derive(Debug, PartialEq)]
pub(super) struct Template(Vec<Part>);

#[derive(Debug, PartialEq)]
enum Part {
    Text(String),
    Paths(Vec<Path>),
    Range(Path, Vec<Part>),
}

impl Template {
    /// Parses a template; the error names what is not understood.
    pub(super) fn parse(template: &str) -> Result<Self, String> {
        let mut rest = template;
        let parts = parts(&mut rest, 0)?;
        Ok(Self(parts))
    }

    /// Prints the template for a value; the error is kubectl's, of an array that has no such item.
    pub(super) fn print(&self, root: &Value) -> Result<String, String> {
        let mut out = String::new();
        print(&self.0, root, &Path::find, &mut out)?;
        Ok(out)
    }

    /// Prints the template for a value that is not complete yet: what is missing prints nothing.
    pub(super) fn print_so_far(&self, root: &Value) -> String {
        let mut out = String::new();
        // Nothing is missing that `select` would miss.
        let _ = print(&self.0, root, &|path, root| Ok(path.select(root)), &mut out);
        out
    }
}

/// One column of `custom-columns`.
#[derive(Debug, PartialEq)]
pub(super) struct Column(Path);

impl Column {
    /// Parses a path, with or without its braces and first dot.
    pub(super) fn parse(path: &str) -> Result<Self, String> {
        let bare = path.trim();
        let bare = bare
            .strip_prefix('{')
            .and_then(|inner| inner.strip_suffix('}'))
            .unwrap_or(bare);
        let dotted = match bare.starts_with(['.', '[', '$', '@']) {
            true => bare.to_owned(),
            false => format!(".{bare}"),
        };
        Path::parse(&dotted).map(Self)
    }

    /// Returns the first value.
    pub(super) fn first<'v>(&self, root: &'v Value) -> Option<&'v Value> {
        self.0.select(root).into_iter().next()
    }

    /// Returns the values, joined by commas; `<none>` if there are none.
    pub(super) fn cell(&self, root: &Value) -> String {
        let texts: Vec<String> = self.0.select(root).into_iter().map(show).collect();
        match texts.is_empty() {
            true => "<none>".to_owned(),
            false => texts.join(","),
        }
    }
}

/// Splits `custom-columns` at the commas between columns.
pub(super) fn split_columns(text: &str) -> Vec<&str> {
    let (mut found, mut rest) = (Vec::new(), text);
    loop {
        let end = path::end(rest, |c| c == ',');
        found.push(rest[..end].trim());
        match rest.get(end + 1..) {
            Some(after) => rest = after,
            None => return found,
        }
    }
}

/// Maximum nesting of ranges.
const DEEPEST: usize = 16;

/// Parses parts up to the end, or in a range up to its `{end}`. `depth` is the number of ranges around.
fn parts(rest: &mut &str, depth: usize) -> Result<Vec<Part>, String> {
    let (inside, mut found) = (depth > 0, Vec::new());
    if depth > DEEPEST {
        return Err(format!("more than {DEEPEST} nested `{{range}}`s"));
    }
    while let Some(start) = rest.find('{') {
        if start > 0 {
            found.push(Part::Text(rest[..start].to_owned()));
        }
        let from = &rest[start + 1..];
        let end = closing(from).ok_or_else(|| format!("`{}` lacks `}}`", &rest[start..]))?;
        let inner = from[..end].trim();
        *rest = &from[end + 1..];
        let range = inner
            .strip_prefix("range")
            .filter(|path| path.starts_with([' ', '.', '[', '$', '@']));
        if inner == "end" {
            return match inside {
                true => Ok(found),
                false => Err("`{end}` without `{range}`".to_owned()),
            };
        }
        found.push(match range {
            Some(path) => Part::Range(Path::parse(path.trim())?, parts(rest, depth + 1)?),
            None => actions(inner)?,
        });
    }
    if inside {
        return Err("`{range}` without `{end}`".to_owned());
    }
    if !rest.is_empty() {
        found.push(Part::Text((*rest).to_owned()));
    }
    Ok(found)
}

/// Parses a quoted string, or paths separated by spaces.
fn actions(inner: &str) -> Result<Part, String> {
    if inner.starts_with(['"', '\'']) {
        let text = unquote(inner);
        return text
            .map(Part::Text)
            .ok_or_else(|| format!("cannot understand `{inner}`: its quotes do not match"));
    }
    let mut paths = Vec::new();
    let mut rest = inner;
    while !rest.is_empty() {
        let end = path::end(rest, |c| c == ' ');
        paths.push(Path::parse(&rest[..end])?);
        rest = rest[end..].trim_start();
    }
    Ok(Part::Paths(paths))
}

/// Finds the `}` that closes a `{`, outside quotes.
fn closing(text: &str) -> Option<usize> {
    let end = path::end_of_quotes(text, |c| c == '}');
    (end < text.len()).then_some(end)
}

/// How the values of a path are found.
type Find = dyn for<'v> Fn(&Path, &'v Value) -> Result<Vec<&'v Value>, String>;

fn print(parts: &[Part], root: &Value, find: &Find, out: &mut String) -> Result<(), String> {
    for part in parts {
        match part {
            Part::Text(text) => out.push_str(text),
            Part::Paths(paths) => {
                let mut texts = Vec::new();
                for path in paths {
                    texts.extend(find(path, root)?.into_iter().map(show));
                }
                out.push_str(&texts.join(" "));
            }
            Part::Range(path, body) => {
                for value in find(path, root)? {
                    print(body, value, find, out)?;
                }
            }
        }
    }
    Ok(())
}

fn show(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluate(template: &str, root: &Value) -> Result<String, String> {
        Template::parse(template)?.print(root)
    }

    fn root() -> Value {
        serde_json::json!({
            "kind": "List",
            "items": [
                { "metadata": { "name": "a", "labels": { "example.com/app": "web" } }, "n": 1, "ready": true,
                  "c": [{ "image": "x:1", "name": "one" }, { "image": "y:2", "name": "two" }] },
                { "metadata": { "name": "b" }, "n": 2, "ready": false, "c": [{ "image": "z", "name": "}" }] },
            ],
            "m": { "x.y": 3 },
        })
    }

    #[test]
    fn templates_print_what_kubectl_prints() {
        for (template, expected) in [
            ("{.items[*].metadata.name}", "a b"),
            ("<{.items[1].metadata.name}>{\"\\n\"}", "<b>\n"),
            ("{.m.x\\.y}", "3"),
            ("{.m['x.y']}", "3"),
            ("{.items[0].metadata.labels.example\\.com/app}", "web"),
            ("{.items[0].metadata.labels['example\\.com/app']}", "web"),
            ("{.none}", ""),
            ("{.items[-1].metadata.name}", "b"),
            ("{.items[-2:].n}", "1 2"),
            ("{.items[0:1].n}", "1"),
            ("{.items[0,1].n}", "1 2"),
            ("{.items[0]['n','ready']}", "1 true"),
            ("{.items[0]['n', 'none']}", "1"),
            ("{.items[*]['metadata.name', 'n']}", "a b 1 2"),
            ("{.items[*].c[0,-1].name}", "one } two }"),
            ("{.items[0].c[0,0:2].name}", "one one two"),
            ("{.items[::2].n}", "1"),
            ("{.items[1:1].n}", ""),
            ("{.none[3]}", ""),
            ("{.kind} {.items[0].n}", "List 1"),
            ("{.kind .items[0].n}", "List 1"),
            ("{$.kind}", "List"),
            (
                "{.items[0].metadata.labels}",
                r#"{"example.com/app":"web"}"#,
            ),
            ("{..image}", "x:1 y:2 z"),
            ("{.items..name}", "one two a } b"),
            ("{.items[?(@.metadata.name==\"b\")].n}", "2"),
            ("{.items[?(@.metadata.name!='b')].n}", "1"),
            ("{.items[?(@.n>1)].metadata.name}", "b"),
            ("{.items[?(@.n <= 1)].metadata.name}", "a"),
            ("{.items[?(@.ready==true)].metadata.name}", "a"),
            ("{.items[?(@.metadata.labels)].metadata.name}", "a"),
            ("{.items[?(@.c[0].name==\"}\")].n}", "2"),
            (
                "{range .items[*]}{.metadata.name}{\"\\t\"}{.n}{\"\\n\"}{end}",
                "a\t1\nb\t2\n",
            ),
            (
                "{range .items[*]}[{range .c[*]}{.image},{end}]{end}.",
                "[x:1,y:2,][z,].",
            ),
            ("{range .items[?(@.n==2)]}{@.metadata.name}{'!'}{end}", "b!"),
            ("{range.items[*]}{.n}{end}", "12"),
            ("plain", "plain"),
            ("{\"a\\\"}b\"}", "a\"}b"),
        ] {
            assert_eq!(
                evaluate(template, &root()).as_deref(),
                Ok(expected),
                "{template}"
            );
        }
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (template, words) in [
            ("{.a", "lacks `}`"),
            ("{range .items[*]}{.n}", "`{range}` without `{end}`"),
            ("{.n}{end}", "`{end}` without `{range}`"),
            ("{.items[x]}", "`[x]`"),
            ("{.items[?(@.n~1)]}", "`@.n~1`"),
            ("{.items[?@.n]}", "`[?@.n]`"),
            ("{.items[0}", "`[0`"),
            ("{\"a}", "lacks `}`"),
            ("{items}", "`items`"),
        ] {
            let error = evaluate(template, &root()).unwrap_err();
            assert!(error.contains(words), "{template}: {error}");
        }
    }

    #[test]
    fn a_missing_item_of_an_array_is_an_error_as_in_kubectl() {
        for (template, expected) in [
            (
                "{.items[7].n}",
                "array index out of bounds: index 7, length 2",
            ),
            (
                "{.items[-3].n}",
                "array index out of bounds: index -1, length 2",
            ),
            (
                "{.items[0,2].n}",
                "array index out of bounds: index 2, length 2",
            ),
            (
                "{.items[0:5].n}",
                "array index out of bounds: index 4, length 2",
            ),
            (
                "{.items[1:0].n}",
                "starting index 1 is greater than ending index 0",
            ),
            (
                "{.items[*].c[1].name}",
                "array index out of bounds: index 1, length 1",
            ),
            (
                "{range .items[*]}{.c[1].name}{end}",
                "array index out of bounds: index 1, length 1",
            ),
            (
                "{.items[?(@.c[1].name=='two')].n}",
                "array index out of bounds: index 1, length 1",
            ),
            ("{.kind[0]}", "string is not array or slice"),
            ("{.m[0]}", "map is not array or slice"),
        ] {
            let root = root();
            let parsed = Template::parse(template).expect(template);
            assert_eq!(parsed.print(&root).unwrap_err(), expected, "{template}");
            assert!(!parsed.print_so_far(&root).contains('z'), "{template}");
        }
    }

    #[test]
    fn a_column_is_a_path_with_or_without_its_braces() {
        let item = &root()["items"][0];
        for (path, expected) in [
            (".metadata.name", "a"),
            ("metadata.name", "a"),
            ("{.metadata.name}", "a"),
            (".c[*].image", "x:1,y:2"),
            (".none", "<none>"),
            (".c[5].image", "<none>"),
        ] {
            assert_eq!(
                Column::parse(path).expect(path).cell(item),
                expected,
                "{path}"
            );
        }
    }

    #[test]
    fn deep_and_long_templates_end() {
        let deep = "{range .a}".repeat(20_000);
        assert!(evaluate(&deep, &root()).is_err());
    }
}
