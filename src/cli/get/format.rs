//! The output formats: what `-o` may be.

use super::super::error::{CliError, Result};
use super::super::jsonpath;

/// The formats by name. What to print follows `=`.
pub(in crate::cli) const FORMAT_WORDS: [&str; 6] = [
    "json",
    "yaml",
    "wide",
    "name",
    "jsonpath=",
    "custom-columns=",
];

/// A format, with what it prints.
#[derive(Debug, PartialEq)]
pub(super) enum Format {
    Table,
    Wide,
    Json,
    Yaml,
    Name,
    JsonPath(jsonpath::Template),
    Columns(Vec<(String, jsonpath::Column)>),
}

impl Format {
    pub(super) fn parse(given: Option<&str>) -> Result<Self> {
        let (word, rest) = match given.unwrap_or_default().split_once('=') {
            Some((word, rest)) => (word, Some(rest)),
            None => (given.unwrap_or_default(), None),
        };
        Ok(match (word, rest) {
            ("", None) => Self::Table,
            ("wide", None) => Self::Wide,
            ("json", None) => Self::Json,
            ("yaml", None) => Self::Yaml,
            ("name", None) => Self::Name,
            ("jsonpath", Some(template)) => {
                Self::JsonPath(jsonpath::Template::parse(template).map_err(CliError::usage)?)
            }
            ("custom-columns", Some(columns)) => Self::Columns(custom_columns(columns)?),
            ("jsonpath" | "custom-columns", None) => {
                return Err(
                    CliError::usage(format!("`-o {word}` needs what to print")).hint(
                        "-o jsonpath='{.metadata.name}', -o custom-columns=NAME:.metadata.name",
                    ),
                );
            }
            (
                "go-template"
                | "template"
                | "go-template-file"
                | "templatefile"
                | "jsonpath-file"
                | "jsonpath-as-json"
                | "custom-columns-file"
                | "kyaml",
                _,
            ) => {
                return Err(CliError::usage(format!(
                    "output format `{word}` of kubectl is not supported"
                ))
                .hint(FORMATS));
            }
            _ => {
                let word = given.unwrap_or_default();
                return Err(
                    CliError::usage(format!("unknown output format `{word}`")).hint(FORMATS)
                );
            }
        })
    }
}

const FORMATS: &str =
    "one of wide, json, yaml, name, jsonpath=TEMPLATE, custom-columns=TITLE:PATH,…";

/// Parses `NAME:.metadata.name,IMAGES:.spec.containers[*].image`.
fn custom_columns(text: &str) -> Result<Vec<(String, jsonpath::Column)>> {
    let column = |column: &str| {
        let bad = |why: String| {
            CliError::usage(format!("`{column}` is no column: {why}"))
                .hint("write each as TITLE:PATH")
        };
        let pair = column
            .split_once(':')
            .filter(|(title, _)| !title.is_empty());
        let (title, path) = pair.ok_or_else(|| bad("it has no title and path".to_owned()))?;
        let path = jsonpath::Column::parse(path).map_err(bad)?;
        Ok((title.to_owned(), path))
    };
    jsonpath::split_columns(text)
        .into_iter()
        .map(column)
        .collect()
}
