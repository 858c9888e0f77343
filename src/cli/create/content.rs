//! ConfigMaps and Secrets, from literals and files.

use std::collections::BTreeMap;
use std::path::Path;

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::super::args::CreateArgs;
use super::super::error::{CliError, Result};
use super::super::table::one_line;
use super::{document, needed, pair};
use crate::sys::file;
use crate::types::InOrder;

/// The most that a ConfigMap or a Secret holds, and so the most of a file that is read.
const MAX_BYTES: u64 = 1 << 20;

/// Keys and values.
type Content = BTreeMap<String, Vec<u8>>;

pub(super) fn config_map(args: &CreateArgs, _: &str) -> Result<Value> {
    let mut texts = json!({});
    let mut bytes = json!({});
    for (key, value) in content(args)? {
        match String::from_utf8(value) {
            Ok(text) => texts[key] = text.into(),
            Err(error) => bytes[key] = base64(error.into_bytes()),
        }
    }
    let mut map = document("v1", "ConfigMap", json!({ "data": texts }));
    if bytes != json!({}) {
        map["binaryData"] = bytes;
    }
    Ok(map)
}

pub(super) fn generic(args: &CreateArgs, _: &str) -> Result<Value> {
    let mut secret = secret(content(args)?);
    if let Some(kind) = &args.kind {
        secret["type"] = kind.as_str().into();
    }
    Ok(secret)
}

pub(super) fn tls(args: &CreateArgs, _: &str) -> Result<Value> {
    let mut content = Content::new();
    for (key, path, flag, word) in [
        ("tls.crt", &args.cert, "--cert", "CERTIFICATE-----"),
        ("tls.key", &args.key, "--key", "PRIVATE KEY-----"),
    ] {
        let path = needed(path.as_ref(), flag)?;
        let pem = read(path)?;
        if !String::from_utf8_lossy(&pem).contains(word) {
            let error = format!("{flag}: `{}` has no `{word}` in it", path.display());
            return Err(CliError::new(error).hint("both files are PEM"));
        }
        content.insert(key.to_owned(), pem);
    }
    let mut secret = secret(content);
    secret["type"] = "kubernetes.io/tls".into();
    Ok(secret)
}

pub(super) fn docker_registry(args: &CreateArgs, _: &str) -> Result<Value> {
    let user = needed(args.docker_username.as_ref(), "--docker-username")?;
    let password = needed(args.docker_password.as_ref(), "--docker-password")?;
    let server = args.docker_server.as_deref();
    let server = server.unwrap_or("https://index.docker.io/v1/");
    let auth = base64(format!("{user}:{password}").into_bytes());
    let mut login = json!({ "username": user, "password": password, "auth": auth });
    if let Some(email) = &args.docker_email {
        login["email"] = email.as_str().into();
    }
    let config = json!({ "auths": { server: login } }).to_string();
    let key = ".dockerconfigjson".to_owned();
    let mut secret = secret([(key, config.into_bytes())].into());
    secret["type"] = "kubernetes.io/dockerconfigjson".into();
    Ok(secret)
}

fn secret(content: Content) -> Value {
    let mut data = json!({});
    for (key, value) in content {
        data[key] = base64(value);
    }
    document("v1", "Secret", json!({ "data": data }))
}

fn base64(bytes: Vec<u8>) -> Value {
    // It is a string, so this cannot fail.
    serde_json::to_value(ByteString(bytes)).unwrap_or_default()
}

/// What literals and files say. A key that is there twice is an error.
fn content(args: &CreateArgs) -> Result<Content> {
    let mut content = Content::new();
    for literal in &args.from_literal {
        let (key, value) = pair(literal, "--from-literal")?;
        add(&mut content, key, value.as_bytes().to_vec())?;
    }
    for given in &args.from_file {
        match given.split_once('=') {
            Some((key, path)) if !key.is_empty() => add(&mut content, key, read(path.as_ref())?)?,
            Some(_) | None => from_path(given.as_ref(), &mut content)?,
        }
    }
    for path in &args.from_env_file {
        from_env_file(path, &mut content)?;
    }
    Ok(content)
}

fn add(content: &mut Content, key: &str, value: Vec<u8>) -> Result<()> {
    match content.insert(key.to_owned(), value) {
        None => Ok(()),
        Some(_) => Err(CliError::usage(format!("key `{key}` is given twice"))),
    }
}

/// A file under its own name, or all regular files of a directory: no links, as with kubectl.
fn from_path(path: &Path, content: &mut Content) -> Result<()> {
    let name = |path: &Path| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    };
    if !path.is_dir() {
        return add(content, &name(path), read(path)?);
    }
    let failed = |error| unread(path).because(error);
    let mut files = Vec::new();
    for entry in path.read_dir().map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_file() {
            files.push(entry.path());
        } else if kind.is_symlink() {
            let link = entry.path().display().to_string();
            let link = one_line(&link);
            eprintln!("warning: `{link}` is left out: it is a link; --from-file={link} takes it");
        }
    }
    files.order();
    for file in &files {
        add(content, &name(file), read(file)?)?;
    }
    Ok(())
}

/// Lines like KEY=VALUE, as docker reads them: a key alone has the value of this program's variable.
fn from_env_file(path: &Path, content: &mut Content) -> Result<()> {
    let text = String::from_utf8(read(path)?);
    let text = text.map_err(|_| unread(path).because("it is not UTF-8"))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let lines = text.lines().map(str::trim_start);
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.split_once('=') {
            Some((key, value)) => add(content, key, value.as_bytes().to_vec())?,
            None => {
                let value = std::env::var(line).unwrap_or_default();
                add(content, line, value.into_bytes())?;
            }
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    file::read_bounded(path, MAX_BYTES).map_err(|error| unread(path).because(error))
}

fn unread(path: &Path) -> CliError {
    CliError::new(format!("could not read `{}`", path.display()))
}
