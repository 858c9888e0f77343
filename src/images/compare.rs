//! The comparison of what layers contain with what was unpacked: each layer's tar is made again by its recipe
//! ([`super::recipe`]) and must have the layer's diff id. It takes as long as reading all files does.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::digest::Measuring;
use super::error::ImageError;
use super::recipe;
use super::store::{ImageStore, LAYER_RECORD, LayerRecord, read_json};
use crate::types::Gather;

/// The result of a comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// The number of layers that were compared.
    pub compared: usize,
    /// The number of layers that cannot be compared: they were unpacked by an earlier version, or their tar replaces
    /// its own files.
    pub unknown: usize,
    /// What is wrong with layers.
    pub(super) damaged: BTreeMap<String, String>,
}

impl ImageStore {
    /// Compares the contents of all layers, and changes nothing. It does not keep others from changing the store:
    /// layers that go meanwhile are left out. `seen` receives how many layers are done, and of how many.
    pub fn compare(&self, seen: &mut dyn FnMut(usize, usize)) -> Result<Contents, ImageError> {
        let mut contents = Contents::default();
        let layers = self.all_layers()?;
        for (done, layer) in layers.iter().enumerate() {
            seen(done, layers.len());
            let path = self.layer_dir(layer).join(LAYER_RECORD);
            // What cannot be read is found by the check of the files.
            let Ok(Some(written)) = read_json::<LayerRecord>(&path) else {
                continue;
            };
            if !written.recipe {
                contents.unknown += 1;
                continue;
            }
            let compared = self.compare_layer(layer, &written);
            if !path.exists() {
                continue;
            }
            contents.compared += 1;
            if let Err(why) = compared {
                contents.damaged.insert(layer.clone(), why);
            }
        }
        seen(layers.len(), layers.len());
        Ok(contents)
    }

    /// The layers of all images whose records are readable.
    fn all_layers(&self) -> Result<BTreeSet<String>, ImageError> {
        let records = self.readable_records()?;
        Ok(records.into_iter().flat_map(|r| r.layers).gather())
    }

    fn compare_layer(&self, layer: &str, written: &LayerRecord) -> Result<(), String> {
        let root = self.layer_dir(layer).join("diff");
        let mut made = Measuring::new(io::sink());
        recipe::follow(&self.recipe_path(layer), &root, &mut made)
            .map_err(|why| format!("layer {layer} cannot be compared: {why}"))?;
        match made.finish() == (layer.to_owned(), written.tar_bytes) {
            true => Ok(()),
            false => Err(format!(
                "layer {layer} has other contents than were unpacked"
            )),
        }
    }
}
