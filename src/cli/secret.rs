//! `coracle secret encrypt`: writes manifests again with the content of their Secrets encrypted.

use std::io::{IsTerminal, Write as _};
use std::path::Path;
use std::process::ExitCode;

use super::args::SecretCommand;
use super::error::{CliError, Result};
use super::output::Target;
use super::{put, validate};
use crate::effects::credential;
use crate::spec::encrypted::{Manifest, credential as name_of};

pub(super) fn run(command: &SecretCommand) -> Result<ExitCode> {
    let SecretCommand::Encrypt {
        file,
        output,
        with_key,
    } = command;
    let text = encrypted(file, with_key.as_str())?;
    match output {
        None => put(text.as_bytes())?,
        Some(path) => write(path, text.as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The manifest with encrypted Secrets.
fn encrypted(path: &Path, key: &str) -> Result<String> {
    let stdin = path.as_os_str() == "-";
    if stdin && std::io::stdin().is_terminal() {
        eprintln!("Reading a manifest from the terminal; it ends with ctrl-d.");
    }
    let name = match stdin {
        true => "stdin".to_owned(),
        false => path.display().to_string(),
    };
    let failed = || CliError::new(format!("could not encrypt `{name}`"));
    let bytes = validate::read(path).map_err(|error| failed().because(error))?;
    if bytes.len() as u64 > validate::MAX_FILE {
        return Err(failed().because("larger than 10 MiB"));
    }
    let manifest = Manifest::read(&bytes, &name).map_err(|errors| {
        let because = |failure: CliError, error| failure.because(error);
        errors.iter().fold(failed(), because)
    })?;
    let parts = manifest.parts();
    if parts.is_empty() {
        let hint = "give it a manifest with `kind: Secret` and `data` or `stringData`";
        let error = failed().because("it has no Secret that is not encrypted already");
        return Err(error.hint(hint));
    }
    let mut ciphers = Vec::new();
    for part in &parts {
        let name = name_of(&part.namespace, &part.name);
        let cipher = credential::encrypt(part, &name, key).map_err(|error| {
            let secret = format!("secret {}/{}", part.namespace, part.name);
            failed().because(format!("{secret}: {error}"))
        })?;
        ciphers.push(cipher);
    }
    Ok(manifest.with(ciphers))
}

/// Writes a file as a whole or not at all, for its owner only.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = Target::create(path, 0o600).and_then(|mut target| {
        target.file.write_all(bytes)?;
        target.finish()
    });
    written.map_err(|error| {
        CliError::new(format!("could not write `{}`", path.display())).because(error)
    })
}
