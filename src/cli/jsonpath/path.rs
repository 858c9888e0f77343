//! A path of a template, and the values it selects.

use serde_json::Value;

/// Steps from a value to other values.
#[derive(Debug, PartialEq)]
pub(super) struct Path(Vec<Step>);

#[derive(Debug, PartialEq)]
enum Step {
    /// `.a`, `['a','b']`.
    Fields(Vec<String>),
    /// `[0]`, `[-1]`, `[0,2]`.
    Indices(Vec<i64>),
    /// `[1:3]`, `[::2]`.
    Slice(Option<i64>, Option<i64>, usize),
    /// `[*]`, `.*`.
    All,
    /// `..`: the value and all values below it.
    Below,
    /// `[?(@.x=="y")]`.
    Filter(Path, Option<(Operator, Value)>),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Longer operators first, so that a prefix does not match.
const OPERATORS: [(&str, Operator); 6] = [
    ("==", Operator::Equal),
    ("!=", Operator::NotEqual),
    ("<=", Operator::LessOrEqual),
    (">=", Operator::GreaterOrEqual),
    ("<", Operator::Less),
    (">", Operator::Greater),
];

impl Path {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let bad = |what: &str| {
            format!(
                "cannot understand `{what}` in `{text}`: a path is written as .field, ['field'], [0], [1:3], [*], ..field or \
                 [?(@.field==\"value\")]"
            )
        };
        let mut rest = text.strip_prefix(['$', '@']).unwrap_or(text);
        let mut steps = Vec::new();
        while !rest.is_empty() {
            if let Some(inner) = rest.strip_prefix('[') {
                let length = end(inner, |c| c == ']');
                if length == inner.len() {
                    return Err(bad(rest));
                }
                let step = bracket(&inner[..length]).ok_or_else(|| bad(&rest[..length + 2]))?;
                steps.push(step.map_err(|what| bad(&what))?);
                rest = &inner[length + 1..];
                continue;
            }
            let Some(inner) = rest.strip_prefix('.') else {
                return Err(bad(rest));
            };
            rest = inner;
            if let Some(below) = inner.strip_prefix('.') {
                steps.push(Step::Below);
                rest = below;
            }
            let (name, after) = field(rest);
            rest = after;
            match name.as_str() {
                "" => {}
                "*" => steps.push(Step::All),
                _ => steps.push(Step::Fields(vec![name])),
            }
        }
        Ok(Self(steps))
    }

    /// Selects values in order.
    pub(super) fn select<'v>(&self, root: &'v Value) -> Vec<&'v Value> {
        let mut found = vec![root];
        for step in &self.0 {
            found = found.into_iter().flat_map(|value| step.of(value)).collect();
        }
        found
    }
}

impl Step {
    fn of<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        match self {
            Self::Fields(names) => names.iter().filter_map(|name| value.get(name)).collect(),
            Self::All => children(value),
            Self::Below => below(value),
            Self::Indices(indices) => {
                let items = value.as_array().map_or(&[][..], Vec::as_slice);
                let at =
                    |index: &i64| items.get(usize::try_from(from_end(*index, items.len())).ok()?);
                indices.iter().filter_map(at).collect()
            }
            Self::Slice(from, to, step) => {
                let items = value.as_array().map_or(&[][..], Vec::as_slice);
                let place = |index: i64| {
                    let place = from_end(index, items.len()).max(0);
                    usize::try_from(place).unwrap_or(0).min(items.len())
                };
                let (from, to) = (from.map_or(0, place), to.map_or(items.len(), place));
                let slice = items.get(from..to).unwrap_or_default();
                slice.iter().step_by(*step).collect()
            }
            Self::Filter(path, test) => {
                let holds = |item: &&Value| {
                    let found = path.select(item);
                    match test {
                        None => !found.is_empty(),
                        Some((operator, wanted)) => {
                            found.iter().any(|value| operator.holds(value, wanted))
                        }
                    }
                };
                children(value).into_iter().filter(holds).collect()
            }
        }
    }
}

impl Operator {
    fn holds(self, value: &Value, wanted: &Value) -> bool {
        let order = match (value, wanted) {
            (Value::Number(one), Value::Number(other)) => one.as_f64().partial_cmp(&other.as_f64()),
            (Value::String(one), Value::String(other)) => Some(one.cmp(other)),
            _ if value == wanted => Some(std::cmp::Ordering::Equal),
            _ => None,
        };
        match self {
            Self::Equal => order.is_some_and(|o| o.is_eq()),
            Self::NotEqual => order.is_none_or(|o| o.is_ne()),
            Self::Less => order.is_some_and(|o| o.is_lt()),
            Self::LessOrEqual => order.is_some_and(|o| o.is_le()),
            Self::Greater => order.is_some_and(|o| o.is_gt()),
            Self::GreaterOrEqual => order.is_some_and(|o| o.is_ge()),
        }
    }
}

/// Parses what is between `[` and `]`; the inner error names what a filter does not understand.
fn bracket(inner: &str) -> Option<Result<Step, String>> {
    let inner = inner.trim();
    if inner == "*" {
        return Some(Ok(Step::All));
    }
    if let Some(test) = inner.strip_prefix("?(") {
        return Some(filter(test.strip_suffix(')')?));
    }
    if inner.starts_with(['\'', '"']) {
        let mut names = Vec::new();
        let mut rest = inner;
        while !rest.is_empty() {
            let length = end(rest, |c| c == ',');
            names.push(unquote(rest[..length].trim())?.replace("\\.", "."));
            rest = rest[length..].trim_start_matches(',').trim_start();
        }
        return Some(Ok(Step::Fields(names)));
    }
    if inner.contains(':') {
        let parts: Vec<&str> = inner.split(':').map(str::trim).collect();
        let number = |text: &str| match text {
            "" => Some(None),
            _ => text.parse::<i64>().ok().map(Some),
        };
        let (from, to) = (number(parts[0])?, number(parts[1])?);
        let step = number(parts.get(2).copied().unwrap_or_default())?.unwrap_or(1);
        let step = usize::try_from(step)
            .ok()
            .filter(|step| *step > 0 && parts.len() < 4)?;
        return Some(Ok(Step::Slice(from, to, step)));
    }
    let indices = inner.split(',').map(|index| index.trim().parse().ok());
    indices
        .collect::<Option<Vec<i64>>>()
        .map(|all| Ok(Step::Indices(all)))
}

/// Parses a filter: `@.x=="y"`, `@.x`.
fn filter(test: &str) -> Result<Step, String> {
    let test = test.trim();
    let at = end(test, |c| "=!<>~".contains(c));
    let path = Path::parse(test[..at].trim())?;
    if at == test.len() {
        return Ok(Step::Filter(path, None));
    }
    let found = OPERATORS
        .iter()
        .find(|(sign, _)| test[at..].starts_with(sign));
    let understood = found.and_then(|(sign, operator)| {
        let wanted = test[at + sign.len()..].trim();
        let wanted = match wanted.starts_with(['\'', '"']) {
            true => Value::String(unquote(wanted)?),
            false => serde_json::from_str(wanted).ok()?,
        };
        Some(Step::Filter(path, Some((*operator, wanted))))
    });
    understood.ok_or_else(|| test.to_owned())
}

/// Parses a field name at the beginning, in which `\.` is a dot; returns it and the rest.
fn field(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '.' | '[' => return (name, &text[at..]),
            '\\' if chars.peek().is_some() => name.extend(chars.next().map(|(_, c)| c)),
            _ => name.push(c),
        }
    }
    (name, "")
}

/// Unquotes a string by Go's rules; `None` if the quotes do not match.
pub(super) fn unquote(text: &str) -> Option<String> {
    let quote = text.chars().next()?;
    let inner = text.strip_prefix(quote)?.strip_suffix(quote)?;
    let mut out = String::new();
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            _ if c == quote => return None,
            '\\' => match chars.next()? {
                'n' => out.push('\n'),
                't' => out.push('\t'),
                'r' => out.push('\r'),
                // An escaped dot of a key stays escaped for the key parser.
                '.' => out.push_str("\\."),
                other => out.push(other),
            },
            _ => out.push(c),
        }
    }
    Some(out)
}

/// Finds the first wanted character outside quotes and brackets; the length if there is none.
pub(super) fn end(text: &str, wanted: impl Fn(char) -> bool) -> usize {
    find(text, true, wanted)
}

/// Finds the first wanted character outside quotes; the length if there is none.
pub(super) fn end_of_quotes(text: &str, wanted: impl Fn(char) -> bool) -> usize {
    find(text, false, wanted)
}

fn find(text: &str, brackets: bool, wanted: impl Fn(char) -> bool) -> usize {
    let (mut quote, mut depth, mut escaped) = (None, 0_u32, false);
    for (at, c) in text.char_indices() {
        match quote {
            _ if escaped => escaped = false,
            _ if c == '\\' => escaped = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if depth == 0 && wanted(c) => return at,
            None if c == '"' || c == '\'' => quote = Some(c),
            None if brackets && "[(".contains(c) => depth += 1,
            None if brackets && "])".contains(c) => depth = depth.saturating_sub(1),
            None => {}
        }
    }
    text.len()
}

fn from_end(index: i64, length: usize) -> i64 {
    match index < 0 {
        true => index.saturating_add_unsigned(length as u64),
        false => index,
    }
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => Vec::new(),
    }
}

/// Returns a value and all values below it, itself first.
fn below(value: &Value) -> Vec<&Value> {
    let mut found = vec![value];
    for child in children(value) {
        found.extend(below(child));
    }
    found
}
