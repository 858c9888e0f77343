//! `coracle image pull`.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::args::PullArgs;
use super::client::Client;
use super::error::{CliError, Result};
use super::put;
use crate::images::registry::{AuthFile, Credentials};
use crate::spec::ImageName;

const PULL: &str = "/coracle/v1/images/pull";

/// The digits of a digest that are shown.
const SHORT: usize = 12;

pub(super) fn run(client: &Client, args: &PullArgs) -> Result<ExitCode> {
    let failed = || CliError::new(format!("could not pull `{}`", args.name));
    let image = ImageName::parse(&args.name).map_err(|why| failed().because(why))?;
    let login = match &args.authfile {
        Some(file) => from_file(file, &image).map_err(|why| failed().because(why))?,
        None if args.creds_stdin => Some(from_input().map_err(|why| failed().because(why))?),
        None => None,
    };
    let mut asked = json!({ "name": args.name, "platform": args.platform });
    if let Some(login) = login {
        asked["credentials"] = json!({ "username": login.username, "password": login.password });
    }
    let response = client.send("POST", PULL, Some(&asked))?;
    let as_json = args.output.is_some();
    let mut bars = Bars::new(!args.quiet && !as_json);
    for line in response.body.lines() {
        let line = line.map_err(|why| failed().because(why))?;
        let step: Value = serde_json::from_str(&line).unwrap_or_default();
        if as_json {
            put(format!("{line}\n").as_bytes())?;
        }
        match step["type"].as_str() {
            Some("progress") => bars.show(&step),
            Some("image") => {
                bars.clear();
                for warning in step["warnings"].as_array().into_iter().flatten() {
                    eprintln!("warning: {}", warning.as_str().unwrap_or_default());
                }
                if !as_json {
                    let id = step["id"].as_str().unwrap_or_default();
                    put(format!("{id}\n").as_bytes())?;
                }
                return Ok(ExitCode::SUCCESS);
            }
            Some("error") => {
                bars.clear();
                let error = failed().because(step["message"].as_str().unwrap_or("unknown reason"));
                return Err(match step["hint"].as_str() {
                    Some(hint) => error.hint(hint),
                    None => error,
                });
            }
            _ => {}
        }
    }
    Err(failed()
        .because("the agent stopped before the pull was done")
        .hint("pull again: what has arrived is not downloaded a second time"))
}

/// The credentials of a file that the user names. Other than the node's, it must exist.
fn from_file(file: &Path, image: &ImageName) -> std::result::Result<Option<Credentials>, String> {
    let shown = file.display();
    let found = AuthFile::read(file).map_err(|why| format!("`{shown}`: {}", crate::chain(&why)))?;
    let found = found.ok_or_else(|| format!("`{shown}`: no such file"))?;
    found
        .credentials(image)
        .map_err(|why| format!("`{shown}`: {why}"))
}

/// `user:password` from standard input.
fn from_input() -> std::result::Result<Credentials, String> {
    use std::io::Read as _;
    let mut text = String::new();
    let read = std::io::stdin()
        .lock()
        .take(64 << 10)
        .read_to_string(&mut text);
    read.map_err(|why| why.to_string())?;
    let (username, password) = text
        .trim_end_matches(['\r', '\n'])
        .split_once(':')
        .ok_or("standard input has no `user:password`")?;
    Ok(Credentials {
        username: username.to_owned(),
        password: password.to_owned(),
    })
}

/// A bar for each layer, on a terminal; a line for each on anything else.
pub(super) struct Bars {
    shown: bool,
    terminal: bool,
    all: MultiProgress,
    bars: BTreeMap<String, ProgressBar>,
}

impl Bars {
    pub(super) fn new(shown: bool) -> Self {
        Self {
            shown,
            terminal: std::io::stderr().is_terminal(),
            all: MultiProgress::new(),
            bars: BTreeMap::new(),
        }
    }

    pub(super) fn show(&mut self, step: &Value) {
        if !self.shown {
            return;
        }
        let (key, what) = what(step);
        if !self.bars.contains_key(&key) {
            let bar = match self.terminal {
                true => self.all.add(new_bar(&what)),
                false => {
                    eprintln!("{what}");
                    ProgressBar::hidden()
                }
            };
            self.bars.insert(key.clone(), bar);
        }
        let Some(bar) = self.bars.get(&key) else {
            return;
        };
        let number = |field: &str| step[field].as_u64().unwrap_or(0);
        bar.set_length(number("total_bytes"));
        bar.set_position(number("done_bytes"));
        if number("done_bytes") == number("total_bytes") && self.terminal {
            bar.abandon_with_message(format!("{what} done"));
        }
    }

    pub(super) fn clear(&mut self) {
        for bar in self.bars.values().filter(|bar| !bar.is_finished()) {
            bar.abandon();
        }
    }
}

/// What a step is about: a key, and its words.
fn what(step: &Value) -> (String, String) {
    let stage = step["stage"].as_str().unwrap_or("working");
    if let Some(digest) = step["blob"].as_str() {
        let hex = digest.strip_prefix("sha256:").unwrap_or(digest);
        let short: String = hex.chars().take(SHORT).collect();
        return (digest.to_owned(), format!("Copying blob {short}"));
    }
    let (layer, layers) = (step["layer"].as_u64(), step["layers"].as_u64());
    let (layer, layers) = (layer.unwrap_or(0), layers.unwrap_or(0));
    let words = match stage {
        "unpack" => format!("Unpacking layer {layer}/{layers}"),
        other => other.to_owned(),
    };
    (format!("{stage} {layer}"), words)
}

fn new_bar(what: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} [{wide_bar:.}] {bytes} / {total_bytes}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::no_length().with_style(style.progress_chars("=> "));
    bar.with_message(what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_layer_has_words_of_its_own() {
        let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
        for (step, expected) in [
            (
                json!({ "stage": "download", "blob": digest }),
                "Copying blob 0123456789ab",
            ),
            (
                json!({ "stage": "unpack", "layer": 2, "layers": 3 }),
                "Unpacking layer 2/3",
            ),
            (json!({}), "working"),
        ] {
            assert_eq!(what(&step).1, expected);
        }
    }
}
