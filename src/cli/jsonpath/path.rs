//! A path of a template, and the values it selects.

use serde_json::Value;

/// Steps from a value to other values.
#[derive(Debug, PartialEq)]
pub(super) struct Path(Vec<Step>);

#[derive(Debug, PartialEq)]
enum Step {
    /// `.a`, `['a\.b']`.
    Field(String),
    /// `['a.b']`: the field of that name, or else the path.
    FieldOrPath(String, Path),
    /// `[0]`, `[-1]`.
    Index(i64),
    /// `[1:3]`, `[::2]`.
    Slice(Option<i64>, Option<i64>, usize),
    /// `['a','b']`, `[0,2]`, `[0,2:4]`: what the first selects everywhere, then the next.
    Union(Vec<Path>),
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
                _ => steps.push(Step::Field(name)),
            }
        }
        Ok(Self(steps))
    }

    /// Selects values in order; what is not there selects nothing.
    pub(super) fn select<'v>(&self, root: &'v Value) -> Vec<&'v Value> {
        let steps = self.0.iter();
        steps.fold(vec![root], |values, step| step.all(values))
    }

    /// Selects values as kubectl does: a missing field selects nothing, a missing item of an array is an error.
    pub(super) fn find<'v>(&self, root: &'v Value) -> Result<Vec<&'v Value>, String> {
        self.find_below(vec![root])
    }

    fn find_below<'v>(&self, mut values: Vec<&'v Value>) -> Result<Vec<&'v Value>, String> {
        for step in &self.0 {
            for value in &values {
                step.check(value)?;
            }
            values = step.all(values);
        }
        Ok(values)
    }
}

impl Step {
    /// What it selects of all these values.
    fn all<'v>(&self, values: Vec<&'v Value>) -> Vec<&'v Value> {
        match self {
            Self::Union(paths) => {
                let of = |path: &Path| -> Vec<&'v Value> {
                    values.iter().flat_map(|value| path.select(value)).collect()
                };
                paths.iter().flat_map(of).collect()
            }
            _ => values.into_iter().flat_map(|v| self.of(v)).collect(),
        }
    }

    fn of<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        match self {
            Self::Field(name) => value.get(name).into_iter().collect(),
            Self::FieldOrPath(name, path) => match value.get(name) {
                Some(found) => vec![found],
                None => path.select(value),
            },
            Self::Union(paths) => paths.iter().flat_map(|path| path.select(value)).collect(),
            Self::All => children(value),
            Self::Below => below(value),
            Self::Index(index) => {
                let items = items(value);
                let at = usize::try_from(from_end(*index, items.len())).ok();
                at.and_then(|at| items.get(at)).into_iter().collect()
            }
            Self::Slice(from, to, step) => {
                let items = items(value);
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

    /// Refuses what kubectl's template engine refuses (client-go's `util/jsonpath`).
    fn check(&self, value: &Value) -> Result<(), String> {
        let array = || match value {
            Value::Array(items) => Ok(Some(items.len())),
            Value::Null => Ok(None),
            other => Err(format!("{} is not array or slice", kind(other))),
        };
        match self {
            Self::Index(index) => array()?.map_or(Ok(()), |length| {
                let at = from_end(*index, length);
                in_bounds(at, at, length)
            }),
            Self::Slice(from, to, _) => array()?.map_or(Ok(()), |length| {
                let end = i64::try_from(length).unwrap_or(i64::MAX);
                let from = from_end(from.unwrap_or(0), length);
                let to = from_end(to.unwrap_or(end), length);
                if from == to {
                    return Ok(());
                }
                let last = if to == 0 { from } else { to.saturating_sub(1) };
                in_bounds(from, last, length)?;
                match from > to {
                    true => Err(format!(
                        "starting index {from} is greater than ending index {to}"
                    )),
                    false => Ok(()),
                }
            }),
            Self::Union(paths) => paths.iter().try_for_each(|one| one.find(value).map(drop)),
            Self::Filter(path, Some(_)) => {
                let mut items = children(value).into_iter();
                items.try_for_each(|item| path.find(item).map(drop))
            }
            Self::Field(_)
            | Self::FieldOrPath(..)
            | Self::All
            | Self::Below
            | Self::Filter(_, None) => Ok(()),
        }
    }
}

/// Whether an array of this length has both places.
fn in_bounds(first: i64, last: i64, length: usize) -> Result<(), String> {
    let there = |at: &i64| usize::try_from(*at).is_ok_and(|at| at < length);
    match [first, last].iter().find(|at| !there(at)) {
        Some(at) => Err(format!(
            "array index out of bounds: index {at}, length {length}"
        )),
        None => Ok(()),
    }
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "map",
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
    let comma = end(inner, |c| c == ',');
    if comma < inner.len() {
        return union(inner);
    }
    if inner.starts_with(['\'', '"']) {
        return Some(quoted(&unquote(inner)?));
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
    inner.parse().ok().map(|index| Ok(Step::Index(index)))
}

/// Parses what is between `[` and `]` and has commas.
fn union(inner: &str) -> Option<Result<Step, String>> {
    let (mut paths, mut rest) = (Vec::new(), Some(inner));
    while let Some(text) = rest {
        let length = end(text, |c| c == ',');
        match bracket(&text[..length])? {
            Ok(step) => paths.push(Path(vec![step])),
            Err(what) => return Some(Err(what)),
        }
        rest = text.get(length + 1..);
    }
    Some(Ok(Step::Union(paths)))
}

/// Parses a name in quotes. kubectl reads it as a path, in which `\.` is a dot.
fn quoted(name: &str) -> Result<Step, String> {
    let plain = name.replace("\\.", ".");
    match field(name).1.is_empty() {
        true => Ok(Step::Field(plain)),
        false => Path::parse(&format!(".{name}")).map(|path| Step::FieldOrPath(plain, path)),
    }
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
