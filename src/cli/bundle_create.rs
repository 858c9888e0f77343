//! `coracle bundle create`: pulls what the manifests name, and writes all of it into one archive. It needs no agent.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::args::{BundleCreateArgs, Pull};
use super::client::Client;
use super::error::{CliError, Result};
use super::output::{Target, is_written_through};
use super::pull::Bars;
use super::{put, save, validate};
use crate::api::encode;
use crate::config::{Config, Effective, Files, Registries};
use crate::images::registry::{AuthFile, PullOptions, RegistriesConf, Source, fetch_layout};
use crate::images::trust::PrivateKey;
use crate::images::{
    self, ImageError, ImageStore, NewBundle, NewImage, check_file_name, write_bundle,
};
use crate::layout::Layout;
use crate::spec::{ImageName, PodSpec};
use crate::sys::tree;

/// The exit code of a request for what is not there.
const NOT_FOUND: u8 = 3;

/// The binary of image workers: the running one.
const WORKER: &str = "/proc/self/exe";

pub(super) fn run(client: &Client, args: &BundleCreateArgs) -> Result<ExitCode> {
    let shown = args.output.display();
    let failed = || CliError::new(format!("could not make bundle `{shown}`"));
    let name = match &args.name {
        Some(name) => name.clone(),
        None => name_of(&args.output),
    };
    crate::images::check_name(&name).map_err(|why| {
        failed()
            .because(format!("`{name}` cannot be its name: {why}"))
            .hint("give it one by --name")
    })?;
    let sign_by = match &args.sign_by {
        Some(path) => Some(PrivateKey::read(path).map_err(|why| {
            let failed = failed().because(crate::chain(&why));
            match why.hint() {
                Some(hint) => failed.hint(hint),
                None => failed,
            }
        })?),
        None => None,
    };
    if args.output == Path::new("-") && io::stdout().is_terminal() {
        return Err(failed()
            .because("the standard output is a terminal")
            .hint("name a file (`-o site.tar`), or pipe the archive on"));
    }
    let (files, wanted) = read(args)?;
    // There is no place beside a device.
    let through = is_written_through(&args.output);
    let parts = match through {
        true => PathBuf::from(format!("{name}.parts")),
        false => beside(&args.output, ".parts"),
    };
    let mut images = Vec::new();
    let settings = Files::new(None, None).read();
    let settings = settings.and_then(|files| Effective::build(&files, &[]));
    let Config {
        registries, layout, ..
    } = settings.map_err(|why| CliError::of(&why))?.config;
    for (image, written) in wanted {
        let stored = Stored {
            client,
            layout: &layout,
            file: parts.join(format!("stored-{}.tar", images.len())),
        };
        if let Some(layout) = stored.take(args, &image)? {
            images.push(NewImage {
                name: image,
                layout,
            });
            continue;
        }
        eprintln!("fetching {image}");
        let layout = fetch(&registries, args, &parts, (&image, &written)).map_err(|error| {
            let failed = failed().because(format!("image `{written}`: {}", crate::chain(&error)));
            match error.hint() {
                Some(hint) => failed.hint(hint),
                None => failed,
            }
        })?;
        images.push(NewImage {
            name: image,
            layout,
        });
    }
    let bundle = NewBundle {
        name,
        files,
        images,
        platform: args.platform.clone(),
        sign_by,
    };
    let digest = write(&bundle, &args.output)?;
    tree::remove(&parts).map_err(|why| {
        failed().because(format!("could not remove `{}`: {why}", parts.display()))
    })?;
    match through {
        // The archive may be there.
        true => eprintln!("{digest}"),
        false => put(format!("{digest}\n").as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The name of an archive without its extension.
fn name_of(output: &Path) -> String {
    let stem = output.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

/// A path beside another, with more at the end of its name.
fn beside(path: &Path, more: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(more);
    path.with_file_name(name)
}

/// Name and content of each file, and each image in full and as a manifest writes it.
type Read = (Vec<(String, Vec<u8>)>, BTreeMap<String, String>);

/// Reads and checks the manifests.
fn read(args: &BundleCreateArgs) -> Result<Read> {
    let (mut files, mut wanted) = (Vec::new(), BTreeMap::new());
    let mut errors = Vec::new();
    for path in &args.paths {
        for file in validate::files(path)? {
            let failed = || CliError::new(format!("could not read `{}`", file.display()));
            let name = file
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            check_file_name(&name)
                .map_err(|why| failed().because(format!("no bundle can have it: {why}")))?;
            let bytes = validate::read(&file).map_err(|why| failed().because(why))?;
            match validate::pods(&file.display().to_string(), &bytes) {
                Ok(pods) => pods.iter().for_each(|pod| note_images(pod, &mut wanted)),
                Err(found) => errors.extend(found),
            }
            files.push((name, bytes));
        }
    }
    match errors.is_empty() {
        true => Ok((files, wanted)),
        false => {
            let invalid = CliError::new("a bundle needs valid manifests");
            Err(errors.into_iter().fold(invalid, CliError::because))
        }
    }
}

fn note_images(pod: &PodSpec, wanted: &mut BTreeMap<String, String>) {
    // A short name may have an alias.
    for container in pod.all_containers() {
        wanted.insert(container.image_name.to_string(), container.image.clone());
    }
    for name in pod.image_names() {
        wanted
            .entry(name.to_string())
            .or_insert_with(|| name.to_string());
    }
}

/// An image in this machine's store.
struct Stored<'a> {
    client: &'a Client,
    layout: &'a Layout,
    /// Where it is written to.
    file: PathBuf,
}

impl Stored<'_> {
    /// Writes the image as an archive, unless it is to be pulled: `None`.
    fn take(&self, args: &BundleCreateArgs, image: &str) -> Result<Option<PathBuf>> {
        let refused = |why: &str| {
            let error = CliError::new(format!("could not take image `{image}` from the store"));
            Err(error.because(why).hint("pull it: --pull missing"))
        };
        // A digest is that of a manifest with the layers of a registry; and there is one platform by a name.
        let elsewhere = image.contains('@') || args.platform.is_some();
        match args.pull {
            Pull::Always => return Ok(None),
            Pull::Missing if elsewhere => return Ok(None),
            Pull::Never if image.contains('@') => {
                return refused("its digest is that of the image as a registry has it");
            }
            Pull::Missing | Pull::Never => {}
        }
        let failed = |why: std::io::Error| {
            CliError::new(format!("could not write `{}`", self.file.display())).because(why)
        };
        let parts = self.file.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(parts).map_err(failed)?;
        let file = File::create(&self.file).map_err(failed)?;
        let saved = match self.client.reachable() {
            true => self.by_agent(image, file),
            false => self.by_disk(image, file),
        };
        match (saved?, args.pull) {
            (true, _) => {
                eprintln!("taking {image} from the store");
                Ok(Some(self.file.clone()))
            }
            (false, Pull::Never) => refused("it is not there"),
            (false, Pull::Always | Pull::Missing) => Ok(None),
        }
    }

    /// Whether the agent has the image.
    fn by_agent(&self, image: &str, mut file: File) -> Result<bool> {
        let path = format!("/coracle/v1/images/save?name={}", encode(image));
        let response = match self.client.send("GET", &path, None) {
            Err(why) if why.exit_code() == NOT_FOUND => return Ok(false),
            other => other?,
        };
        let copied = save::copy(response.body, &mut file);
        copied.map_err(|why| CliError::new(format!("could not save {image}")).because(why))?;
        Ok(true)
    }

    /// Whether the store on disk has it.
    fn by_disk(&self, image: &str, mut file: File) -> Result<bool> {
        let dir = self.layout.image_store();
        if !dir.is_dir() {
            return Ok(false);
        }
        let failed = |why: ImageError| {
            CliError::new(format!("could not save {image}")).because(crate::chain(&why))
        };
        let store = ImageStore::open(&dir).map_err(failed)?;
        if store.lookup(image).map_err(failed)?.is_none() {
            return Ok(false);
        }
        let saved = smol::block_on(async {
            let mut saving = images::save(WORKER.as_ref(), &dir, &[image.to_owned()]).await?;
            while let Some(piece) = saving.next().await? {
                let written = file.write_all(&piece);
                written.map_err(|source| ImageError::Send { source })?;
            }
            Ok(true)
        });
        saved.map_err(failed)
    }
}

/// Pulls an image below `parts`; returns its OCI layout.
fn fetch(
    registries: &Registries,
    args: &BundleCreateArgs,
    parts: &Path,
    (image, written): (&str, &str),
) -> std::result::Result<PathBuf, ImageError> {
    let options = PullOptions {
        name: image.to_owned(),
        platform: args.platform.clone(),
        sources: sources(registries, image, written)?,
        plain_http: registries.plain_http.clone(),
        certificates: registries.certificate_dirs.clone(),
        trust: None,
        bytes_per_second: 0,
        keep: Default::default(),
        access: Default::default(),
    };
    let mut bars = Bars::new(true);
    let fetched = smol::block_on(fetch_layout(WORKER.as_ref(), parts, &options, |step| {
        bars.show(&serde_json::to_value(&step).unwrap_or_default());
    }));
    bars.clear();
    fetched
}

/// Where the image can be fetched from, with the credentials of this machine.
fn sources(
    registries: &Registries,
    image: &str,
    written: &str,
) -> std::result::Result<Vec<Source>, ImageError> {
    let bad = |message: String| ImageError::Pull {
        message,
        hint: None,
        cause: Default::default(),
    };
    let name = ImageName::parse(image).map_err(|why| bad(why.to_string()))?;
    let conf = RegistriesConf::read(&registries.conf)?;
    let file = AuthFile::read(&registries.auth_file).map_err(|why| bad(crate::chain(&why)))?;
    let places = conf.places(&name, written)?.into_iter();
    let sources = places.map(|place| {
        let found = file
            .as_ref()
            .map(|file| file.credentials(&place.name))
            .transpose();
        let credentials = found.map_err(|why| bad(crate::chain(&why)))?.flatten();
        Ok(Source {
            name: place.name.to_string(),
            insecure: place.insecure,
            credentials: credentials.into_iter().collect(),
        })
    });
    sources.collect()
}

/// Writes the archive; a file whole or not at all.
fn write(bundle: &NewBundle, output: &Path) -> Result<String> {
    let failed = || CliError::new(format!("could not write bundle `{}`", output.display()));
    let target = Target::create(output, 0o666).map_err(|why| failed().because(why))?;
    let out = BufWriter::new(&target.file);
    let (digest, mut out) = write_bundle(bundle, out, output).map_err(|why| {
        let failed = failed().because(crate::chain(&why));
        match why.hint() {
            Some(hint) => failed.hint(hint),
            None => failed,
        }
    })?;
    let done = out.flush();
    drop(out);
    done.and_then(|()| target.finish())
        .map_err(|why| failed().because(why))?;
    Ok(digest)
}
