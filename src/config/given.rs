//! Values of settings: given values over defaults, read with their types; errors are collected.

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde::Deserialize;

use super::fields::{self, ZERO_IS_DEFAULT};
use super::layers::{Layers, Problem};
use super::values::{self, GoDuration};
use crate::spec::decode::decode;
use crate::spec::error::{Path, Report};
use crate::spec::parse;
use crate::spec::value::Value;

/// The settings with their defaults applied.
#[derive(Debug)]
pub(super) struct Given<'l> {
    pub(super) layers: &'l Layers,
    problems: RefCell<Vec<Problem>>,
}

impl<'l> Given<'l> {
    pub(super) fn new(layers: &'l Layers) -> Self {
        Self {
            layers,
            problems: RefCell::default(),
        }
    }

    pub(super) fn into_problems(self) -> Vec<Problem> {
        self.problems.into_inner()
    }

    /// Adds an error about the first of these fields that was given.
    pub(super) fn wrong(&self, paths: &[&str], message: impl Into<String>) {
        let problem = self.layers.problem(paths, message.into());
        self.problems.borrow_mut().push(problem);
    }

    /// Whether a value was given.
    pub(super) fn is_set(&self, path: &str) -> bool {
        self.layers
            .value(path)
            .is_some_and(|value| !is_default(path, &value))
    }

    /// Returns the value in force.
    pub(super) fn value(&self, path: &str) -> Value {
        let given = self.layers.value(path);
        given
            .filter(|value| !is_default(path, value))
            .unwrap_or_else(|| default(path))
    }

    /// Reads a value. A wrong type was reported when its layer was read, and counts as absent here.
    fn read<T: for<'de> Deserialize<'de> + Default>(&self, path: &str) -> T {
        let report = Report::new(0);
        decode(&self.value(path), &Path::Root, &report).unwrap_or_default()
    }

    pub(super) fn bool(&self, path: &str) -> bool {
        self.read(path)
    }

    pub(super) fn int(&self, path: &str) -> i64 {
        self.read(path)
    }

    pub(super) fn float(&self, path: &str) -> f64 {
        match self.value(path) {
            Value::Float(f) => f,
            Value::Int(i) => i as f64,
            _ => 0.0,
        }
    }

    pub(super) fn text(&self, path: &str) -> String {
        self.read(path)
    }

    pub(super) fn texts(&self, path: &str) -> Vec<String> {
        self.read(path)
    }

    pub(super) fn by_name(&self, path: &str) -> BTreeMap<String, String> {
        self.read(path)
    }

    pub(super) fn switches(&self, path: &str) -> BTreeMap<String, bool> {
        self.read(path)
    }

    pub(super) fn list<T: for<'de> Deserialize<'de>>(&self, path: &str) -> Vec<T> {
        self.read(path)
    }

    pub(super) fn map<T: for<'de> Deserialize<'de>>(&self, path: &str) -> BTreeMap<String, T> {
        self.read(path)
    }

    pub(super) fn duration(&self, path: &str) -> GoDuration {
        match self.value(path) {
            Value::String(text) => GoDuration::parse(&text).unwrap_or_default(),
            _ => GoDuration::default(),
        }
    }

    /// Returns whole units, rounded up; `None` if it is not a quantity.
    pub(super) fn quantity(&self, path: &str) -> Option<i128> {
        values::quantity(&self.value(path).scalar_text()?).ok()
    }
}

/// Whether the value means the same as leaving the field out.
fn is_default(path: &str, value: &Value) -> bool {
    let zero = match value {
        Value::Null => return true,
        Value::Int(i) => *i == 0,
        Value::String(text) => {
            text.is_empty() || GoDuration::parse(text).is_some_and(|d| d.nanos == 0)
        }
        Value::Bool(_) | Value::Float(_) | Value::List(_) | Value::Map(_) => false,
    };
    zero && ZERO_IS_DEFAULT.contains(&path)
}

/// Returns the default of a field; [`Value::Null`] if it has none.
pub(super) fn default(path: &str) -> Value {
    let written = fields::find(path).map_or("", |field| field.default);
    let parsed = parse::parse(written).unwrap_or_default();
    parsed.into_iter().next().unwrap_or(Value::Null)
}
