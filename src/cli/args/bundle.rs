//! Arguments of `coracle bundle`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{DryRunArgs, JsonOnly};

/// `coracle bundle`.
#[derive(Debug, Clone, Subcommand)]
pub enum BundleCommand {
    /// Make a bundle of manifests and all images that they name, without an agent
    ///
    /// The images are pulled. What has arrived stays in OUTPUT.parts until the bundle is complete.
    #[command(
        after_help = "Examples:\n  coracle bundle create -o site.tar manifests/*.yaml\n  coracle bundle create -o arm.tar --name site --platform linux/arm64 --sign-by site.key manifests"
    )]
    Create(BundleCreateArgs),
    /// Check a bundle, import the images that are missing, and put its manifests in force: all of it or nothing
    #[command(
        after_help = "The manifests replace those of the bundle of the same name. Others stay as they are.\n\nExamples:\n  coracle bundle apply site.tar\n  coracle bundle apply site.tar --dry-run\n  coracle bundle apply registry.lan:5000/site:3\n  coracle bundle apply https://config.lan/site.tar\n  coracle bundle apply site.tar --key site.pub --ready-within 5m"
    )]
    Apply(BundleApplyArgs),
    /// Show what applying a bundle would change
    #[command(
        after_help = "Exit code: 0 if nothing would change, 1 if something would, 2 on error."
    )]
    Plan {
        /// Bundle: an archive or its URL, an OCI layout directory, or a name in a registry
        source: String,
        /// The public key that it must be signed with, in PEM
        #[arg(long, value_name = "FILE")]
        key: Option<PathBuf>,
        /// Print JSON
        #[arg(short, long, value_name = "FORMAT")]
        output: Option<JsonOnly>,
    },
    /// Bring the former generation of a bundle back
    Rollback {
        /// Bundle [default: the only one]
        name: Option<String>,
    },
    /// List bundles, and how the last look went at the source that is polled
    Ls {
        /// Print JSON
        #[arg(short, long, value_name = "FORMAT")]
        output: Option<JsonOnly>,
    },
    /// Remove bundles: their pods stop, their images stay until they are pruned
    Rm {
        /// Bundles
        #[arg(required = true)]
        names: Vec<String>,
        /// Do not ask for confirmation
        #[arg(short, long)]
        force: bool,
    },
}

/// When `coracle bundle create` pulls an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Pull {
    /// Each time
    Always,
    /// If this machine's store lacks it
    Missing,
    /// Not at all
    Never,
}

/// `coracle bundle create`.
#[derive(Debug, Clone, Args)]
pub struct BundleCreateArgs {
    /// Manifests, or directories of them
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// Archive to write, or `-` (with --name)
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Name of the bundle: lower-case letters, digits and `-` [default: the archive's]
    #[arg(long)]
    pub name: Option<String>,
    /// The platform of the images [default: this machine's]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]")]
    pub platform: Option<String>,
    /// When images are pulled from their registries: those of the store have other layers, not compressed
    #[arg(long, value_enum, default_value = "always", value_name = "WHEN")]
    pub pull: Pull,
    /// Sign it with this private key, in PEM, unencrypted: as `cosign sign` would
    #[arg(long, value_name = "FILE")]
    pub sign_by: Option<PathBuf>,
}

/// `coracle bundle apply`.
#[derive(Debug, Clone, Args)]
pub struct BundleApplyArgs {
    /// Bundle: an archive or its URL, an OCI layout directory, or a name in a registry
    pub source: String,
    /// The public key that it must be signed with, in PEM
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Wait until all pods are ready; after this long, e.g. 5m, bring the former generation back
    #[arg(long, value_name = "DURATION")]
    pub ready_within: Option<String>,
    /// Dry run.
    #[command(flatten)]
    pub dry_run: DryRunArgs,
}
